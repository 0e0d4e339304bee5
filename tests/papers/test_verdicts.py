"""A paper's page begins with a verdict for every claim, is short, and says nothing twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsw.experiment import ExperimentError
from fedsw.runs.report.figures import house_style
from simulations.papers.drawn.verdicts import by_paper
from simulations.papers.figure import chosen, figures
from simulations.papers.study import Study
from simulations.papers.verdicts import CLAIMS, VERDICTS, WORDS, Page, anchor, counted, load_page, verdicts
from tests.site.pages import BUILT, built

ROOT = Path(__file__).parents[2]
PAPERS = sorted({name.partition("/")[0] for name in figures()})
MOST_WORDS = {"rll": 4100, "rr": 1600}
"""Of a page, counted as `wc -w` counts; of the others 1500."""
FEWEST = {"rll": 40, "rr": 14, "spf": 10, "rco": 15, "sketches": 3}
THEOREMS = {
    "rll": "Lemma 2.3; Propositions 3.1, 3.2; Theorem 4.1; Theorem 6.1; D.1; Table 1; Table 2; Table 4; Table 5",
    "rr": "Remark 2; Section 3.1; Lemma 1; Lemma 2; Proposition 2; Property 1; Property 2; Table 1; Table 2; Figure 3",
    "spf": "Theorem 1; Theorems 1, 3 to 5; Theorems 2, 6; Proposition 1; Proposition 2; Section 4.1; (17), (18); (21); "
    "Lemma 1; Lemma 2; Table 1; Figure 2",
    "rco": "Lemma 5.1; Theorem 1 (i); Theorem 1 (ii); Theorem 2; Corollary 3; Corollaries 1 and 2",
}
"""What each page has a verdict of, beside its figures."""


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


@pytest.mark.parametrize("paper", sorted(THEOREMS))
def test_theorems_and_tables_that_were_unsaid_have_a_verdict(paper: str) -> None:
    where = " ".join(claim.where for claim in load_page(paper).claims)
    assert not [name for name in THEOREMS[paper].split("; ") if name not in where]
    assert load_page(paper).not_reproduced
    assert "\n## Not reproduced\n\n- " in page(paper)


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
