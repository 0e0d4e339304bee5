"""Laws of the glossary: it explains the words that pages use, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.site.test_words import PAGES

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = "docs/glossary.md"
OF_ITS_OWN = {
    "account", "accountant", "attempt", "bundle", "canary", "checkpoint", "clip", "cotangent", "draft", "generator",
    "held-out", "knot", "ledger", "masked sum", "moments", "node", "nominal", "penalty", "preset", "public twin",
    "relation", "release", "roster", "site", "sketch", "slice", "stage", "stratum", "trust model", "unit",
}  # fmt: skip
"""Words that mean something of their own here; a new one is explained in the glossary and stands in this list."""


def explained(text: str) -> list[str]:
    """The words and signs that a glossary explains: the first cells of its rows, which may hold several."""
    cells = re.findall(r"^\| ([^|]+?) \|", text, flags=re.MULTILINE)
    return [word for cell in cells for word in cell.split(", ") if cell not in ("word", "sign")]


def used(word: str, text: str) -> bool:
    """True where a text has the word, in the plural, too."""
    stem = re.escape(word).replace("stratum", "strat(?:um|a)").replace("penalty", "penalt(?:y|ies)")
    return bool(re.search(rf"(?<!\w){stem}(?:s|es|ed)?(?!\w)", text, flags=re.IGNORECASE))


def unused(text: str, others: list[str]) -> list[str]:
    """The words that a glossary explains and no other text has."""
    return [word for word in explained(text) if not any(used(word, other) for other in others)]


def test_what_is_explained_is_used_on_a_page_or_a_screen():
    screens = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "fedsw" / "runs").rglob("*.py"))]
    pages = [text for name, text in PAGES.items() if name != GLOSSARY]
    assert unused(PAGES[GLOSSARY], pages + screens) == []


def test_every_word_of_our_own_that_a_page_uses_is_explained_once():
    words = explained(PAGES[GLOSSARY])
    assert len(words) == len(set(words)) and set(words) >= OF_ITS_OWN


def test_a_word_that_nobody_uses_is_seen():
    text = "| word | means |\n|---|---|\n| moments, stratum | a |\n| gimbal | b |\n"
    assert explained(text) == ["moments", "stratum", "gimbal"]
    assert unused(text, ["In all strata the moment", "Moments leave."]) == ["gimbal"]
