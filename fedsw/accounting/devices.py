"""Where compositions are computed: the processor, or a device that has float64."""

from __future__ import annotations

import torch

CPU = torch.device("cpu")

ROUND_OFF = 3
"""How many times the round-off that the processor sets aside is set aside elsewhere.

Its own transforms and profiles may err by as much; and twice more, so that epsilon is nowhere below the processor's.
"""

_FLOAT64 = ("cpu", "cuda")


def accounting_device(wanted: torch.device | str) -> torch.device:
    """The device, or the processor where the device has no float64, which every bound is computed in (mps).

    Raises:
        ValueError: if torch knows no such device, or this machine has none.
    """
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ValueError(f"accounting device is {str(wanted)!r}; choose one of {', '.join(_FLOAT64)}.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"accounting device is {str(wanted)!r}, but this machine offers none to torch; use 'cpu'.")
    return device if device.type in _FLOAT64 else CPU


def round_off_factor(device: torch.device) -> int:
    """By how much the round-off set aside on the processor is multiplied on the device."""
    return 1 if device.type == "cpu" else ROUND_OFF
