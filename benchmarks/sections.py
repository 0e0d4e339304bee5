"""Sections of the pages of results about models, generators, start-up and real processes, from their JSON."""

from __future__ import annotations

import math
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
        goal = "" if limit is None else f"{limit:.3g}"
        rows.append((f"`{row['command']}`", f"{least:.2f}", f"{row['processor']['median']:.2f}", goal, met))
    return "\n".join(
        [
            "\n## Start-up\n",
            f"`python -m benchmarks.startup`: processor seconds of {stored['repeats']} fresh processes each. "
            "A run and a plan cannot do without `import torch`. A plan then trains some 35 models of 50 steps on public twins, and 20 "
            "by cross-validation without noise: its answers are these models'. It is to take at most the run's least, which is measured in "
            "turns with it. A report replays the ledger and draws four pictures, "
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


def chaos_deployed(stored: dict[str, Any]) -> str:
    """Runs of real processes that were killed, stopped and interrupted."""
    columns = {
        "seed": "seed", "rounds": "rounds", "injections": "blows", "processes of the run": "lives",
        "charges": "charges", "attempts without charge": "abandoned_attempts", "ε spent": "epsilon",
        "ε replayed": "epsilon_replayed", "polls": "polls", "processes left": "processes_left", "seconds": "seconds",
    }  # fmt: skip
    counted = {
        "injection": "blows",
        "how far the run had come at the injection, by its files": "positions",
        "what an injection on nodes did": "effects",
        "how a process of the run ended before the last one": "ends",
    }
    about = (
        "`python -m benchmarks.chaos --only deployed`: a SuperLink with TLS, five SuperNodes with keys, three of which "
        "a round needs; a random injection every ten rounds. A run that stopped was resumed. Every run ended with all "
        "of its rounds; ε by the ledger, its replay, the summary and its rows alone is the same number to the last "
        "digit, and what was polled meanwhile never fell."
    )
    times = [
        "\n" + text.table((what, "times"), _counted(r[key] for r in stored["runs"])) for what, key in counted.items()
    ]
    return "\n".join([_chaos("Chaos on real processes", about, columns, stored["runs"]), *times])


def chaos_masked(stored: dict[str, Any]) -> str:
    """Runs of masked sums in which sites were killed."""
    columns = {
        "seed": "seed", "rounds": "rounds", "sites killed": "blows", "processes of the run": "lives",
        "attempts": "attempts", "failed attempts": "failed_attempts", "charges, all sites": "charges",
        "ε spent": "epsilon", "ε planned": "budget", "seconds": "seconds",
    }  # fmt: skip
    about = (
        "`python -m benchmarks.chaos --only masked`: trust `distributed` as above, one site killed in every tenth round. "
        "Every run ended with all of its rounds, with the same ε at every site, and no process left; failed attempts "
        "are charged."
    )
    return _chaos("Chaos under masks", about, columns, stored["runs"])


def _chaos(title: str, about: str, columns: Mapping[str, str], runs: Sequence[dict[str, Any]]) -> str:
    def cell(key: str, value: Any) -> Any:
        value = sum(value.values()) if isinstance(value, dict) else value
        if key == "seconds":
            return f"{value:.0f}"
        return repr(value) if key.startswith("epsilon") else f"{value:.4g}" if isinstance(value, float) else value

    rows = [[cell(key, run[key]) for key in columns.values()] for run in runs]
    return "\n".join([f"\n## {title}\n", f"{about}\n", text.table(tuple(columns), rows)])


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


_TABLES = {
    "adult": (
        "Synthetic tables of Adult",
        "33 916 private records, 9 306 tested on, 2 000 others public: numbers are cut at their quantiles for every method. "
        "Our network's settings were chosen on the first seed **by these scores**.",
    ),
    "communities": (
        "Synthetic tables of census figures",
        "1 396 communities (Communities and Crime), 598 tested on: eight census figures in eight equal bins, the group, and "
        "whether violent crimes are above the documented median. No setting was chosen on it.",
    ),
}
_LEARNT = {
    "constant": "a constant: the class that most have",
    "real": "the real records",
    "sketch": "`sketch`: the server is trusted",
    "sketch-local": "`sketch-local`: ten clients that trust nobody",
    "mst": "MST",
    "aim": "AIM",
}
_RELATION = {"add-remove": "added or removed", "replace": "replaced"}
_SHIPPED = ["generator=auto"]
"""The settings of `fedsw synthesize`."""
_BELOW = -1e-3
"""A distance, noise taken off, that tells of noise that was learnt."""
_Key = tuple[int, str, float | None, tuple[str, ...], str]
"""Public records, method, epsilon, settings and relation."""
_MEASURED = {
    "logistic_accuracy": "logistic: accuracy",
    "logistic_auc": "logistic: AUC",
    "boosting_accuracy": "boosting: accuracy",
    "boosting_auc": "boosting: AUC",
    "one_way": "one-way",
    "two_way": "two-way",
}


def synthetic_tables(stored: dict[str, Any]) -> str:
    """What classifiers learn from synthetic tables and how far their marginals are from real ones, table by table."""
    return SYNTHETIC_TABLES.format(theirs=_settings(stored["rows"])) + "\n".join(
        _of_table(title, about, [row for row in stored["rows"] if row["table"] == name])
        for name, (title, about) in _TABLES.items()
        if any(row["table"] == name for row in stored["rows"])
    )


def _of_table(title: str, about: str, rows: Sequence[dict[str, Any]]) -> str:
    public = next((row["public"] for row in rows if row["method"] == "constant"), 0)
    own = [
        row for row in rows if row["public"] == public and (row["method"] != "sketch" or row["settings"] == _SHIPPED)
    ]
    groups, others = _alike(own), _alike([row for row in rows if row not in own])
    whole = [(key, found) for key, found in groups if "stopped_after_minutes" not in found[0]]
    lines = [_line(*pair, public) for pair in sorted(whole, key=lambda pair: pair[0][2] or 0.0)]
    headings = ("learnt from", "a record is", "ε", *_MEASURED.values(), "processor seconds", "seeds")
    return "\n".join(
        [
            f"\n### {title}\n",
            f"{about}\n",
            text.table(headings, lines),
            _beside(whole),
            *(f"\n{sentence}" for sentence in [*_goals(title, whole), *_overfitted(whole), *_missing(groups)]),
            *(
                f"\n{_named(key, public)}, {_RELATION[key[4]]}, ε = {text.upward(key[2])}: did not end within {each['stopped_after_minutes']:g} minutes."
                for key, found in groups
                for each in found
                if "stopped_after_minutes" in each
            ),
            *(
                ["\nOther settings of ours:\n"] + [text.table(headings, [_line(*pair, public) for pair in others])]
                if others
                else []
            ),
            "",
        ]
    )


SYNTHETIC_TABLES = """
## Synthetic tables

`python -m benchmarks.synthetic_tables`: δ = 1e-9, nominal. Classifiers learn from as many made-up rows as there are private records, and are tested on real ones. One-way and two-way are
mean total variations to these; those of real records are sampling's.

MST and AIM are their authors' programs (github.com/ryan112358/mbi) on the same columns and bins, ρ by their own `cdp_rho`. There a record is *added or removed*; ours is
*replaced*. Where theirs is *replaced*, ρ is divided by 2.2 (AIM) or 8/3 (MST). {theirs}
"""
"""How both tables were measured."""


def _settings(rows: Sequence[dict[str, Any]]) -> str:
    """What AIM ran with, and by which versions."""
    measured = [row for row in rows if row["method"] in ("aim", "mst") and "rho" in row]
    if not measured:
        return "MST and AIM were not run."
    changed = sorted({setting for row in measured if row["method"] == "aim" for setting in row["settings"]})
    named = f", but {', '.join(changed)}, so that it ends" if changed else ""
    commits = ", ".join(sorted({row["commit"] for row in measured}))
    versions = ", ".join(f"{name} {version}" for name, version in measured[-1]["versions"].items())
    return f"AIM's settings are its program's{named}. Commit {commits}; {versions}."


_GOALS = {"logistic_accuracy": 0.838, "logistic_auc": 0.888, "boosting_accuracy": 0.855, "boosting_auc": 0.912}
"""Of Adult at epsilon = 1."""


def _goals(title: str, groups: Sequence[tuple[_Key, list[dict[str, Any]]]]) -> list[str]:
    """Which goals of Adult are met by the mean."""
    if title != _TABLES["adult"][0]:
        return []
    rows = [row for key, found in groups if key[1:4] == ("sketch", 1.0, tuple(_SHIPPED)) for row in found]
    if not rows:
        return []
    said = []
    for name, goal in _GOALS.items():
        mean = statistics.mean(row[name] for row in rows)
        said.append(f"{_MEASURED[name]} {goal:g} {'met' if mean >= goal else 'MISSED'}")
    return [f"Goals of `sketch` at ε = 1: {', '.join(said)}."]


def _beside(groups: Sequence[tuple[_Key, list[dict[str, Any]]]]) -> str:
    """By how much the mean of ours is above each other method's at every epsilon; bold where ours is behind."""
    lines = []
    ours = {key[2]: rows for key, rows in groups if key[1] == "sketch" and list(key[3]) == _SHIPPED}
    for (_, method, epsilon, _, relation), rows in groups:
        if method not in ("mst", "aim") or epsilon not in ours:
            continue
        cells = []
        for name in _MEASURED:
            gain = statistics.mean(row[name] for row in ours[epsilon]) - statistics.mean(row[name] for row in rows)
            ahead = (gain > 0) != (name in ("one_way", "two_way"))
            cells.append(f"{gain:+.3f}" if ahead else f"**{gain:+.3f}**")
        lines.append([_LEARNT[method], _RELATION[relation], text.upward(epsilon), *cells])
    if not lines:
        return ""
    headings = ("means of `sketch` less (**behind**)", "a record is", "ε", *_MEASURED.values())
    return "\n" + text.table(headings, lines)


def _overfitted(groups: Sequence[tuple[_Key, list[dict[str, Any]]]]) -> list[str]:
    """Where our generator is much nearer to its sketch than records are: it learnt the noise."""
    nearer = []
    for key, rows in groups:
        distances = [row["from"][row["from"]["kind"]] for row in rows if "from" in row]
        if distances and statistics.mean(distances) < _BELOW:
            nearer.append(f"{statistics.mean(distances):.2g} (`{key[1]}`, ε = {text.upward(key[2] or 0)})")
    if not nearer:
        return []
    return [
        f"The generator learnt noise: its squared distance to the sketch, noise taken off, is {', '.join(nearer)}; records' is 0."
    ]


def _missing(groups: Sequence[tuple[_Key, list[dict[str, Any]]]]) -> list[str]:
    """What was not measured at an epsilon of ours."""
    there = {(key[1], key[4], key[2]) for key, _ in groups}
    epsilons = sorted({key[2] or 0.0 for key, _ in groups if key[1] == "sketch"})
    lacking = [
        f"{_LEARNT[method]} ({word}) at ε = {text.upward(epsilon)}"
        for method in ("mst", "aim")
        for relation, word in _RELATION.items()
        for epsilon in epsilons
        if (method, relation, epsilon) not in there
    ]
    return [f"Not measured, for want of time: {', '.join(lacking)}."] if lacking else []


def _alike(rows: Sequence[dict[str, Any]]) -> list[tuple[_Key, list[dict[str, Any]]]]:
    """Rows that differ in their seed alone."""
    found: dict[_Key, list[dict[str, Any]]] = {}
    for method in _LEARNT:
        for row in rows:
            if row["method"] == method:
                shown = (row["public"], method, row.get("epsilon"), tuple(row["settings"]), row.get("relation", ""))
                found.setdefault(shown, []).append(row)
    return list(found.items())


def _named(key: _Key, usual: int) -> str:
    public, method, _, settings, _ = key
    shown = "" if method in ("mst", "aim") or list(settings) == _SHIPPED else ", ".join(settings)
    return "; ".join(filter(None, [_LEARNT[method], shown, "" if public == usual else "no public records"]))


def _line(key: _Key, found: Sequence[dict[str, Any]], usual: int) -> list[Any]:
    _, method, epsilon, _, relation = key
    measured = (_over([row[name] for row in found]) if name in found[0] else "–" for name in _MEASURED)
    about = _RELATION[relation] if relation else "" if epsilon is None else _RELATION["replace"]
    seconds = f"{statistics.mean(row['cpu_seconds'] for row in found):.0f}" if "cpu_seconds" in found[0] else ""
    return [_named(key, usual), about, "" if epsilon is None else text.upward(epsilon), *measured, seconds, len(found)]


_TRUSTED = {
    "central": "`sketch`: the server is trusted",
    "distributed": "`distributed`: masked sums, nobody is trusted",
    "sketch-local": "`sketch-local`: nobody is trusted, each noises its own",
}
LOST = 0.005
"""Most that masked sums are meant to lose to a trusted server, in every score."""


def federated_tables(stored: dict[str, Any]) -> str:
    """Scores of what is learnt from a synthetic table, by number of parties and trust model, and what masks lose."""
    rows, names = stored["rows"], [name for name in _MEASURED if name in stored["rows"][0]]
    masked, lines = dict[int, list[dict[str, Any]]](), []
    trusted = {row["seed"]: row for row in rows if row["trust"] == "central"}
    lines.append(["any", *_shown("central", list(trusted.values()), names, 1)])
    for parties in sorted({row["parties"] for row in rows}):
        for trust in ("distributed", "sketch-local"):
            if alike := [row for row in rows if (row["parties"], row["trust"]) == (parties, trust)]:
                lines.append([parties, *_shown(trust, alike, names, parties)])
                masked |= {parties: alike} if trust == "distributed" else {}
    headings = (
        "parties", "trust model", *(_MEASURED[name] for name in names), "σ of the sum", "MB up a party",
        "processor seconds, all parties", "seeds",
    )  # fmt: skip
    return "\n".join(
        [
            "\n## Synthetic tables of many parties\n",
            f"`python -m benchmarks.synthetic_tables.federated`: Adult as above, ε = {text.upward(stored['epsilon'])}; every masked party is a site, "
            "one may collude.\n",
            text.table(headings, lines),
            _lost(trusted, masked, names),
        ]
    )


def _shown(trust: str, rows: Sequence[dict[str, Any]], names: Sequence[str], senders: int) -> list[Any]:
    """Cells of a row of the table, but the number of parties."""
    noise, up, spent = (statistics.mean(row[name] for row in rows) for name in ("sigma", "megabytes_up", "cpu_seconds"))
    facts = (f"{noise:.1f}", f"{up / senders:.2f}", f"{spent:.0f}", len(rows))
    return [_TRUSTED[trust], *(_over([row[name] for row in rows]) for name in names), *facts]


def _lost(trusted: dict[int, dict[str, Any]], masked: dict[int, list[dict[str, Any]]], names: Sequence[str]) -> str:
    """Most that masks lose in any score, in the mean of the seeds that both trust models have."""
    most, fewest = dict[int, float](), math.inf
    for parties, rows in masked.items():
        if both := [(trusted[row["seed"]], row) for row in rows if row["seed"] in trusted]:
            most[parties] = max(statistics.mean(whole[name] - row[name] for whole, row in both) for name in names)
            fewest = min(fewest, len(both))
    if not most:
        return ""
    verdict = "met" if max(most.values()) <= LOST else "MISSED"
    said = ", ".join(f"{loss:.4f} at {parties}" for parties, loss in most.items())
    return f"\nMasks lose at most {LOST:g} of every score: {verdict} (seeds: {fewest}; most: {said})."


_GENERATORS = {
    "sketch": "one sketch: the server is trusted",
    "sketch-local": "one sketch of each client: nobody is trusted",
    "swae, as printed": "sliced-Wasserstein autoencoder (`rll/table1`), paper's settings",
    "swae, best": "sliced-Wasserstein autoencoder (`rll/table1`), best",
    "DP-SWD, as printed": "DP-SWD (`rr/table2`), paper's method",
    "DP-SWD, best": "DP-SWD (`rr/table2`), best",
}
FEWER = 20
"""Times less that a sketch is meant to take."""


def one_message(stored: dict[str, Any]) -> str:
    """Bytes and minutes of a sketch and of generators that are trained in rounds."""
    measured, rows, missed = stored["rows"], [], []
    sent = {name: row["bytes_up"]["planned"] + row["bytes_down"]["planned"] for name, row in measured.items()}
    spent = {name: row["seconds"]["planned"] / 60 for name, row in measured.items()}
    for name, title in _GENERATORS.items():
        if name not in measured:
            continue
        up, down = (measured[name][way]["planned"] / 1e6 for way in ("bytes_up", "bytes_down"))
        times = ["", ""]
        if not name.startswith("sketch"):
            ratios = [each[name] / each["sketch"] for each in (sent, spent)]
            times = [f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.1f}" for ratio in ratios]
            missed += [
                f"{title}, {shown} times the {what}"
                for what, ratio, shown in zip(("bytes", "minutes"), ratios, times, strict=True)
                if ratio < FEWER
            ]
        numbers = [f"{up:,.1f}", f"{down:,.1f}", f"{spent[name]:.0f}"]
        rows.append([title, measured[name]["rounds"], *numbers, *times])
    headings = (
        "generator", "rounds, or steps", "MB up", "MB down", "processor minutes", "bytes, times the first row's",
        "minutes, times the first row's",
    )  # fmt: skip
    verdict = "met in all rows" if not missed else f"MISSED beside {'; '.join(missed)}"
    return "\n".join(
        [
            "\n## One message beside rounds\n",
            f"`python -m benchmarks.one_message`: MNIST, {stored['clients']} clients, ε = 10; {stored['rounds']} rounds were measured "
            "and extrapolated to the table's. A round of a sketch is a step of its generator and "
            "sends nothing. Minutes of one thread, server and clients together.\n",
            text.table(headings, rows),
            f"\nGoal: a sketch takes at least {FEWER} times fewer bytes and minutes: {verdict}.",
        ]
    )


def _over(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"
