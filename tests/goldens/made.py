"""What must come out the same while code is moved: plans, refusals, weights of messages, seeded runs, stored folders.

Settings are explicit: no preset chooses anything here. Numbers are compared to nine digits, as processors round
differently; bits of trained parameters are compared where they were made alike (`machine`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from flwr.common.serde import recorddict_to_proto
from safetensors.torch import load_file

from fedsw.cli.app import main
from fedsw.experiment import parse_experiment
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.task_kinds import TASKS
from fedsw.experiment.trust import trust_models
from fedsw.federation import messages
from fedsw.federation.engines.driver import resume, run
from fedsw.federation.node.simulated import simulating
from fedsw.privacy.accounting import ACCOUNTANTS, Ledger, Step, epsilon_by, noise_multiplier
from fedsw.runs.run_files import RunFile, client_ledgers
from tests.federations import Federation, digits_for_images, small
from tests.laws.simulations.test_neighbours import parts, settings, table
from tests.laws.simulations.test_neighbours_registries import families, plain

STORED = Path(__file__).with_name("goldens.json")
Entries = dict[str, Any]

RATES, DELTAS, SAMPLINGS = (1.0, 0.02), (1e-3, 1e-5, 1e-9, 1e-12), ("without-replacement", "poisson")
RELATIONS = ("replace-one", "add-remove")
WRONG = ("nonsense", -1, 1e300, [], {"no": 1})
"""Values that are tried in place of every setting."""


def stored() -> dict[str, Entries]:
    """The goldens as they are kept."""
    found: dict[str, Entries] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def machine() -> str:
    """What bits of trained parameters depend on."""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def plans(folder: Path) -> Entries:
    """Epsilon of 40 steps by every accountant, and the noise that meets an epsilon; an error's name in its place."""

    def value(of: Callable[[], float]) -> float | str:
        try:
            return of()
        except ValueError as refused:
            return type(refused).__name__

    found: Entries = {}
    for name, sampling, rate, delta in itertools.product(ACCOUNTANTS, SAMPLINGS, RATES, DELTAS):
        cost = partial(epsilon_by, name, [(Step(rate, 0.8, sampling), 40)], delta)
        found[f"epsilon: {name}, {sampling}, {rate}, {delta}"] = value(cost)
    for epsilon, sampling, rate, delta in itertools.product((0.5, 8.0), SAMPLINGS, RATES, (1e-5, 1e-9)):
        noise = partial(noise_multiplier, epsilon, delta, sampling_rate=rate, steps=40, sampling=sampling)
        found[f"noise: {epsilon}, {sampling}, {rate}, {delta}"] = value(noise)
    return found


def leaves(raw: dict[str, Any], before: str = "") -> Iterator[str]:
    """Dotted names of all settings."""
    for name, value in raw.items():
        inside = isinstance(value, dict) and value
        yield from leaves(value, f"{before}{name}.") if inside else (f"{before}{name}",)


