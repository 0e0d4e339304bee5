"""Which trust model, which command, and whether at all: five questions, and what follows from their answers.

The texts of the screen and of docs/choose.md are these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fedsw._tools.text import downward, table
from fedsw.experiment import ExperimentError, read_delta
from fedsw.experiment.sections import Privacy
from fedsw.experiment.trust import TrustModel, trust_models
from fedsw.privacy.mechanisms import gaussian_sigma

Sees = Literal["server", "masked", "nobody"]
Product = Literal["model", "table"]

QUESTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "sums": (
        "Who may see sums over the records before noise is added?",
        {
            "server": "one organisation runs the server, and everybody trusts it (and each other) to follow the "
            "protocol and to keep what it receives",
            "masked": "nobody; clients are few, stay up, exchange public keys, and all but one follow the protocol: "
            "only their noised sum is seen",
            "nobody": "nothing may leave a client without its own noise",
        },
    ),
    "counts": (
        "Can somebody watch the traffic, so that the number of records in each client's batch would be seen?",
        {"hidden": "no: the network hides sizes and times", "watched": "yes, or nobody knows"},
    ),
    "rows": (
        "How many rows has a person?",
        {"one": "one row each", "several": "several, and a column says whose a row is"},
    ),
    "product": (
        "What is to come out?",
        {
            "model": "a model that decides or predicts, equally well for the groups",
            "table": "a table of made-up rows for whatever analysis comes later",
        },
    ),
    "records": ("How many records (persons, where they have several rows) are there, and at how many clients?", {}),
}
"""What is asked, and the answers that there are, each with what it means."""

_CLEAR, _FELT = 60.0, 8.0
"""Strengths of the signal from which noise is small, and from which something is learnt; those of `fedsw plan`."""

WHEN_NOT: tuple[str, ...] = (
    "One organisation holds all records and there is no group to compare: train with Opacus, or with "
    "`fedsw.PrivateTrainer` on one machine; a federation brings nothing.",
    "Nothing leaves the organisation, neither model nor numbers: differential privacy protects against readers, and "
    "there are none. Use access control.",
    "The loss is a mean over records and nothing compares distributions (alpha = 0): larger frameworks do plain DP-SGD "
    "in a federation as well.",
    "Exact results are needed (a clinical trial's table, a balance sheet): noise is in everything that leaves here.",
    "There are fewer records than the line on data asks for: ask a smaller question (one proportion, one mean), share "
    "fewer columns, or let analysts come to the data.",
    "People are in several clients' data and this cannot be found out: each client's guarantee then holds for its own "
    "rows alone.",
)


@dataclass(frozen=True)
class Answers:
    """The five answers; what is left out is the cautious one, which trusts nobody and protects all rows of a person."""

    sums: Sees = "nobody"
    counts: Literal["hidden", "watched"] = "watched"
    rows: Literal["one", "several"] = "several"
    product: Product = "model"
    records: int = 1000
    clients: int = 4
    columns: int = 10
    epsilon: float = 1.0


@dataclass(frozen=True)
class Choice:
    """What follows: settings of the experiment, what ε covers and does not, whether the data are enough, in words."""

    trust: str
    settings: Mapping[str, str]
    commands: Sequence[str]
    protects: str
    does_not_protect: str
    enough_data: str
    strength: float

    def plain(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**asdict(self), "when_not_to_use_fedsw": list(WHEN_NOT)}


def choose(answers: Answers) -> Choice:
    """The trust model, settings and commands that follow from the answers, and whether the data are enough."""
    if answers.sums == "masked" and answers.clients < 2:
        raise ExperimentError("masked sums hide clients among each other, and there is 1: say --sums nobody, or server")
    trust = _fitting(answers.sums, answers.product)
    settings = {"privacy.trust": trust.name, "privacy.epsilon": downward(answers.epsilon, 6)}
    if answers.counts == "watched" and trust.gradients and not trust.local:
        settings["privacy.sampling"] = "stratified"
    if answers.rows == "several":
        settings["data.unit"] = "COLUMN"
    covers, strength = trust.covers, strength_of(answers)
    if answers.rows == "several":
        covers = covers.replace("every record", "all records of a person at one client together", 1)
    commands = _commands(answers, settings)
    return Choice(trust.name, settings, commands, covers, trust.uncovered, _enough(strength), strength)


def _fitting(sums: Sees, product: Product) -> TrustModel:
    """The first trust model that hides sums from whom they are to be hidden, and gives what is to come out."""
    return next(
        model
        for registered in trust_models().values()
        for model in (registered, registered.sketching)
        if model is not None
        and model.noised
        and model.masked == (sums == "masked")
        and model.local == (sums != "server")
        and (model.sketched if product == "table" else model.gradients and not model.sketched)
    )


def strength_of(answers: Answers) -> float:
    """How far the signal can stand out of the noise: n / (multiplier * sqrt(columns * parts)).

    The multiplier is that of one release that spends all of ε at δ = "auto"; parts are the clients where each adds its
    own noise, m / (m - 1) of m whose sums are masked, one of whom may know its own share, and 1 at a server.
    """
    multiplier = gaussian_sigma(answers.epsilon, read_delta("auto", records=answers.records), 1.0)
    clients = answers.clients
    parts = {"server": 1.0, "masked": clients / max(1, clients - 1), "nobody": float(clients)}[answers.sums]
    return answers.records / (multiplier * math.sqrt((answers.columns + 1) * parts))


def _commands(answers: Answers, settings: Mapping[str, str]) -> list[str]:
    changes = " ".join(
        f"{key}={value}" for key, value in settings.items() if key in ("privacy.trust", "privacy.sampling")
    )
    person = " --unit COLUMN" if answers.rows == "several" else ""
    draft = f"fedsw init DATA --group COLUMN --target COLUMN{person} -o own.toml"
    epsilon = downward(answers.epsilon, 6)
    if answers.product == "table":
        trust = f"--trust {settings['privacy.trust']} --epsilon {epsilon}"
        made = f"fedsw synthesize own.toml --data-dir DATA {trust} -o made.csv"
        return [draft, "fedsw check own.toml --data-dir DATA", made]
    default = settings["privacy.trust"] == Privacy.model_fields["trust"].default
    source = "own.toml" if default and "privacy.sampling" not in settings else f"own.toml {changes}"
    return [
        draft,
        "fedsw check own.toml --data-dir DATA",
        f"fedsw plan {source} --data-dir DATA --epsilon {epsilon}",
        f"fedsw run {source} --data-dir DATA --epsilon {epsilon}",
    ]


def _enough(strength: float) -> str:
    ratio = f"the signal can be {strength:,.0f} times the noise at most"
    if strength >= _CLEAR:
        return f"probably enough: {ratio}; `fedsw plan` tries it on public twins"
    if strength >= _FELT:
        return f"noise will be felt: {ratio}; `fedsw plan` says how much is left"
    return f"not enough: {ratio}, and {_FELT:g} times is the least from which something is learnt"


MEASURED: tuple[tuple[str, str, str, str, str], ...] = (
    ("million-rows", "800,000", "+0.0", "-0.0", "-0.0"),
    ("adult", "33,916", "+0.8", "+0.2", "+0.0"),
    ("law-school", "15,388", "+0.9", "+0.7", "+0.2"),
    ("communities", "1,396", "+32.6", "+10.6", "+3.3"),
    ("breast-cancer", "427", "+23.0", "+14.1", "+2.3"),
    ("wine", "134", "+53.0", "+42.4", "+1.5"),
)
"""Points lost on public data sets at ε = 0.5, 1 and 4; the rows of docs/own-data-results.md, which a test compares."""

_MORE = """\
- More than one client may side with the server: `local.colluding` says how many.
- A person has several rows: `--unit` names the column that says
  [whose a row is](data.md#whose-privacy-several-rows-of-a-person)."""


def page() -> str:
    """The decision page of the documentation."""
    parts = [
        "# Is it for you?",
        "For whoever has records and must decide whether fedsw fits. `fedsw choose` asks the five questions below and "
        "says what to type; this page is its text (`fedsw choose --page`).",
        "## When not to use it",
        "\n".join(f"- {reason}" for reason in WHEN_NOT),
        "## Have I enough data?",
        _enough_page(),
        "## Which trust model? Five questions",
    ]
    for count, (question, answers) in enumerate(QUESTIONS.values(), start=1):
        meanings = "".join(f"\n   - `{name}`: {meaning}" for name, meaning in answers.items())
        parts.append(f"{count}. **{question}**{meanings}")
    parts.append(
        "What nobody answers is taken as cautiously as can be (`nobody`, `watched`, `several`), and listed as assumed."
    )
    rows = []
    for product, sums in itertools.product(get_args(Product), get_args(Sees)):
        trust = _fitting(sums, product)
        linked = f"[`{trust.name}`](threat-models.md#{trust.name})"
        rows.append([f"`{sums}`", f"`{product}`", linked, trust.covers, trust.uncovered])
    parts.append(table(["1. sums", "4. product", "trust model", "ε protects", "it does not protect"], rows))
    parts.append(_MORE)
    return "\n\n".join(parts) + "\n"


def _enough_page() -> str:
    sizes, rows = (300, 3000, 30_000, 300_000), []
    for sums, clients in (("server", 10), ("masked", 10), ("nobody", 2), ("nobody", 10), ("nobody", 100)):
        strengths = [strength_of(Answers(sums=sums, records=size, clients=clients)) for size in sizes]  # type: ignore[arg-type]
        who = {"server": "a server adds it", "masked": f"{clients} clients add it together, masked"}.get(
            sums, f"{clients} clients add it, each its own"
        )
        words = (
            "(probably)" if strength >= _CLEAR else "(felt)" if strength >= _FELT else "(not enough)"
            for strength in strengths
        )
        rows.append([who, *(f"{strength:,.0f} {word}" for strength, word in zip(strengths, words, strict=True))])
    headings = ["noise", *(f"n = {size:,}" for size in sizes)]
    measured = table(["data", "records", "ε = 0.5", "ε = 1", "ε = 4"], MEASURED)
    return (
        "Points of accuracy that privacy took on public data, of a linear model with a trusted server and nothing but "
        "columns, bounds and ε declared (of R² where a number is predicted; "
        f"[how it was measured](own-data-results.md)):\n\n{measured}\n\n"
        "Before there are data: how many times the noise the signal can be at most, for "
        f"{Answers().columns} columns at ε = 1. From {_CLEAR:g} on noise is small; below "
        f"{_FELT:g} nothing is learnt. Twice the ε is about twice the ratio, four times the columns half of it.\n\n"
        f"{table(headings, rows)}\n\n"
        "`fedsw plan` says more, from [public twins of your columns](plan.md), at no cost in privacy."
    )
