"""Every command that a page prints, run as a newcomer would: with a fresh HOME and nothing set."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsw.federation.deploy.processes import script
from tests.site.test_documented_commands import printed

SECONDS = 3
"""Each may take; whatever still works then has got through what a fresh machine could fail at."""


def commands() -> list[str]:
    """Lines of the pages in which every verb stands, and every option of each, those with most of them first."""
    met: set[tuple[str, ...]] = set()
    chosen = []
    asked: dict[str, set[tuple[str, ...]]] = {}
    for _, line in printed():
        words = shlex.split(line, comments=True)
        verb = tuple(word for word in words[:3] if re.fullmatch(r"[a-z]+", word))
        asked[line] = {verb, *((*verb, word) for word in words if word.startswith("-"))}
    for line in sorted(asked, key=lambda line: -len(asked[line])):
        if asked[line] - met:
            chosen.append(line)
        met |= asked[line]
    return chosen


def tables(folder: Path) -> None:
    draw = random.Random(0)
    for client in ("0", "1"):
        (folder / client).mkdir(parents=True)
        rows = [
            f"{draw.randint(18, 90)},{draw.choice('fm')},{draw.choice(['<=50K', '>50K'])},{draw.randint(0, 1)},"
            f"{draw.randint(60, 220)},{draw.randint(2, 20)},{draw.choice('xyz')}"
            for _ in range(200)
        ]
        header = "age,sex,income,ill,pressure,glucose,work"
        (folder / client / "table.csv").write_text("\n".join([header, *rows]) + "\n")


def run(words: list[str], place: Path, seconds: float = SECONDS) -> tuple[int | None, str]:
    """Return the code and all output of a command line, and None as the code of one that was stopped."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDSW_", "FLWR_", "XDG_"))}
    env = {**kept, "HOME": str(place / "home"), "OMP_NUM_THREADS": "1", "PATH": f"{Path(script('fedsw')).parent}:/bin"}
    started = subprocess.Popen(
        [script("fedsw"), *words], cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started.terminate()
        return None, started.communicate(timeout=60)[0]
    return started.returncode, said


@pytest.mark.ray
@pytest.mark.slow
def test_no_documented_command_ends_in_a_traceback_on_a_fresh_machine(tmp_path):
    """An answer, or a message of what is missing: the pages' own paths, hosts and runs are not there."""
    tables(tmp_path / "DATA")
    (tmp_path / "home").mkdir()
    bounds = ("age=17:90", "pressure=60:220", "glucose=2:20")
    values = ("sex=f,m", "income=<=50K,>50K", "ill=0,1", "work=x,y,z")
    begun = ["init", "DATA", "--group", "sex", "--target", "income", "-o", "own.toml"]
    begun += [word for pair in bounds for word in ("--bounds", pair)]
    begun += [word for pair in values for word in ("--categories", pair)]
    for words in (begun, ["run", "own.toml", "--data-dir", "DATA", "--epsilon", "1"]):
        code, said = run(words, tmp_path, 240)
        assert code == 0, said

    def tried(line: str) -> str | None:
        code, said = run(shlex.split(line, comments=True), tmp_path)
        plain = "Traceback" not in said and code in (None, 0, 1, 2) and (code in (None, 0) or "fedsw" in said)
        return None if plain else f"fedsw {line}: {code}\n{said}"

    with ThreadPoolExecutor(2) as pool:
        faults = [fault for fault in pool.map(tried, commands()) if fault]
    assert len(commands()) > 50 and faults == [], "\n".join(faults)
