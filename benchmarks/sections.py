"""Sections of the pages of results about local methods, generators, noise and real processes, from their JSON."""

from __future__ import annotations

import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.image_classifiers import PRINTED
from fedsw._tools import text
from fedsw._tools.text import upward
from fedsw.privacy.relations import ADD_OR_REMOVE

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def comparison(stored: dict[str, Any]) -> str:
    """A table of `fedsw compare`, group by group."""
    names = stored["metrics"]
    lines = [
        f"\n## Methods compared: {stored['task']}\n",
        f"`{_command(stored)}`. Rows are comparable within a group only: each group is another guarantee. Mean ± standard deviation over seeds; secret sampling and noise; settings of the comparison's file.\n",
    ]
    for group in stored["groups"]:
        rows = []
        for row in group["rows"]:
            measured = [_mean(row["metrics"].get(name)) for name in names]
            epsilon, delta = upward(row["epsilon"]), upward(row["delta"], 2)
            traffic = [f"{row['bytes_up'] / 1e6:.1f}", f"{row['bytes_down'] / 1e6:.1f}"]
            seconds = f"{row['seconds']:.0f}"
            rows.append([row["method"], epsilon, delta, *measured, row["rounds"], *traffic, seconds, row["seeds"]])
        headings = ("method", "ε", "δ", *names, "rounds", "MB up", "MB down", "seconds", "seeds")
        lines += [f"\n**{group['heading']}**\n", text.table(headings, rows)]
    for picture in sorted(IMAGES.glob(f"compare-{stored['task']}*.png")):
        lines.append(f"\n![{stored['task']}](../images/{picture.name})")
    return "\n".join(lines) + f"\n\n*{'; '.join([*_machines(stored), stored['date']])}.*"


_GOALS_OF_IMAGES = {
    ("mnist", False): {10.0: 0.988, 3.0: 0.983, 1.0: 0.975},
    ("mnist", True): {3.0: 0.987},
    ("fashion-mnist", False): {10.0: 0.895, 3.0: 0.885, 1.0: 0.865},
    ("fashion-mnist", True): {3.0: 0.897},
}
"""By data, and whether records are added or removed."""


def image_classifiers(stored: dict[str, Any]) -> str:
    """Private classifiers of images, beside what others print."""
    rows = []
    for name in dict.fromkeys(row["data"] for row in stored["rows"]):
        for orders in (2, 1):
            of_set = [row for row in stored["rows"] if (row["data"], row.get("orders", 2)) == (name, orders)]
            for added in (False, True):
                alike = [row for row in of_set if (row["relation"] == ADD_OR_REMOVE) == added]
                if alike:
                    rows.append(_classified(name, orders, added, alike, _accuracies(of_set, None)))
    for other in PRINTED:
        for name, by in other["accuracy"].items():
            cells = [f"{by[key]:.3f}" if key in by else "–" for key in ("10", "3", "1")]
            rows.append((other["method"], name, other["relation"], *cells, "–", "–", "–", ""))
    headings = (
        "method", "data", "neighbours", "ε = 10", "ε = 3", "ε = 1", "without noise", "constant",
        "processor seconds (goal: 240)", "goals; where missed, what noise takes",
    )  # fmt: skip
    return "\n".join(
        [
            "\n## Images, classified\n",
            "`python -m benchmarks.image_classifiers`: `image-classifier`, δ = 1e-5; nominal; mean ± deviation (seeds). "
            "Settings were chosen on USPS's held-out images, whose rows are flattered; prototypes had been scored on the "
            "others. Add/remove neighbours are easier: ε = 3 there is 6.7 by replacement.\n",
            text.table(headings, rows),
        ]
    )


def _accuracies(alike: Sequence[dict[str, Any]], epsilon: float | None) -> list[float]:
    return [row["accuracy"] for row in alike if row["epsilon"] == epsilon]


