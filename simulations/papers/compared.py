"""Settings of every figure: those that its paper prints beside those of the runs here, read off the experiments.

The paper's are in `printed/`, a file a paper: by figure and setting, words as printed. What stands in no file is not
printed. Ours come from the figures' settings, so that a run and its line cannot differ.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from fedsw._tools import files
from fedsw._tools.text import number, table, upward
from fedsw.experiment import Experiment, ExperimentError
from fedsw.runs.report.document import Document, PageSection
from simulations.papers.cells import Cell, cells_of
from simulations.papers.figure import Beside, Figure, Series, chosen, figures
from simulations.papers.origin import machines, made
from simulations.papers.study import Study

PRINTED = Path(__file__).parent / "printed"
"""A file for each paper; sketches are no paper's, and have none."""
NOT_PRINTED, NOTHING = "not printed", "–"
_THEIRS = ("paper's settings", "shortened", "paper's method", "as coded", "computed")
_OURS = ("best",)
_STARTS = {
    "image-autoencoder": "Xavier, biases 0",
    "simulations.papers.starts:xavier_encoder_decoder": "Xavier, biases 0",
    "dcgan": "normal, deviation 0.02",
    "adversarial-dcgan": "normal, deviation 0.02",
}
_UNIFORM = "uniform on ±1/√inputs"
_CLIPS = {"row": "rows to L/√d", "spectral": "spectral norm to L"}
_BOUNDS = {"auto": "the least that is known", "paper": "Theorem A.1"}
_CLIPPED = ("none", "central", "distributed", "local-gradient")
"""Trust models whose messages are gradients: C, L, how they clip, and the bound are theirs."""


def start_of(kind: str) -> str:
    """How the weights of a kind of model begin."""
    return _STARTS.get(kind, _UNIFORM)


def _records(experiment: Experiment) -> str:
    data = experiment.data
    made_up = str(data.records) if data.source in ("synthetic", "ring") else NOTHING
    most = f"the first {data.most_records}" if data.most_records else made_up
    return "half of the training records" if data.half else most


def _model(experiment: Experiment) -> str:
    model = experiment.model
    hidden = f", hidden {', '.join(map(str, model.hidden))}" if model.hidden else ""
    return f"{model.kind}{hidden}"


def _batch(experiment: Experiment) -> str:
    training = experiment.training
    return str(training.batch_size) if training.batch_size else f"{training.batch_fraction:.3g} of a group"


def _optimiser(experiment: Experiment) -> str:
    training = experiment.training
    parts = {"momentum": training.momentum, "decay": training.decay, "averaging": training.averaging}
    return ", ".join([training.optimizer, *(f"{name} {value:g}" for name, value in parts.items() if value)])


def _directions(experiment: Experiment) -> str:
    if experiment.privacy.trust in ("sketch", "sketch-local", "local-release"):
        return NOTHING
    words = "independent" if experiment.slicing.scheme == "iid" else "orthogonal"
    return f"{experiment.slicing.directions}, {words}"


def _gradients(experiment: Experiment, value: str | float) -> str:
    """A setting of gradients that are clipped; nothing for other messages."""
    if experiment.privacy.trust not in _CLIPPED:
        return NOTHING
    if experiment.clip.mode == "none":
        return "not clipped"
    return value if isinstance(value, str) else number(value, 3)


def _output(experiment: Experiment) -> str:
    centre = f" about {experiment.clip.centre:g}" if experiment.clip.centre else ""
    return "not clipped" if experiment.clip.mode == "none" else f"{number(experiment.clip.output, 3)}{centre}"


def _local(experiment: Experiment) -> str:
    """Settings of a local release or of local slices, where they are such."""
    names = ("loss", "mechanism", "norm", "calibration", "diameter", "algorithm", "order", "diffusion")
    return ", ".join(f"{name} {value}" for name in names if (value := getattr(experiment.local, name, None))) or NOTHING


def _iterations(experiment: Experiment) -> str:
    if experiment.privacy.trust != "local-release":
        return NOTHING
    return str(getattr(experiment.local, "iterations", None) or "until marginals agree to 1e-4")


