"""python -m simulations.chaos --seed 0 --rounds 200 --out DIR: one scripted run; prints its audit as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from simulations.chaos.conductor import run_chaos


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    given = parser.parse_args()
    print(json.dumps(run_chaos(given.seed, given.rounds, given.out)))


if __name__ == "__main__":
    main()
