"""One ServerApp, one ClientApp, the messages between them, and a folder for each trust model.

`client` and `server` are the two apps, `trust` has the trust models, `exchange` asks sites and `node` is how one
answers, `messages` the table of all that travels; `engines` carry messages, `deploy` starts real processes.

Importing this package switches Flower's telemetry, update checks and run-time installs off in this process and its
children: Flower reads the switches when it is imported, so they are set before anything here can import it.
"""

import os

__all__ = [
    "NODE_KEYS", "OFFLINE", "SERVER_KEY", "SIGNING_KEY", "client", "deploy", "engines", "exchange", "flower",
    "messages", "node", "origin", "server", "trust", "wire",
]  # fmt: skip

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
os.environ.update(OFFLINE)

SERVER_KEY = "server-key"
"""The key of a node's configuration with the server's public key, in 64 hexadecimal digits."""
SIGNING_KEY = "FEDSW_SIGNING_KEY"
"""The environment variable with the path of the server's signing key."""
NODE_KEYS = "FEDSW_NODE_KEYS"
"""The environment variable with the file that says which key each node of the SuperLink has."""
