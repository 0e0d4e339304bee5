"""Refuses words that a stranger stumbles over, in the package's sources and in every page: `make lint` runs it.

    .venv/bin/python .ci/words.py [FILE ...]

A word is here because the thing has a plainer name, the field's own; the list is short, and each has its reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "attendance": "who takes part is availability",
    "blow": "what a message does is said with a verb of its own",
    "counterpart": "name the other side: the server's, the public one",
    "heretofore": "before",
    "imitation": "what stands in for records is a twin, or made up",
    "loud": "a message is clear or it is not; say what it says",
    "riddle": "say what is not known",
    "standing": "whether a client can be asked is availability",
    "striker": "who attacks is an attacker",
    "withal": "with",
}
"""Words, and what to write in their place."""


def found(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text with a word of the list, counted from 1, and the word."""
    pattern = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), start=1):
        for match in pattern.finditer(line):
            yield number, match[1].lower()


def main(arguments: Sequence[str]) -> int:
    """Print where the words are; 1 if they are anywhere."""
    listed = ["git", "ls-files", "-z", "fedsw/*.py", "*.md"]
    names = arguments or subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    faults = [
        f"{name}:{number}: {word!r}: {WORDS[word]}"
        for name in names
        if name
        for number, word in found((ROOT / name).read_text(encoding="utf-8"))
    ]
    print("\n".join(faults) if faults else f"{len(WORDS)} words are nowhere")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
