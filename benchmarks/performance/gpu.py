"""The same work on a GPU and on the processor of the same machine, in turns: rounds, clips, ranks, sketches, accounting.

Where torch is offered no CUDA device nothing is measured, and the JSON of a machine that had one stays as it is. Every
call ends with what the device still has to do. Images are made up: none of these times depends on a value. No goal is
set: rows say how many times faster the device is, or how many times as long a clip takes there as plain autodiff.
"""

from __future__ import annotations

import gc
import statistics
import struct
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.performance import accounting, transport
from benchmarks.performance.clipping_autoencoder import Step as AutoencoderStep
from benchmarks.performance.comparing import Row
from benchmarks.performance.timing import Times, in_turns, repeated, spread, timed
from fedsw.learning.models import mlp
from fedsw.learning.models.labelled import ImageGenerator
from fedsw.learning.sketches.fit import FitSettings, fit_generator
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.parts import GaussianKernel
from fedsw.learning.sketches.sketch_law import Law
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport import sliced

Call = Callable[[], object]

_SHIPPED = Path(__file__).parents[2] / "fedsw" / "shipped" / "experiments"
_PIXELS, _CLASSES, _SIDE = 784, 10, 28


def missing() -> str:
    """Why nothing is measured here; empty where there is a device."""
    return "" if torch.cuda.is_available() else "torch is offered no CUDA device here"


def measure(quick: bool, device: str = "cuda") -> Iterator[Row]:
    """See `benchmarks.performance.rows`; a row that fails says why, and the others are measured all the same."""
    parts = (_accounting, _cotangents, _clipping, _sketch, _fitting, _rounds)
    for part in parts:
        try:
            yield from part(quick, device)
        except Exception as fault:  # a machine with a GPU is borrowed for minutes: the other rows are worth having
            traceback.print_exc(file=sys.stderr)
            why = f"not measured: {type(fault).__name__}: {fault}"
            yield _row(part.__name__.strip("_"), "", None, None, None, "", why)


def _accounting(quick: bool, device: str) -> Iterator[Row]:
    turns = 1 if quick else 5
    yield _faster(
        f"epsilon of {accounting.STEPS} steps, p = {accounting.RATE}, sigma / Delta = {accounting.MULTIPLIER:g}",
        lambda place: lambda: accounting.composed(place), device, turns=turns,
    )  # fmt: skip
    yield _faster(
        f"noise multiplier for epsilon 1 in {accounting.STEPS} steps, p = {accounting.RATE}",
        lambda place: lambda: accounting.calibrated(place), device, turns=turns,
    )  # fmt: skip


def _cotangents(quick: bool, device: str) -> Iterator[Row]:
    for n, d in [(1_000, 2)] if quick else [(10_000, 10), (1_000_000, 2)]:
        theta = transport.directions(d)
        own, other = transport.points(n, d, 0), transport.points(n, d, 2) + 0.1

        def way(place: str, given: tuple[Tensor, ...] = (own, other, theta)) -> Call:
            there = tuple(each.to(place) for each in given)
            return lambda: sliced.cotangents(*there)

        what = f"cotangents of both sides, n = {n} each, d = {d}, k = {theta.shape[1]}"
        yield _faster(what, way, device, turns=1 if n > 100_000 else 3, warm_up=0 if n > 100_000 else 1)


def _clipping(quick: bool, device: str) -> Iterator[Row]:
    batch, turns = (20, 1) if quick else (600, 5)
    name = f"clipped gradient of the autoencoder of RLL Table 3, penalty and loss, batch {batch}"
    there = AutoencoderStep(batch, device)
    yield _as_long(f"{name}, on the GPU", there.both, there.plain, device, turns=turns)
    yield _faster(name, lambda place: AutoencoderStep(batch, place).both, device, turns=turns)
    batch = 20 if quick else 1_000
    name = f"loss gradients clipped, MLP 784-512-512-10, batch {batch}"
    perceptron = _Perceptron(batch, device)
    yield _as_long(f"{name}, on the GPU", perceptron.clipped, perceptron.plain, device, turns=turns)
    yield _faster(name, lambda place: _Perceptron(batch, place).clipped, device, turns=turns)


