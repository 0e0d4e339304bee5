"""A noise of one's own: Gaussian noise of twice the scale that a ledger charges for, and whose word its epsilon is.

    python docs/examples/own_noise.py

Nothing proves that what the accountant "pld" says of sensitivity / scale bounds what a release with it costs, so that
every epsilon of it says that you state it, and the account of a data set takes it for no noise at all. A noise that is
proven is a line of `fedsw.privacy.mechanisms`, beside the shipped ones, with its proof in docs/guarantees.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedsw.privacy import Stream
from fedsw.privacy.accountants import doubt
from fedsw.privacy.accounting import Charge, Ledger
from fedsw.privacy.mechanisms import mechanism, noised
from fedsw.privacy.release import Bounded, Part, pay, release_paid
from fedsw.privacy.sensitivity import Sensitivity


@mechanism("wide", accountants=["pld"], upper_bound=True)
def wide_noised(values: Tensor, scale: float, stream: Stream) -> Tensor:
    """More noise than is charged for, never less; on the grid, as whatever leaves."""
    return noised(values, 2 * scale, stream)


def main() -> str:
    """What is said of the release of a sum that one record moves by at most 1."""
    total = Bounded(torch.tensor([12.0, 30.0], dtype=torch.float64), Sensitivity(1.0, "clipped to norm 1/2"))
    settings = {"groups": ["everybody"], "delta": 1e-5, "epsilon": 2.0, "mechanism": "wide"}
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "l.sqlite", **settings) as ledger:
        paid = pay(ledger, 1, 0, [Charge("everybody", 1.0, 1.0)], 4.0, [Part("sum", 1.0, 4.0, "wide")])
        released = release_paid(total, paid, "sum", Stream.secure())
    said = f"{doubt('pld', 'wide')}epsilon {released.spent:.3g} of a sum near {released.value.round().tolist()}"
    print(said)
    return said


if __name__ == "__main__":
    main()
