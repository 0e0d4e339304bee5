"""Node keys: who a SuperNode is. The private one stays at the node, the public one is registered at the SuperLink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsw.deploy.secret_files import private_folder, write_secret


@dataclass(frozen=True)
class NodeKey:
    """Paths of a key pair in OpenSSH's format, as `flower-supernode` and `flwr supernode register` read it."""

    private: Path
    public: Path


def write_node_key(path: Path) -> NodeKey:
    """Make an EC P-384 key pair: `path` (mode 0600) and `path`.pub.

    Raises:
        FileExistsError: if there is a key already.
    """
    private_folder(path.parent)
    pair = NodeKey(path, path.with_name(path.name + ".pub"))
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(
        pair.private,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    pair.public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"
    )
    return pair
