"""Start a client as its unit does, and greet it once in place of a connection: `python -m tests.site.greeted FILE`.

The experiment is of the columns that the node file's schema has, under `local-gradient`, whose clients have accounts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsw._tools.installed import code_digest
from fedsw.cli.app import main
from fedsw.data.columns.declaration import read_columns
from fedsw.experiment import parse_experiment
from fedsw.federation.client import app
from fedsw.federation.deploy import serving
from fedsw.federation.deploy.node_settings import NodeSettings


def greeted(node: NodeSettings, home: Path, *, stock: bool, say: Any) -> None:
    """Print what the node answers to a greeting; its server's signature and code are of no run here."""
    assert node.schema is not None
    columns = read_columns(node.schema).model_dump(mode="json", exclude_defaults=True)
    experiment = parse_experiment(
        {
            "name": "own",
            "data": {"source": "files", "columns": columns},
            "federation": {"clients": node.clients},
            "training": {"rounds": 5},
            "privacy": {"trust": "local-gradient", "epsilon": 2.0, "delta": 1e-5},
        }
    )
    config = {key: value for key, value in node.node_config.items() if key not in ("server-key", "bundle")}
    told = {"experiment": experiment.model_dump_json(exclude={"metrics"}), "run": "a" * 32, "code": code_digest()}
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict({"config": ConfigRecord(told)}), 1, "query.hello", ttl=100.0)
    message.metadata.__dict__["_run_id"] = 1
    context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={}, series_id=1)
    reply = app(message=message, context=context)
    print("greeted" if reply.has_content() else f"refused: {reply.error.reason}")


if __name__ == "__main__":
    serving.keep_connected = greeted  # type: ignore[assignment]
    sys.exit(main(["client", "--config", sys.argv[1]]))