class _Perceptron:
    """A batch and a classifier, and the gradient of its loss with every record's clipped, or plain."""

    def __init__(self, batch: int, device: str) -> None:
        torch.manual_seed(0)
        self.model = mlp(_PIXELS, (512, 512), _CLASSES).to(device)
        self.x = torch.randn(batch, _PIXELS).to(device)
        self.y = torch.randint(0, _CLASSES, (batch,)).to(device)
        self.weights = torch.ones(batch, dtype=torch.float64, device=device)

    def clipped(self) -> Tensor:
        """Clipped at norm 1."""
        tape = record(self.model, self.x)
        losses = F.cross_entropy(tape.raw, self.y, reduction="none")
        return clipped_sum(tape, [Term(losses, self.weights, 1.0)])

    def plain(self) -> None:
        """Autodiff."""
        loss = F.cross_entropy(self.model(self.x), self.y, reduction="sum")
        torch.autograd.grad(loss, list(self.model.parameters()))


def _law(pairs: int) -> Law:
    """What `sketch-mnist` measures of every image."""
    kernel = GaussianKernel((1.5, 2.5, 4.0, 7.0), pairs)
    return Law(_PIXELS, (kernel,), classes=_CLASSES)


def _sketch(quick: bool, device: str) -> Iterator[Row]:
    images, law = (200, _law(40)) if quick else (60_000, _law(4800))
    generator = torch.Generator().manual_seed(0)
    rows, cells = torch.rand(images, _PIXELS, generator=generator), torch.arange(images) % _CLASSES

    def way(place: str) -> Call:
        drawn, there, where = law.drawn().to(place), rows.to(place), cells.to(place)
        return lambda: drawn.sums(there, where)

    what = f"sketch of {images} images, {law.parts[0].pairs} waves by class"  # type: ignore[attr-defined]
    yield _faster(what, way, device, turns=1 if quick else 2, warm_up=0)


def _fitting(quick: bool, device: str) -> Iterator[Row]:
    law, steps = (_law(40), 2) if quick else (_law(4800), 50)
    drawn = law.drawn()
    values = torch.zeros(law.cells, drawn.coordinates + 1, dtype=torch.float64)
    values[:, -1] = 6000.0
    sketch = NoisedSketch(law, values, 1.0, 60_000)

    def way(place: str) -> Call:
        own = law.drawn().to(place)
        settings = FitSettings(steps)
        return lambda: fit_generator(
            sketch, ImageGenerator(_SIDE, law.cells).to(place), settings, sketcher=own, every=steps
        )

    what = f"{steps} steps of sketch-mnist's generator, batch {FitSettings(1).batch}"
    yield _faster(what, way, device, turns=1 if quick else 2)


