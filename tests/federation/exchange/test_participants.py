"""Laws of who may take part: every client once, and before anything is spent."""

from __future__ import annotations

import pytest

from fedsw._tools.settings import FederationError
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.node._own_ledger import held_open
from fedsw.federation.server._federation import Job, federate
from tests.federations import small


def test_two_nodes_with_one_partition_are_refused_before_anything_is_spent(tmp_path):
    """A record of theirs would be in the union twice, and move every sum twice as far."""
    configs = node_configs(2, tmp_path / "clients")
    grid = InProcessGrid(client_app, [{**config, "partition-id": 0} for config in configs])
    with held_open(tmp_path / "clients"), pytest.raises(FederationError, match=r"same partition-id: clients \[0\]"):
        try:
            federate(grid, Job(small("federation.clients=2"), tmp_path / "run"))
        finally:
            grid.close()
    assert not (tmp_path / "run" / "ledger.sqlite").exists()