def refusals(folder: Path) -> Entries:
    """How settings are refused: the error, and what its message names; empty where they are taken."""

    def said(*overrides: str) -> str:
        try:
            parse_experiment({"name": "golden"}, overrides)
        except Exception as refused:
            named = {*re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+", str(refused)), *re.findall(r"'([a-z-]+)'", str(refused))}
            return " ".join([type(refused).__name__, *sorted(named)])
        return ""

    every = leaves(parse_experiment({"name": "golden"}).model_dump())
    tried = [(f"{name}={json.dumps(wrong)}",) for name in every for wrong in WRONG]
    for trust, task, penalty, relation in itertools.product(trust_models(), TASKS, PENALTIES, RELATIONS):
        own = f"model.kind={TASKS.get(task).facts.models[0]}", f"objective.penalty={penalty}"
        tried.append((f"privacy.trust={trust}", f"objective.task={task}", *own, f"privacy.relation={relation}"))
    return {" ".join(overrides): said(*overrides) for overrides in tried}


def weights(folder: Path) -> Entries:
    """Bytes of every message of small runs, by trust model and kind."""
    found: Entries = {}
    encode = messages.encode
    for trust in ("central", "local-gradient", "distributed"):
        sizes, bins = dict[str, set[int]](), () if trust == "central" else ("local.bins=8",)

        def seen(message: Any, terms: Any, sizes: dict[str, set[int]] = sizes) -> Any:
            content = encode(message, terms)
            sizes.setdefault(type(message).__name__, set()).add(recorddict_to_proto(content).ByteSize())
            return encode(message, terms)

        with patch.object(messages, "encode", seen):
            Federation(folder / trust).run(small(f"privacy.trust={trust}", "seed=3", *bins))
        found |= {f"{trust}: {kind}": sorted(each) for kind, each in sorted(sizes.items())}
    return found


class Stopped(Exception):
    """A run that is broken off."""


class Breaking:
    """Breaks a run off after its first round."""

    def round_done(self, record: dict[str, Any]) -> None:
        """See `Observer`."""
        raise Stopped

    def started(self, plan: dict[str, Any]) -> None:
        """See `Observer`."""

    finished = started


def rows(directory: Path) -> list[Any]:
    """Bodies of all rows of a run's ledgers."""
    found = []
    for path in (directory / RunFile.LEDGER, *client_ledgers(directory)):
        if path.exists():
            with Ledger.open(path, read_only=True) as ledger:
                entries = ledger.entries()
            found += [[e.round, e.attempt, e.group, e.sampling_rate, e.sensitivity, e.sigma] for e in entries]
    return sorted(found, key=str)


def left(directory: Path) -> Entries:
    """Model, ledgers and sentence of a run."""
    summary = json.loads((directory / RunFile.SUMMARY).read_text(encoding="utf-8"))
    left: Entries = {"rows": rows(directory), "statement": summary["guarantee"]["statement"]}
    if (model := directory / RunFile.MODEL).exists():
        tensors = [tensor for _, tensor in sorted(load_file(model).items())]
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        bits = hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()
        left |= {"numbers": [float(flat.norm()), float(flat.sum())], "bits": bits[:16], "machine": machine()}
    return left


def cases() -> Iterator[tuple[str, Any]]:
    """Every trust model with every task that goes with it, its first model, seeded."""
    seen = set()
    for trust, task, model in families():
        if (trust, task) not in seen:
            seen.add((trust, task))
            yield f"{trust}, {task}", dataclasses.replace(plain(trust, task, model), seeded=True)


def runs(folder: Path) -> Entries:
    """Seeded runs of every trust model and task; classifiers break off and go on, too; what verbs say of folders."""
    found: Entries = {}
    with simulating(), pytest.MonkeyPatch.context() as patched:
        digits_for_images(patched)
        for name, case in cases():
            experiment, data = parse_experiment(settings(case), case.overrides), parts(table(case))
            directory = run(experiment, data=data, runs=folder / name).directory
            found[name] = left(directory)
            if "classification" in name:
                with contextlib.suppress(Stopped):
                    run(experiment, data=data, runs=folder / "resumed" / name, observer=Breaking())
                (begun,) = (folder / "resumed" / name / "neighbours").iterdir()
                found[f"{name}, resumed"] = left(resume(begun, data=data).directory)
            found |= {f"{name}: {verb}": code for verb, code in read(directory, case)}
    return found


def read(directory: Path, case: Any) -> Iterator[tuple[str, Any]]:
    """Exit codes of the verbs that read a stored folder, and what they say of it in JSON."""
    rows = directory.parent / "table.csv"
    table(case).to_csv(rows, index=False)
    verbs = {"show": ["--json"], "report": [], "audit": [], "predict": [str(rows)], "resume": []}
    for verb, more in verbs.items():
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            code = main([verb, str(directory), *more])
        yield verb, [int(code), *(sorted(json.loads(said.getvalue())) if "--json" in more else ())]


PARTS: dict[str, Callable[[Path], Entries]] = {
    "plans": plans,
    "refusals": refusals,
    "messages": weights,
    "runs": runs,
}


def alike(now: Any, then: Any) -> bool:
    """True for the same entries, numbers to nine digits; bits only where the machine is the same."""
    if isinstance(then, float) and isinstance(now, float):
        return math.isclose(now, then, rel_tol=1e-9, abs_tol=1e-300)
    if isinstance(then, dict):
        unsure = {"bits", "machine"} if now.get("machine") != then.get("machine") else set()
        within = 1e-5 if unsure else 1e-9
        return now.keys() == then.keys() and all(
            numbers_alike(now[name], then[name], within) if name == "numbers" else alike(now[name], then[name])
            for name in then.keys() - unsure
        )
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(alike, now, then))
    return bool(now == then)


def numbers_alike(now: list[float], then: list[float], within: float) -> bool:
    """True for numbers of a model that are the same but for so much."""
    return all(math.isclose(a, b, rel_tol=within, abs_tol=within) for a, b in zip(now, then, strict=True))