def _epsilon(experiment: Experiment) -> str:
    if experiment.privacy.noise_multiplier is not None:
        return "by the noise"
    return "∞" if experiment.privacy.trust == "none" else upward(experiment.privacy.epsilon or math.inf)


_ROWS: Mapping[str, tuple[str, Callable[[Experiment], object]]] = {
    "data": ("data", lambda each: each.data.source),
    "records": ("records", _records),
    "model": ("model", _model),
    "start": ("initial weights", lambda each: start_of(each.model.kind)),
    "alpha": ("α", lambda each: number(each.objective.alpha, 3)),
    "rounds": ("rounds", lambda each: each.training.rounds),
    "batch": ("batch", _batch),
    "optimiser": ("optimiser", _optimiser),
    "rate": ("learning rate", lambda each: number(each.training.learning_rate, 3)),
    "directions": ("directions", _directions),
    "C": ("C, clip of the loss's gradient", lambda each: _gradients(each, each.clip.loss)),
    "M": ("M, clip of what is compared", _output),
    "L": ("L, clip of Jacobians", lambda each: _gradients(each, each.clip.jacobian)),
    "clip": ("how Jacobians are clipped", lambda each: _gradients(each, _CLIPS.get(each.clip.mode, ""))),
    "local": ("local release", _local),
    "iterations": ("Sinkhorn iterations", _iterations),
    "bound": ("bound", lambda each: _gradients(each, _BOUNDS.get(each.privacy.bound, each.privacy.bound))),
    "accountant": ("accountant", lambda each: each.privacy.accountant),
    "trust": ("who is trusted", lambda each: each.privacy.trust),
    "noise": ("noise multiplier", lambda each: each.privacy.noise_multiplier or "by ε"),
    "epsilon": ("ε", _epsilon),
    "delta": ("δ", lambda each: each.privacy.delta),
    "clients": ("clients", lambda each: each.federation.clients),
    "seeds": ("seeds", lambda each: NOTHING),
}
"""What a run is made with, by the keys of `printed/`: the line's name, and what an experiment says."""


class Said(NamedTuple):
    """What a paper prints of a setting, and the words or the number in its text that say so."""

    value: str
    words: str


class Settings(NamedTuple):
    """What a paper prints of a figure's settings, and the sections in which the others were looked for."""

    looked: str
    said: Mapping[str, Said]


@functools.cache
def printed(paper: str) -> Mapping[str, Settings]:
    """What a paper prints of its settings, by figure; nothing for what is no paper's.

    Raises:
        ExperimentError: naming a figure or a setting that there is not.
    """
    path = PRINTED / f"{paper}.toml"
    known: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = dict[str, Settings]()
    for name, values in known.items():
        if name not in figures():
            raise ExperimentError(f"{path}: no figure {name!r}")
        like = found[values.pop("like")] if "like" in values else Settings("", {})
        looked, without = values.pop("looked", like.looked), values.pop("without", ())
        names = [key for key, *_ in _lines(*chosen([name]))]
        if strange := values.keys() - set(names):
            raise ExperimentError(f"{path}: {name} has no setting {sorted(strange)[0]!r}; it has {', '.join(names)}")
        kept = {key: said for key, said in like.said.items() if key in names and key not in without}
        found[name] = Settings(looked, kept | {key: Said(*value) for key, value in values.items()})
    return found


def settings_of_figure(figure: Figure) -> str:
    """The table *setting | paper | here* of a figure, in Markdown; here is a column a series.

    A figure that no paper has shows what is here alone.
    """
    paper = printed(figure.paper).get(figure.id)
    said = paper.said if paper else {}
    rows = [
        [name, *([said[key].value if key in said else NOT_PRINTED] if paper else []), *values]
        for key, name, values in _lines(figure)
        if key in said or any(value != NOTHING for value in values)
    ]
    heading = [f"paper ({paper.looked})"] if paper else []
    return table(["setting", *heading, *(f"here: {name}" for name in _columns(figure))], rows)


