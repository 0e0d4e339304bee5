"""Screenshots of pages for the docs: runs are made, their pages are drawn by headless Chromium, pictures quantised.

python -m benchmarks.pages        # docs/images/page-*.png; needs Debian's package chromium
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import fedsw
from fedsw._tools import files
from fedsw._tools.settings import FederationError
from fedsw.cli.app import main as command
from fedsw.runs.report.figures import compact
from fedsw.runs.run_files import RunFile, find_run
from fedsw.runs.write import write_page

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
MOST_BYTES = 150_000
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_DESKTOP, _TELEPHONE = (960, 1150), (500, 1150)
_ROUNDS = "training.rounds=200"
_COMPARED = ["compare", "fair-classification", "--methods", "central,local-gradient,none", "--epsilon", "1,3,10"]
_COMPARED += ["--seeds", "2", "--rounds", "100", "--quiet"]


class _Loses:
    """An observer that lets a run fail in its 40th round, as the loss of its clients would."""

    def started(self, plan: dict[str, object]) -> None:
        """Nothing yet."""

    def round_done(self, record: dict[str, object]) -> None:
        """A failure in words that may be published."""
        if record["round"] == 40:
            raise FederationError("2 of 4 clients answer, and federation.min_clients is 3")

    def finished(self, summary: dict[str, object]) -> None:
        """Nothing more."""


def clinics(place: Path) -> None:
    """Tables of three clinics and a held-out one, drawn from a law."""
    draw = np.random.default_rng(7)
    for path, rows in (
        *((place / "DATA" / str(clinic) / "visits.csv", 1500) for clinic in range(3)),
        (place / "held-out.csv", 2000),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        age, sex, smokes = draw.uniform(18, 90, rows), draw.choice(["f", "m"], rows), draw.choice(["no", "yes"], rows)
        pressure = draw.normal(100 + 0.4 * age + 6 * (smokes == "yes"), 10)
        ill = draw.normal(0, 0.5, rows) < (age - 60) / 18 + 0.8 * (smokes == "yes") - 0.4 + 0.3 * (sex == "m")
        with path.open("w", newline="") as file:
            ends = [[18, "f", "no", 50, "no"], [90, "m", "yes", 230, "yes"]] if path.parent.name == "0" else []
            csv.writer(file).writerows([["age", "sex", "smokes", "pressure", "ill"], *ends])
            csv.writer(file).writerows(
                [f"{a:.4f}", s, k, f"{p:.4f}", "yes" if i else "no"]
                for a, s, k, p, i in zip(age, sex, smokes, pressure, ill, strict=True)
            )


def screenshot(page: Path, name: str, size: tuple[int, int]) -> Path:
    """The first screen of a page as a picture of the docs."""
    browser = shutil.which("chromium")
    if browser is None:
        raise FileNotFoundError("no chromium; apt-get install chromium")
    drawn = page.with_suffix(".png")
    window = f"--window-size={size[0]},{size[1]}"
    places = [f"--user-data-dir={page.parent / 'profile'}", f"--screenshot={drawn}", page.resolve().as_uri()]
    subprocess.run([browser, *_FLAGS, window, *places], check=True, capture_output=True, timeout=120)
    target = IMAGES / f"page-{name}.png"
    files.replace(target, compact(drawn.read_bytes(), most=MOST_BYTES), durable=False)
    return target


def main() -> None:
    """Make the runs in a folder of its own, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        clinics(place)
        runs = place / "runs"
        central = [
            fedsw.run("fair-classification", _ROUNDS, *settings, runs=runs).directory
            for settings in (
                ("privacy.epsilon=1",),
                ("privacy.epsilon=3",),
                ("privacy.epsilon=3", "objective.alpha=0.75"),
            )
        ]
        masked = fedsw.run("fair-classification", _ROUNDS, "privacy.trust=distributed", runs=runs).directory
        try:
            fedsw.run("fair-classification", _ROUNDS, runs=runs / "failed", observer=_Loses())
        except FederationError:
            failed = find_run("fair-classification", runs / "failed")
        own = ["own.toml", "--data-dir", str(place / "DATA"), "--epsilon", "1", "--runs", str(runs)]
        own[0] = str(place / "own.toml")
        tables = ["init", str(place / "DATA"), "--group", "sex", "--target", "ill", "--from-public"]
        for words in (
            [*tables, "--held-out", str(place / "held-out.csv"), "-o", own[0]],
            ["run", *own, "--quiet"],
            [*_COMPARED, "--runs", str(runs)],
            ["synthesize", *own, "-o", str(place / "synthetic.csv"), "--quiet"],
        ):
            if command(words):
                raise SystemExit(f"fedsw {' '.join(words)} failed")
        shown = {
            "central": [central[0]],
            "own": [find_run("own", runs)],
            "failed": [failed],
            "three": central,
            "distributed": [masked],
            "synthetic": [find_run("own-synthetic", runs)],
        }
        for name, directories in shown.items():
            print(screenshot(write_page(directories, place / f"{name}.html"), name, _DESKTOP))
        print(screenshot(place / "own.html", "telephone", _TELEPHONE))
        (compared,) = (runs / "compare" / "fair-classification").iterdir()
        print(screenshot(compared / RunFile.REPORT, "comparison", _DESKTOP))


if __name__ == "__main__":
    main()
