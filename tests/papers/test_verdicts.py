"""A paper's page begins with a verdict for every claim, is short, and says nothing twice."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from fedsw.experiment import ExperimentError
from fedsw.runs.report.figures import house_style
from simulations.papers import statements
from simulations.papers.drawn.verdicts import by_paper
from simulations.papers.figure import chosen, figures
from simulations.papers.study import Study
from simulations.papers.verdicts import CLAIMS, VERDICTS, WORDS, Page, anchor, counted, load_page, verdicts
from tests.site.pages import BUILT, built

ROOT = Path(__file__).parents[2]
PAPERS = sorted({name.partition("/")[0] for name in figures()})
MOST_WORDS = {"rll": 4520, "rr": 1720, "spf": 1700, "rco": 1650}
"""Of a page, counted as `wc -w` counts; of the others 1500."""
FEWEST = {"rll": 40, "rr": 14, "spf": 10, "rco": 15, "sketches": 3}
TEXTS = Path(os.environ.get("FEDSW_PAPERS", ROOT.parent / "shared" / "papers"))


def page(paper: str) -> str:
    return built(f"docs/papers/{paper}.md")


def test_every_paper_has_claims_and_no_claims_are_of_no_paper() -> None:
    assert sorted(path.stem for path in CLAIMS.glob("*.toml")) == PAPERS


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_begins_with_a_verdict_as_printed_and_as_corrected_for_every_claim(paper: str) -> None:
    title, table = page(paper).split("\n\n")[:2]
    assert title.startswith("# ")
    lines = table.splitlines()
    assert lines[0] == "|where|claim|as printed|as corrected|why|"
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]
    assert len(cells) >= FEWEST[paper]
    for where, claim, verdict, corrected, why in cells:
        assert verdict.strip() in {f"*{words}*" for words in WORDS.values()}
        assert corrected.strip() in ("", "*holds*", "*fails*") and not (corrected.strip() and verdict == "*holds*")
        assert where.strip() and claim.strip().endswith(".") and why.strip().endswith((".", ".)"))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_with_results_has_a_verdict_that_links_to_it(paper: str) -> None:
    table = page(paper).split("\n\n")[1]
    for figure in chosen([paper]):
        assert f"](#{anchor(figure.id)})" in table, figure.id
        assert f'<a id="{anchor(figure.id)}"></a>' in page(paper)


@pytest.mark.parametrize("paper", statements.PAPERS)
def test_every_numbered_statement_has_one_verdict_or_a_reason_why_it_has_none(paper: str) -> None:
    """Statements in parts have a verdict for each part, which the row names."""
    written = load_page(paper)
    rows = [claim.where for claim in written.claims if "(ours)" not in claim.claim]
    judged = [label for where in rows for label in statements.named(where)]
    unsaid = [label for each in written.unsaid for label in statements.named(each.where)]
    assert sorted({*judged, *unsaid}) == sorted(statements.committed()[paper])
    assert not set(judged) & set(unsaid) and len(set(unsaid)) == len(unsaid)
    assert len(set(rows)) == len(rows)
    whole = Counter(label for where in rows for label in statements.named(where) if label == where)
    assert all(judged.count(label) == 1 for label in whole), "a verdict of the whole, and others of parts"
    listed = {label for item in written.not_reproduced for label in statements.named(item)}
    untested = [statements.named(claim.where) for claim in written.claims if claim.verdict == "not tested"]
    assert not [labels for labels in untested if not {*labels} & listed]
    assert "\n## Not reproduced\n\n- " in page(paper) and "\n## Without a verdict\n\n- " in page(paper)


@pytest.mark.parametrize(("older", "paper"), statements.OLDER.items())
def test_every_statement_of_an_earlier_version_is_one_of_the_newer_one(older: str, paper: str) -> None:
    rows = load_page(paper).older
    there = [label for row in rows for label in statements.named(row.where)]
    assert sorted(there) == sorted(statements.committed()[older])
    assert all(set(statements.named(row.here or row.where)) <= set(statements.committed()[paper]) for row in rows)


@pytest.mark.skipif(not TEXTS.is_dir(), reason="the papers' texts are not at hand: FEDSW_PAPERS=folder")
@pytest.mark.parametrize("paper", (*statements.PAPERS, *statements.OLDER))
def test_the_list_of_statements_is_what_the_papers_text_has(paper: str) -> None:
    assert statements.labels((TEXTS / f"{paper}.txt").read_text(encoding="utf-8")) == statements.committed()[paper]


def test_a_row_names_statements_one_by_one_and_from_one_to_another() -> None:
    assert statements.named("Theorems 1, 3 to 5 (existence), (14)")[2:] == ["Theorem 4", "Theorem 5", "(14)"]
    assert statements.named("Corollaries 1 and 2; (16) to (18)")[1:] == ["Corollary 2", "(16)", "(17)", "(18)"]
    assert statements.named("Section 4, Table 1, ε = 10; Appendix D.1") == ["Table 1", "Appendix D.1"]
    text = "Theorem 2. By\nProposition 5.1.7 of others\n$$x \\tag{1}$$\ny (2)\nA Proof of it\ngenProperty 3. Z\n"
    assert statements.labels(text) == ["Property 3", "Theorem 2", "(1)", "(2)", "Appendix A"]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_is_short_and_has_no_paragraph_twice(paper: str) -> None:
    text = page(paper)
    assert len(text.split()) <= MOST_WORDS.get(paper, 1500)
    paragraphs = [part for part in text.split("\n\n") if len(part.split()) > 8]
    assert len(set(paragraphs)) == len(paragraphs)


@pytest.mark.parametrize("paper", PAPERS)
def test_links_between_pages_lead_somewhere(paper: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page(paper)):
        assert f"docs/papers/{target}" in BUILT or (ROOT / "docs" / "papers" / target).exists(), target


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_of_a_committed_verdict_was_measured(paper: str) -> None:
    text = page(paper)
    for claim in load_page(paper).claims:
        written = re.search(re.sub(r"\\\{\w+\\\}", "(.+?)", re.escape(claim.reason)) + r"\|$", text, flags=re.MULTILINE)
        assert written is not None, claim.where
        assert "–" not in written.groups(), claim.where


def tabulated() -> dict[str, dict[str, int]]:
    """How many claims have each verdict by the committed pages' tables, this project's own by themselves."""
    found: dict[str, dict[str, int]] = {}
    for paper in PAPERS:
        for line in page(paper).split("\n\n")[1].splitlines()[2:]:
            whose = "ours" if paper == "sketches" or "(ours)" in line.split("|")[2] else paper
            verdict = next(name for name, words in WORDS.items() if f"*{words}*" == line.split("|")[3])
            counts = found.setdefault(whose, dict.fromkeys(VERDICTS, 0))
            counts[verdict] += 1
    return found


def test_the_figure_of_claims_has_the_numbers_of_the_pages_tables() -> None:
    assert counted() == tabulated()
    with house_style():
        (axes,) = by_paper(counted()).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(paper.upper() for paper in counted() if paper != "ours"), "our own, beside"]
    for verdict, bars in zip(VERDICTS, axes.containers, strict=True):
        assert [bar.get_width() for bar in bars] == [tabulated()[paper][verdict] for paper in counted()]
    assert (ROOT / "docs" / "papers" / "images" / "claims.png").is_file()


def test_a_verdict_names_a_number_that_there_is() -> None:
    claim = {"where": "Figure 1", "claim": "It falls.", "verdict": "holds", "reason": "To {low}.", "figure": "rr/fig1"}
    (figure,) = chosen(["rr/fig1"])
    studies = {"rr/fig1": Study(figure, (), 1)}
    good = Page.model_validate({"title": "T", "about": "", "claims": [claim | {"reason": "It does."}]})
    assert "| [Figure 1](#rr-fig1) | It falls. | *holds* |  | It does. |" in verdicts(good, studies)
    missing = claim | {"numbers": {"low": ("rr/fig1", "mean (k/d)", "computed")}}
    known = Page.model_validate({"title": "T", "about": "", "claims": [missing]})
    assert "| *holds* |  | To –. |" in verdicts(known, studies)  # as in a quick run of another figure
    with pytest.raises(ExperimentError, match="Figure 1: no number of 'computed' in row"):
        verdicts(known, {"rr/fig1": Study(figure, (), 0)})
    bad = claim | {"numbers": {"low": ("rr/fig1", "median", "computed")}}
    with pytest.raises(ExperimentError, match="Figure 1: no number of 'computed' in row 'median'"):
        verdicts(Page.model_validate({"title": "T", "about": "", "claims": [bad]}), studies)
    with pytest.raises(ValueError, match="holds"):
        Page.model_validate({"title": "T", "about": "", "claims": [claim | {"verdict": "mostly"}]})
