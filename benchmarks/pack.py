"""Put new results of the papers' figures into the compact files of their experiments, to be committed.

python -m benchmarks.pack
"""

from __future__ import annotations

from simulations.papers.__main__ import COMMITTED
from simulations.papers.store import pack

if __name__ == "__main__":
    for path in pack(COMMITTED):
        print(path)
