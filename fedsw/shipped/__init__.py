"""The experiments, comparisons and the node file that come with fedsw, as files of the package.

They are edited here.
"""

from pathlib import Path

EXPERIMENTS = Path(__file__).parent / "experiments"
COMPARISONS = Path(__file__).parent / "comparisons"
NODE_FILE = Path(__file__).parent / "node.toml"
"""What `fedsw client --init` writes."""