def _rounds(quick: bool, device: str) -> Iterator[Row]:
    images = 1_200 if quick else 60_000
    cases: list[tuple[int, int, int, str]] = [(12, 2, 1, "")] if quick else [
        (600, 12, 2, ""), (600, 12, 2, "cpu"), (6000, 4, 1, ""),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        _write_images(Path(folder) / "mnist", images)
        for batch, rounds, turns, accountant in cases:
            settings = tomllib.loads((_SHIPPED / "swae-mnist.toml").read_text(encoding="utf-8"))
            settings["training"] |= {"rounds": rounds + 2, "batch_fraction": batch / images}
            settings["data"] |= {"data_dir": folder}
            settings["evaluate_every"] = 10**6
            where = ", epsilon on the processor" if accountant else ""
            what = f"a round of swae-mnist, batch {batch}, end to end without evaluation{where}"
            yield _round(what, settings, turns, accountant, device)


def _round(what: str, settings: dict[str, Any], turns: int, accountant: str, device: str) -> Row:
    """One round of the shipped autoencoder, messages, ledger, noise and step included: neither the first nor the last."""
    from benchmarks.performance.runs import timed_run

    peaks: list[int] = []

    def way(place: str) -> Callable[[], float]:
        own = {**settings, "training": settings["training"] | {"device": place}}
        if accountant:
            own["privacy"] = settings["privacy"] | {"device": accountant}

        def run() -> float:
            _forget_peak(place)
            seconds = statistics.median(timed_run(own).rounds[1:-1])
            peaks.append(_peak(place))
            return seconds

        return run

    threads = int(settings.get("federation", {}).get("cores", 1))  # a run sets its own
    ways = {"ours": way(device), "other": way("cpu")}
    taken = in_turns(ways, turns=turns, warm_up=0, threads=threads)
    return _against_processor(what, taken, threads, max(peaks))


def _write_images(folder: Path, images: int) -> None:
    """Files of MNIST's names and form with made-up images, as many for training and a sixth of it held out."""
    folder.mkdir()
    made = np.random.default_rng(0)
    for part, count in (("train", images), ("t10k", images // 6)):
        pixels, labels = made.integers(0, 256, (count, _PIXELS), dtype=np.uint8), np.arange(count) % _CLASSES
        header = struct.pack(">4I", 0x803, count, _SIDE, _SIDE)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 0x801, count) + labels.astype(np.uint8).tobytes()
        )


def _faster(what: str, way: Callable[[str], Call], device: str, *, turns: int, warm_up: int = 1) -> Row:
    """A row of one piece of work that is done on the device and on the processor.

    Args:
        way: from a place to what is done there; its tensors lie there before the clock starts.
        turns, warm_up: as in `timing.in_turns`; the device does it twice before them, which loads its kernels.
    """
    threads = torch.get_num_threads()
    there, here = _finished(way(device), device), way("cpu")
    there()
    _forget_peak(device)
    there()
    peak = _peak(device)
    clock = repeated if warm_up else timed
    taken = in_turns({"ours": clock(there), "other": clock(here)}, turns=turns, warm_up=warm_up, threads=threads)
    return _against_processor(what, taken, threads, peak)


def _as_long(what: str, ours: Call, plain: Call, device: str, *, turns: int) -> Row:
    """A row of what a clip costs on the device beside plain autodiff there."""
    ours, plain = _finished(ours, device), _finished(plain, device)
    plain()
    ours()
    _forget_peak(device)
    plain()
    of_plain = _peak(device)
    _forget_peak(device)
    ours()
    peak = _peak(device)
    ways = {"ours": repeated(ours), "other": repeated(plain)}
    taken = in_turns(ways, turns=turns, threads=torch.get_num_threads())
    note = f"{_megabytes(peak)} of the GPU's memory at most, plain {_megabytes(of_plain)}" if peak else ""
    ratio = taken["ours"].median / taken["other"].median
    return _row(what, "plain autodiff, on the GPU", taken["ours"], taken["other"], ratio, "times as long", note, peak)


def _against_processor(what: str, taken: dict[str, Times], threads: int, peak: int) -> Row:
    ratio = taken["other"].median / taken["ours"].median
    note = f"{_megabytes(peak)} of the GPU's memory at most" if peak else ""
    against = f"the same on the processor, {threads} thread(s)"
    return _row(what, against, taken["ours"], taken["other"], ratio, "times faster", note, peak)


def _row(
    what: str, against: str, ours: Times | None, other: Times | None, ratio: float | None, counts: str, note: str,
    peak: int = 0,
) -> Row:  # fmt: skip
    sides = {} if ours is None or other is None else {"ours": ours, "other": other}
    return {
        "what": what, "against": against,
        "ours": None if ours is None else ours.median, "other": None if other is None else other.median,
        "ratio": ratio, "goal": "", "met": None, "spread": spread(**sides), "note": note,
        "ratio_counts": counts, "peak_bytes": peak,
    }  # fmt: skip


def _finished(call: Call, device: str) -> Call:
    """The call with what it leaves the device to do."""
    if torch.device(device).type != "cuda":
        return call

    def whole() -> None:
        call()
        torch.cuda.synchronize()

    return whole


def _forget_peak(device: str) -> None:
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(device: str) -> int:
    """The most bytes of tensors that were on the device at once since `_forget_peak`; 0 for a processor."""
    return int(torch.cuda.max_memory_allocated()) if torch.device(device).type == "cuda" else 0


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
