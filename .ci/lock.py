"""Writes locks/: every package with the SHA-256 of each of its files on the index, at the versions of constraints.txt.

    .venv/bin/python .ci/lock.py [WHEEL ...]

`app.txt` is what a server or a client needs, `dev.txt` what `make test` needs, `cuda.txt` what PyPI's Linux build of
torch needs besides. A WHEEL is a file that is not on the index, a CPU build of torch: its hash is admitted, and
`local.txt` has nothing but it, so that pip takes it from a folder before the index's build, which has gigabytes. What
an earlier call admitted stays, as long as the version does.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CUDA = re.compile(r"(nvidia|cuda)-|triton=")
HEAD = "# Written by .ci/lock.py; installed with `pip install --no-deps --require-hashes --requirement`.\n"


def main(wheels: list[str]) -> None:
    """Resolve both sets of packages, and part the CUDA libraries from them."""
    local = {Path(wheel).name: hashlib.sha256(Path(wheel).read_bytes()).hexdigest() for wheel in wheels}
    cuda: dict[str, str] = {}
    admitted: dict[str, str] = {}
    locked = ""
    for name in ("app", "dev"):
        path = ROOT / "locks" / f"{name}.txt"
        admitted |= {**_admitted(path), **local}
        found = {package: _with(text, admitted) for package, text in _resolved(name).items()}
        cuda |= {package: text for package, text in found.items() if CUDA.match(package)}
        _write(path, {package: text for package, text in found.items() if not CUDA.match(package)})
        locked += "".join(found.values())
    _write(ROOT / "locks" / "cuda.txt", cuda)
    _write(ROOT / "locks" / "local.txt", _local({file: hash_ for file, hash_ in admitted.items() if hash_ in locked}))


def _resolved(extra: str) -> dict[str, str]:
    """What uv writes of every package, by its name and version."""
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", "--extra", extra]
    uv += ["--universal", "--python-version", "3.11", "--generate-hashes", "--constraint", "constraints.txt"]
    text = subprocess.run([*uv, "--no-annotate", "--no-header"], cwd=ROOT, capture_output=True, text=True, check=True)
    blocks = re.split(r"(?m)^(?=\S)", text.stdout)
    return {block.split()[0]: block for block in blocks if block.strip()}


def _admitted(path: Path) -> dict[str, str]:
    """The wheels that a lock admits besides those of the index."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return dict(re.findall(r"# admitted: (\S+) sha256:(\w{64})", text))


def _with(block: str, admitted: dict[str, str]) -> str:
    """A package's lines with the hashes of the admitted wheels of its version, which may be of a local build."""
    name, _, version = block.split()[0].partition("==")
    for file, digest in sorted(admitted.items()):
        distribution, theirs = file.split("-")[:2]
        if distribution.replace("_", "-").lower() == name and theirs.partition("+")[0] == version:
            block = f"# admitted: {file} sha256:{digest}\n{block.rstrip()} \\\n    --hash=sha256:{digest}\n"
    return block


def _local(admitted: dict[str, str]) -> dict[str, str]:
    """A requirement for each admitted wheel, with its hash alone."""
    lines = {}
    for file, digest in admitted.items():
        distribution, version = file.split("-")[:2]
        lines[file] = f"{distribution}=={version.partition('+')[0]} --hash=sha256:{digest}\n"
    return lines


def _write(path: Path, blocks: dict[str, str]) -> None:
    path.write_text(HEAD + "".join(text for _, text in sorted(blocks.items())), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