def _classified(
    name: str, orders: int, added: bool, alike: Sequence[dict[str, Any]], noiseless: Sequence[float]
) -> tuple[str, ...]:
    """The table's row of one data set, number of orders and relation."""
    cells = [_several(values) if (values := _accuracies(alike, each)) else "–" for each in (10.0, 3.0, 1.0, None)]
    method = "fedsw" if orders == 2 else "fedsw, first order alone"
    seconds = max(row["processor_seconds"] for row in alike)
    relation = "add/remove of one record" if added else "replacement"
    goals = _goals_of(name, added, alike, noiseless) if orders == 2 else ""
    return method, name, relation, *cells, f"{alike[0]['constant']:.4f}", f"{seconds:.0f}", goals


def _goals_of(name: str, added: bool, alike: Sequence[dict[str, Any]], noiseless: Sequence[float]) -> str:
    said = []
    for epsilon, goal in _GOALS_OF_IMAGES.get((name, added), {}).items():
        mean = statistics.mean(_accuracies(alike, epsilon))
        missed = f"MISSED ({statistics.mean(noiseless) - mean:.4f})" if noiseless else "MISSED"
        said.append(f"ε = {upward(epsilon)}: {goal:g} {'met' if mean >= goal else missed}")
    return "; ".join(said)


def startup(stored: dict[str, Any]) -> str:
    """Seconds that a verb takes from the shell."""
    rows = []
    for row in stored["rows"]:
        least, limit = row["processor"]["least"], row["limit"]
        met = "" if limit is None else "yes" if least <= limit else "**no**"
        goal = "" if limit is None else f"{limit:g}"
        rows.append((f"`{row['command']}`", f"{least:.2f}", f"{row['processor']['median']:.2f}", goal, met))
    return "\n".join(
        [
            "\n## Start-up\n",
            f"`python -m benchmarks.startup`: processor seconds of {stored['repeats']} fresh processes each. "
            "A run and a plan cannot do without `import torch`. A plan then trains some 34 models of 50 steps on public twins, and 16 "
            "by cross-validation without noise: its answers are these models'. A report replays the ledger and draws four pictures, "
            "which takes matplotlib's import and as long again. Beside other work all rows take longer, as `import torch` does: its "
            "least here is what to compare with.\n",
            text.table(("command", "least", "median", "at most", "met by the least"), rows),
        ]
    )


def deployed(stored: dict[str, Any]) -> str:
    """Exchanges of real processes."""
    names = {"deployed": "warm executor", "deployed-stock": "stock Flower: a process for every message"}
    rows = [
        (
            names.get(run["engine"], run["engine"]),
            run["rounds"],
            f"{run['whole_s'] / 60:.1f}",
            f"{run['exchange_median_s']:.2f}",
            f"{run['rounds_500_minutes']:.1f}",
            f"{run['load_before']:.1f}",
        )
        for run in stored["runs"]
    ]
    headings = (
        "client processes", "rounds measured", "minutes", "seconds an exchange (median)", "500 rounds, minutes",
        "load of the machine",
    )  # fmt: skip
    return "\n".join(
        [
            "\n## Real processes\n",
            f"`python -m benchmarks.deployed`: {stored['clients']} SuperNodes on loopback, TLS and authenticated nodes, torch "
            "imported, fair classification; minutes count start and stop, and 500 rounds are extrapolated from fewer.\n",
            text.table(headings, rows),
        ]
    )


def chaos(stored: dict[str, Any]) -> str:
    """Runs in one process that were broken on purpose."""
    rows = [
        (run["seed"], run["rounds"], sum(run["faults"].values()), run["lives"], f"{run['seconds']:.0f}")
        for run in stored["runs"]
    ]
    return "\n".join(
        [
            "\n## Chaos\n",
            "`python -m benchmarks.chaos --only inprocess`: five clients in one process, a random fault every ten rounds; "
            "every run ended with all rounds, and a ledger equal to its replay and to an independent witness.\n",
            text.table(("seed", "rounds", "faults", "processes of the server", "seconds"), rows),
        ]
    )


