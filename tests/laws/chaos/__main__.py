"""python -m tests.laws.chaos (--deployed | --masked) --seed 0 --rounds 200 --out DIR: a scripted run, audited as JSON.

On a SuperLink and five SuperNodes on loopback, whose processes are killed, stopped and started again at random moments;
with --masked under trust `distributed`, a site killed in every tenth round; every site's ledger is audited.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.laws.chaos.campaign import run_campaign
from tests.laws.chaos.masked import run_masked


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--deployed", action="store_const", const=run_campaign, dest="run", help="on real processes")
    kind.add_argument("--masked", action="store_const", const=run_masked, dest="run", help="and masked sums")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    given = parser.parse_args()
    print(json.dumps(given.run(given.seed, given.rounds, given.out)))


if __name__ == "__main__":
    main()
