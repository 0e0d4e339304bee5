"""`python -m tests.goldens`: make the stored goldens again, from today's code, and say in which parts they changed.

A golden that changes because something was asked for is made again in the same commit, whose body says why.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch

from tests.goldens.made import PARTS, STORED, stored


def main() -> None:
    """Write all parts; print the names of the entries that are no longer what they were."""
    torch.set_num_threads(1)  # as the tests have it
    before, made = stored() if STORED.exists() else {}, {}
    for part, make in PARTS.items():
        with tempfile.TemporaryDirectory(prefix="fedsw-goldens-") as folder:
            os.environ["FEDSW_ACCOUNTS"] = f"{folder}/accounts"
            made[part] = json.loads(json.dumps(make(Path(folder))))
        old = before.get(part, {})
        changed = [name for name in {**old, **made[part]} if old.get(name) != made[part].get(name)]
        print(f"{part}: {len(made[part])} entries, {len(changed)} changed", *changed[:20], sep="\n  ")
    lines = [
        f"{json.dumps(part)}: {{\n"
        + ",\n".join(f"{json.dumps(n)}: {json.dumps(e)}" for n, e in entries.items())
        + "\n}"
        for part, entries in made.items()
    ]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
