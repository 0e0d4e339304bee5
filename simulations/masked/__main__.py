"""`python -m simulations.masked [SETTINGS] [--write]`: run what the results beside the settings lack, print the table.

With --write the figure over numbers of clients, of the results beside this file, goes into docs/images/.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import fedsw
from fedsw._tools.text import table
from fedsw.runs.report.figures import COLOURS, MARKERS, house_style, new_panels, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PICTURE = ROOT / "docs" / "images" / "masked-clients.png"
WRITE = "--write"

_MEASURES = ("accuracy", "disparate_impact", "demographic_parity_difference", "loss", "sw2_to_prior", "sw2")


def main(arguments: Sequence[str]) -> int:
    """Run and print."""
    named = [each for each in arguments if each != WRITE]
    settings = Path(named[0]) if named else HERE / "settings.toml"
    asked = tomllib.loads(settings.read_text(encoding="utf-8"))
    place = settings.with_name("results.json")
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    for name, experiment, overrides in cells(asked):
        if name in found:
            continue
        with tempfile.TemporaryDirectory() as folder:
            summary = fedsw.run(experiment, *overrides, runs=Path(folder)).summary
        measured = summary["held_out"]
        found[name] = {
            "epsilon": summary["epsilon"],
            "seconds": round(summary["seconds"], 1),
            **{measure: measured[measure] for measure in _MEASURES if measure in measured},
        }
        place.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(name, found[name], file=sys.stderr, flush=True)
    print(page(asked, found))
    if WRITE in arguments and settings.absolute().parent == HERE:
        save(draw(asked, found), PICTURE)
    return 0


def cells(asked: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Every run: its name in the results, the experiment, and the settings."""
    for (task, study), clients, method, seed in itertools.product(
        asked["task"].items(), asked["clients"], asked["methods"], asked["seeds"]
    ):
        overrides = [*study["set"], f"privacy.trust={method}", f"federation.clients={clients}", "federation.sites=1"]
        overrides += [f"{name}={seed}" for name in study["seeds"]]
        if method == "distributed":
            overrides.append(f"local.colluding={clients // 4}")
        yield f"{task}/{method}/{clients}/{seed}", study["experiment"], overrides


def page(asked: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """A row for each task, number of clients and method: means over the seeds, and what each came to."""
    rows, shown = [], [name for name in _MEASURES if any(name in each for each in found.values())]
    for task, clients, method in itertools.product(asked["task"], asked["clients"], asked["methods"]):
        own = [found[name] for seed in asked["seeds"] if (name := f"{task}/{method}/{clients}/{seed}") in found]
        if own:
            said = [_said(name, [each[name] for each in own if name in each]) for name in shown]
            rows.append((task, str(clients), method, *said))
    return table(("task", "clients", "trust", *(name.replace("_", " ") for name in shown)), rows)


def _said(measure: str, values: Sequence[float]) -> str:
    """The mean of a measure and what each seed came to; distances are small."""
    if not values:
        return ""
    digits = 5 if measure.startswith("sw2") else 3
    return f"{mean(values):.{digits}f} ({', '.join(f'{each:.{digits}f}' for each in values)})"


@house_style(formulas=True)
def draw(asked: Mapping[str, Any], found: Mapping[str, Any]) -> Figure:
    """Accuracy and the groups' difference over the number of clients: a line a trust model, a point a seed."""
    figure, panels = new_panels(2, len(asked["task"]), size=(8.4, 5.2), sharex=True)
    shown = list(itertools.product(("accuracy", "demographic_parity_difference"), asked["task"]))
    for axes, (measure, task) in zip(panels, shown, strict=True):
        for place, method in enumerate(asked["methods"]):
            runs = [
                (
                    clients,
                    [run[measure] for seed in asked["seeds"] if (run := _run(found, task, method, clients, seed))],
                )
                for clients in asked["clients"]
            ]
            look: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place]}
            axes.plot([each for each, own in runs if own], [mean(own) for _, own in runs if own], label=method, **look)
            for clients, own in runs:
                axes.plot([clients] * len(own), own, linestyle="none", alpha=0.35, **look)
        axes.set(title=f"{task}: {measure.replace('_', ' ')}", xscale="log")
        axes.set_xticks(asked["clients"], [str(each) for each in asked["clients"]], minor=False)
        axes.minorticks_off()
    for axes in panels[len(asked["task"]) :]:
        axes.set_xlabel("clients")
    panels[0].legend(loc="lower left")
    return figure


def _run(found: Mapping[str, Any], task: str, method: str, clients: int, seed: int) -> Any:
    return found.get(f"{task}/{method}/{clients}/{seed}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
