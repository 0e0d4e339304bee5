"""docs/measured/performance.md from the JSON of the benchmarks; every number in it comes from there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.performance.timing import exponent
from fedsw._tools.text import table as markdown_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "performance"

_HEAD = """# Performance

Time and memory beside the alternatives, from the JSON that `make bench` leaves under
`benchmarks/results/performance/`. Every row is ours and the alternative, measured in turns in the same run. Figures are seconds, in the median of the turns, unless a row
names another unit; the spread of the turns is in the JSON. A goal was set before it was measured, and a goal that is missed
stays in the table. `python -m benchmarks.performance NAME` measures one of them again.
"""
_NOTHING = "\nNo benchmark has been run yet.\n"
_HEADINGS = ("benchmark", "what", "against", "ours", "other", "ratio", "goal", "met", "why, or note")
_CURVES = ("benchmark", "what", "sizes and seconds", "exponent", "goal", "met", "note")


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """What every benchmark left in the folder, by its name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    stored = load(folder)
    if not stored:
        return _HEAD + _NOTHING
    parts = [_HEAD, _summary(stored), "", comparisons(stored), _of_gpu(stored), *_unfinished(stored)]
    parts += [_curves(stored), _machines(stored)]
    return "\n".join(part for part in parts if part is not None).rstrip() + "\n"


def comparisons(stored: dict[str, dict[str, Any]]) -> str:
    """One table of all rows that are no curves."""
    return markdown_table(_HEADINGS, [_cells(name, row) for name, row in _rows(stored) if not _is_curve(name, row)])


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    unit = row.get("unit", "")
    measured = [_figure(row["ours"], unit), _figure(row["other"], unit), _figure(row["ratio"])]
    return [
        _link(name),
        row["what"],
        row["against"] or "–",
        *measured,
        row["goal"] or "–",
        _met(row),
        row["note"] or "",
    ]


def _summary(stored: dict[str, dict[str, Any]]) -> str:
    goals = [row for _, row in _rows(stored) if row["goal"]]
    met = sum(row["met"] is True for row in goals)
    unmeasured = sum(row["met"] is None for row in goals)
    rest = f"; {unmeasured} could not be measured here" if unmeasured else ""
    return f"{met} of {len(goals)} goals are met{rest}."


def _curves(stored: dict[str, dict[str, Any]]) -> str | None:
    rows = [(name, row) for name, row in _rows(stored) if _is_curve(name, row)]
    if not rows:
        return None
    text = "\n## Cost curves\n\nThe exponent is the slope of log seconds on log size, by least squares.\n"
    return f"{text}\n{markdown_table(_CURVES, [_curve(name, row) for name, row in rows])}"


def _curve(name: str, row: dict[str, Any]) -> list[str]:
    seen, fitted = row["spread"], row["ours"]
    if curve := row.get("curve"):
        sizes, seconds = curve["sizes"], curve["seconds"]
        pairs = [f"{_figure(size)}: {_figure(each)}" for size, each in zip(sizes, seconds, strict=True)]
        seen, fitted = f"{curve['over']}, {', '.join(pairs)}", exponent(sizes, seconds)
    return [_link(name), row["what"], str(seen), f"{fitted:.2f}", row["goal"] or "–", _met(row), row["note"] or ""]


def _is_curve(name: str, row: dict[str, Any]) -> bool:
    """Whether a row is a cost curve: it holds one, or it is of the benchmark of curves, which fits its own."""
    return "curve" in row or (name == "curves" and row["ours"] is not None)


_GOALS_OF_CLIPS = {"autoencoder": ("gradient of the autoencoder", 2.5), "MLP": ("loss gradients clipped, MLP", 2.0)}
"""Of clips on a GPU: words of the row, and the most that it was to take of plain autodiff's time beside it."""


def _of_gpu(stored: dict[str, dict[str, Any]]) -> str:
    """On which device the rows of `gpu` were measured, or that there are none."""
    if "gpu" not in stored:
        return "\nTimes on a GPU are not measured yet: the benchmark `gpu` needs a machine that has one."
    device = stored["gpu"]["machine"]["gpu"]
    beside_plain = [
        f"{row['ratio']:.2f} times for the {name} (goal {goal:g})"
        for row in stored["gpu"]["rows"]
        for name, (words, goal) in _GOALS_OF_CLIPS.items()
        if row["against"] == "plain autodiff, on the GPU" and words in row["what"]
    ]
    clips = f": {', '.join(beside_plain)}. No GPU was at hand to shorten that since" if beside_plain else ""
    return (
        f"\nRows of `gpu` were measured on {device['name']} (CUDA {device['cuda']}): ours is its time. "
        "Their ratio says how many times faster it is than the processor beside it; beside plain autodiff, how many times "
        f"as long a clip takes{clips}."
    )


def _unfinished(stored: dict[str, dict[str, Any]]) -> list[str]:
    names = [name for name, each in stored.items() if not each["complete"]]
    return [f"\n*{', '.join(names)}: broken off, only the rows that were finished.*"] if names else []


def _machines(stored: dict[str, dict[str, Any]]) -> str:
    """A table of the machine of every benchmark, and when it was measured there."""
    rows = [
        (
            name,
            benchmark["machine"]["date"][:16].replace("T", " "),
            f"{benchmark['machine']['load']:.1f}",
            f"{benchmark['seconds']:.0f}",
            machine.words(benchmark["machine"]),
        )
        for name, benchmark in stored.items()
    ]
    return "\n## Machines\n\n" + markdown_table(("benchmark", "when", "load", "seconds", "machine and versions"), rows)


def _rows(stored: dict[str, dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, row) for name, each in stored.items() for row in each["rows"])


def _met(row: dict[str, Any]) -> str:
    if not row["goal"]:
        return "–"
    return {True: "yes", False: "**no**", None: "not measured"}[row["met"]]


def _figure(value: float | None, unit: str = "") -> str:
    """Three digits that a reader can compare, without exponents where the number is of everyday size."""
    if value is None:
        return "–"
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        text = f"{value:.2e}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}".replace(",", " ")
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _link(name: str) -> str:
    return f"[{name}](../../benchmarks/results/performance/{name}.json)"
