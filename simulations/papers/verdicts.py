"""What the papers claim, and what came of each claim here: the table that a page begins with."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from fedsw._tools.section import Section
from fedsw._tools.settings import explain_all
from fedsw._tools.text import table
from fedsw.experiment import ExperimentError
from simulations.papers.study import Measurement, Study, measured

CLAIMS = Path(__file__).parent / "claims"
"""A file for each page."""

Verdict = Literal["holds", "fails", "scrambled", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
WORDS: Mapping[Verdict, str] = {verdict: verdict for verdict in VERDICTS} | {"scrambled": "our copy is scrambled"}
"""What a page calls each verdict. Our copies are texts of PDF files: where a formula lost its form, nothing is held
against the paper."""


class Claim(Section):
    """One claim of a paper.

    Attributes:
        where: the figure, table or theorem, and which part of it where several claims share one.
        claim: what the paper says, in a sentence.
        verdict: whether it holds as printed.
        corrected: whether it holds as it must be meant, where that differs from what is printed and is known.
        reason: why the verdict is what it is, in a sentence; `{name}` stands for a number of `numbers`.
        numbers: measured values by name: the figure, what its row is called, the series; none is typed by hand.
        figure: the figure whose section has the runs; None for what has a proof or a computation elsewhere.
        link: a page for a claim without a figure, as `../guarantees/papers.md`.
    """

    where: str
    claim: str
    verdict: Verdict
    corrected: Literal["holds", "fails"] | None = None
    reason: str
    numbers: dict[str, tuple[str, str, str]] = {}
    figure: str | None = None
    link: str | None = None


class Unsaid(Section):
    """Numbered statements of a paper that have no verdict, and why: definitions, notation, what stands elsewhere."""

    where: str
    reason: str


class Older(Section):
    """Numbered statements of an earlier version, and the paper's that are theirs ``here``: the same if left out."""

    where: str
    here: str = ""


class Page(Section):
    """What a person writes of a page.

    Attributes:
        title: the paper.
        about: who compares with what, whose choice of settings, on which data, in a few lines.
        unsaid: numbered statements without a verdict, with why; `statements.json` lists all that a paper has.
        older: the statements of the paper's earlier version by those of this one.
        not_reproduced: what the paper has and this project has not, with why, an item each.
        notes: paragraphs after the tables, for what no figure has: what is known of the authors' code, for example.
    """

    title: str
    about: str
    claims: tuple[Claim, ...]
    unsaid: tuple[Unsaid, ...] = ()
    older: tuple[Older, ...] = ()
    not_reproduced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_page(paper: str) -> Page:
    """What is written of a paper; of a folder of one's own that nobody has written about, its name.

    Raises:
        ExperimentError: naming the file and the key, if it is not valid.
    """
    path = CLAIMS / f"{paper}.toml"
    if not path.exists():
        return Page(title=paper, about="", claims=())
    try:
        return Page.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as fault:
        raise ExperimentError(f"{path}: " + "\n".join(explain_all(fault.errors(), Page))) from None


def verdicts(page: Page, studies: Mapping[str, Study]) -> str:
    """The table of all claims, in Markdown.

    Raises:
        ExperimentError: if a claim names a figure or a row that there is not, or a number that all results do not give.
    """
    lines = [
        (
            _linked(claim, studies),
            claim.claim,
            f"*{WORDS[claim.verdict]}*",
            f"*{claim.corrected}*" if claim.corrected else "",
            _reason(claim, studies),
        )
        for claim in page.claims
    ]
    return table(("where", "claim", "as printed", "as corrected", "why"), lines)


OURS, _OWN = "ours", "(ours)"
"""Whose claims are this project's own, beside the papers': those that say so, and those of `sketches`."""


def counted() -> dict[str, dict[Verdict, int]]:
    """How many claims of each paper hold, fail and are not tested; this project's own are counted by themselves."""
    found: dict[str, Counter[Verdict]] = {}
    for paper in sorted(path.stem for path in CLAIMS.glob("*.toml")):
        for claim in load_page(paper).claims:
            whose = OURS if paper == "sketches" or _OWN in claim.claim else paper
            found.setdefault(whose, Counter())[claim.verdict] += 1
    names = sorted(found, key=lambda name: (name == OURS, name))
    return {name: {verdict: found[name][verdict] for verdict in VERDICTS} for name in names}


def _reason(claim: Claim, studies: Mapping[str, Study]) -> str:
    return claim.reason.format_map({name: str(_number(claim, at, studies)) for name, at in claim.numbers.items()})


def _number(claim: Claim, at: tuple[str, str, str], studies: Mapping[str, Study]) -> Measurement | str:
    """What was measured; a dash where a figure's results are missing, as those of a quick run of another figure are."""
    figure, what, series = at
    rows = [row for row in studies[figure].figure.rows if row.what == what] if figure in studies else []
    number = measured(studies[figure], rows[0], series) if rows else None
    if rows and number is None and (studies[figure].absent or studies[figure].figure.small):
        return "–"
    if number is None:
        raise ExperimentError(f"{claim.where}: no number of {series!r} in row {what!r} of {figure}")
    return number


def _linked(claim: Claim, studies: Mapping[str, Study]) -> str:
    """Where a claim is in the paper, with a link to where it is looked at here."""
    link = f"#{anchor(studies[claim.figure].figure.id)}" if claim.figure else claim.link
    return f"[{claim.where}]({link})" if link else claim.where


def anchor(figure: str) -> str:
    """What a figure's heading is found by on its page."""
    return figure.replace("/", "-")
