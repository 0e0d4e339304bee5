"""The experiments, comparisons and papers that come with fedsw, as files of the package.

In a checkout the folders are links to `simulations/`, where they are edited; a wheel holds the files.
"""

from pathlib import Path

EXPERIMENTS = Path(__file__).parent / "experiments"
COMPARISONS = Path(__file__).parent / "comparisons"
PAPERS = Path(__file__).parent / "papers"