def page_text(studies: Iterable[Study]) -> str:
    """The page of all figures' settings: one table for figures that share their runs, and how results were made."""
    every = list(studies)
    shared: dict[str, list[Study]] = {}
    for study in every:
        shared.setdefault(study.figure.runs_of or study.figure.id, []).append(study)
    sections = [PageSection("How figures are read", (_READ, machines(every)))]
    for name, those in shared.items():
        (root,) = chosen([name])
        anchors = [f'<a id="{anchor_of(study.figure.id)}"></a>' for study in those]
        parts = [*map(Markup, anchors), settings_of_figure(root), *_described(study.figure for study in those)]
        lines = (f"{study.figure.id}:{words}" for study in those if (words := made(study)))
        sections.append(
            PageSection.of(
                ", ".join(study.figure.id for study in those), [*parts, "\n".join(f"- {line}" for line in lines)]
            )
        )
    return Document("Settings of the papers' figures", _FIRST, sections=tuple(sections)).markdown()


def anchor_of(figure: str) -> str:
    """What a figure's settings are found by, which no other page has."""
    return f"settings-{figure.replace('/', '-')}"


def write_settings(studies: Iterable[Study], page: Path) -> Path:
    """Write the page of settings."""
    page.parent.mkdir(parents=True, exist_ok=True)
    files.replace(page, page_text(studies).encode())
    return page


_FIRST = """\
The settings that every figure was run with. Written by `python -m simulations.papers`: *paper* is what the paper prints
(`simulations/papers/printed/`), *here* is read off the experiments that were run. A value beside *not printed* is ours;
the column's head has the sections in which it was looked for. Several values are a grid.
Words of settings, as *auto*, are in the [reference](../reference/settings.md)."""
_READ = """\
No measured number is typed by hand. Series: *paper's settings* has every setting that the paper prints; *shortened* the
same but for fewer rounds or passes, with the noise that ε allows for these; *paper's method* its bound, clip and
accountant, at other settings, where it prints none or as said; *as coded* what the authors' code does; *best* ours at
the same (ε, δ). Columns: *paper*, the printed value, with the tolerance of its rows; ≈ and ≠ say whether a run of the
paper's method is within it. A number is one run; `a±b (s)` is mean and deviation over s seeds, and a picture of several
seeds draws their median, or says what it draws. Metrics are of held-out records, outside the guarantee. Sampling and
noise are secret unless *nominal*. Every ε is for one run: runs on the same records compose."""


def _described(those: Iterable[Figure]) -> list[str]:
    """What the series of figures are, each once."""
    columns = list[Series | Beside]()
    for figure in those:
        columns += [*figure.series, *figure.beside]
    return list(dict.fromkeys(f"*{each.name}*: {each.what}" for each in columns if each.what))


def _columns(figure: Figure) -> list[str]:
    """The series that are shown: those that are the nearest to the paper, and the first of ours."""
    names = [series.name for series in figure.series]
    theirs = [name for name in names if name.startswith(_THEIRS)]
    ours = [name for name in names if name.startswith(_OURS)]
    return list(dict.fromkeys([*(theirs or names[:3]), *ours])) if names else ["computed"]


def _lines(figure: Figure) -> list[tuple[str, str, list[str]]]:
    """Key, name and values of every line of a figure's table."""
    if figure.compute is not None:
        return [(key, key, [value]) for key, value in _arguments(figure.settings).items()]
    shown = _columns(figure)
    cells = {name: [cell for cell in cells_of(figure, seeds=1) if cell.series == name] for name in shown}
    seeds = {series.name: series.seeds for series in figure.series}
    return [
        (key, name, [str(seeds[column]) if key == "seeds" else _values(cells[column], read) for column in shown])
        for key, (name, read) in _ROWS.items()
    ]


def _values(cells: Sequence[Cell], read: Callable[[Experiment], object]) -> str:
    """What a setting is in all runs of a series, each value once."""
    return "; ".join(dict.fromkeys(_word(read(cell.experiment)) for cell in cells))


def _arguments(settings: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a computation; those of its cases by their own names, each value once."""
    found: dict[str, dict[str, None]] = {}
    for key, value in settings.items():
        inner = value if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict) else None
        inner = list(value.values()) if isinstance(value, dict) else inner
        if inner is None:
            found[key] = {_word(value): None}
            continue
        for case in inner:
            for name, each in case.items():
                found.setdefault(f"{key}: {name}", {})[_word(each)] = None
    return {key: "; ".join(values) for key, values in found.items()}


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
