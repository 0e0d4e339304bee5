"""Every numbered statement of the papers, by its label: made from their texts, which are not committed; the list is.

python -m simulations.papers.statements FOLDER   # the papers' texts; writes statements.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

LIST = Path(__file__).parent / "statements.json"
"""Labels of each paper, as `Theorem 4.1`, `(12)` for an equation, `Appendix C.1`."""
PAPERS = ("rco", "rll", "rr", "spf")
OLDER = {"rll-icml": "rll"}
"""Earlier versions: statements of each are rows of the page of the newer one."""

_KINDS = "Definition|Lemma|Theorem|Corollary|Remark|Proposition|Property|Algorithm|Table|Figure"
# At the start of a line, or glued to the other column's last word; `Proposition 5.1.7` is another paper's.
_STATEMENT = re.compile(rf"(?:^[^\w\n]*|(?<=[a-z]))({_KINDS}) ((?:[A-G]\.)?\d+(?:\.\d+)?)(?![\d.]*\d)", re.MULTILINE)
_EQUATION = re.compile(r"\\tag\{(\d+)\}|\((\d{1,2})\)[\s\\,.$]*$", re.MULTILINE)
_APPENDIX = re.compile(
    r"^(?:#+ |Appendix )?(?:([A-G](?:\.\d+)?)\.? (?=[A-Z])|(5\.\d)\. )(?!I\b)[^\n]{4,90}$", re.MULTILINE
)
_NUMBER = r"(?:[A-G](?:\.\d+)?|\d+(?:\.\d+)?)"
_NAMED = re.compile(
    r"\b((?:Definition|Lemma|Theorem|Remark|Algorithm|Table|Figure|Proposition)s?|Corollar(?:y|ies)|Propert(?:y|ies)|"
    rf"Appendi(?:x|ces)) ({_NUMBER}(?:(?:,? and |, | to ){_NUMBER}(?![\w.]*\w))*)|\((\d\d?)\)(?: to \((\d\d?)\))?"
)
_SINGULAR = {"Corollaries": "Corollary", "Properties": "Property", "Appendices": "Appendix"}
_CONCLUSION = re.compile(r"^(?:#+ )?\d\.? conclusion", re.MULTILINE | re.IGNORECASE)


def labels(text: str) -> list[str]:
    """Labels of all statements in the text of a paper: a kind at a time, each in order."""
    statements = {f"{kind} {number}" for kind, number in _STATEMENT.findall(text)}
    numbers = {int(tag or end) for tag, end in _EQUATION.findall(text)}
    last = next(number for number in range(1, 100) if number + 1 not in numbers)
    numbered = "\n5. Appendix" in text  # where appendices have letters, 5.1 is a section
    found = _APPENDIX.findall(text)
    appendices = {f"Appendix {letter or number}" for letter, number in found if letter or numbered}
    conclusion = ["Conclusion"] if _CONCLUSION.search(text) else []
    equations = [f"({number})" for number in range(1, last + 1)]
    return [*_ordered(statements), *equations, *_ordered(appendices), *conclusion]


def named(where: str) -> list[str]:
    """Labels that a row's `where` names: `Theorems 1, 3 to 5 (existence), (14)` has five; a Section is no statement."""
    found = list[str]()
    for kind, numbers, first, last in _NAMED.findall(where):
        for number in re.findall(r"to (\d+)|([A-G]?[.\d]+|[A-G]\b)", numbers):
            begins = int(found[-1].rpartition(" ")[2]) + 1 if number[0] else 0
            several = range(begins, int(number[0]) + 1) if number[0] else [number[1]]
            found += [f"{_SINGULAR.get(kind, kind.removesuffix('s'))} {each}" for each in several]
        if first:
            found += [f"({each})" for each in range(int(first), int(last or first) + 1)]
    return found + ["Conclusion"] * ("Conclusion" in where)


def committed() -> dict[str, list[str]]:
    """The committed list of labels, by paper."""
    known: dict[str, list[str]] = json.loads(LIST.read_text(encoding="utf-8"))
    return known


def _ordered(names: Iterable[str]) -> list[str]:
    """By kind, then by number: `Table 10` after `Table 9`."""
    return sorted(names, key=lambda name: [part.zfill(4) for part in re.findall(r"\d+|[A-Za-z]+", name)])


def _main(arguments: Sequence[str]) -> None:
    found = {name: labels((Path(*arguments) / f"{name}.txt").read_text(encoding="utf-8")) for name in (*PAPERS, *OLDER)}
    LIST.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1:])