def chaos_deployed(stored: dict[str, Any]) -> str:
    """Runs of real processes that were killed, stopped and interrupted."""
    runs = stored["runs"]
    rows = [
        (
            run["seed"],
            run["rounds"],
            sum(run["blows"].values()),
            run["lives"],
            run["charges"],
            run["abandoned_attempts"],
            repr(run["epsilon"]),
            repr(run["epsilon_replayed"]),
            run["polls"],
            run["processes_left"],
            f"{run['seconds']:.0f}",
        )
        for run in runs
    ]
    headings = (
        "seed", "rounds", "injections", "processes of the run", "charges", "attempts without charge", "ε spent",
        "ε replayed", "polls", "processes left", "seconds",
    )  # fmt: skip
    counted = {
        "injection": "blows",
        "how far the run had come at the injection, by its files": "positions",
        "what an injection on nodes did": "effects",
        "how a process of the run ended before the last one": "ends",
    }
    return "\n".join(
        [
            "\n## Chaos on real processes\n",
            "`python -m benchmarks.chaos --only deployed`: a SuperLink with TLS, five SuperNodes with keys, three of which "
            "a round needs; a random injection every ten rounds. A run that stopped was resumed. Every run ended with all "
            "of its rounds; ε by the ledger, its replay, the summary and its rows alone is the same number to the last "
            "digit, and what was polled meanwhile never fell.\n",
            text.table(headings, rows),
            *("\n" + text.table((what, "times"), _counted(run[key] for run in runs)) for what, key in counted.items()),
        ]
    )


def chaos_masked(stored: dict[str, Any]) -> str:
    """Runs of masked sums in which sites were killed."""
    names = (
        "seed",
        "rounds",
        "blows",
        "lives",
        "attempts",
        "failed_attempts",
        "charges",
        "epsilon",
        "budget",
        "seconds",
    )
    headings = (
        "seed", "rounds", "sites killed", "processes of the run", "attempts", "failed attempts", "charges, all sites",
        "ε spent", "ε planned", "seconds",
    )  # fmt: skip
    rows = [
        [f"{run[name]:.4g}" if isinstance(run[name], float) else run[name] for name in names] for run in stored["runs"]
    ]
    return "\n".join(
        [
            "\n## Chaos under masks\n",
            "`python -m benchmarks.chaos --only masked`: trust `distributed` as above, one site killed in every tenth round. "
            "Every run ended with all of its rounds, with the same ε at every site, and no process left; failed attempts "
            "are charged.\n",
            text.table(headings, rows),
        ]
    )


def _counted(counts: Iterable[dict[str, int]]) -> list[tuple[str, int]]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))


def keep_comparison(folder: Path, results: Path) -> None:
    """Copy a comparison's table and figures to where the page is made from."""
    task = folder.parent.name
    shutil.copy(folder / "table.json", results / f"compare-{task}.json")
    for name in ("figure", "samples"):
        if (folder / f"{name}.png").is_file():
            shutil.copy(folder / f"{name}.png", IMAGES / f"compare-{task}-{name}.png")


def _command(stored: dict[str, Any]) -> str:
    """The command that makes a comparison's table."""
    budgets = ",".join(upward(epsilon, 6) for epsilon in stored["epsilons"])
    nominal = " --nominal" if stored["nominal"] else ""
    chosen = f"--methods {','.join(stored['methods'])} --epsilon {budgets} --seeds {stored['seeds']}{nominal}"
    return f"fedsw compare {stored['task']} {chosen}"


def _machines(stored: dict[str, Any]) -> list[str]:
    """Every machine that a comparison ran on, then every set of versions."""
    machines = [f"{each['machine']}, {each['cores']} cores, {each['device']}" for each in stored["hardware"]]
    versions = [", ".join(f"{name} {version}" for name, version in each.items()) for each in stored["versions"]]
    return [*machines, *versions]


def _mean(value: dict[str, Any] | None) -> str:
    if value is None or value["mean"] is None:
        return "–"
    return f"{value['mean']:.4f}" + (f" ± {value['sd']:.4f}" if value["sd"] is not None else "")


def _several(values: Sequence[float]) -> str:
    return f"{_spread(values, 4)} ({len(values)})" if len(values) > 1 else f"{values[0]:.4f}"


def _spread(values: Sequence[float], digits: int) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"
