"""Full float32 inside the passes that a clip rests on: no TF32, no autocast, no fused attention."""

from __future__ import annotations

import threading
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

import torch

_backends: Any = torch.backends
_mkldnn, _cudnn = _backends.mkldnn, _backends.cudnn
_inside: ContextVar[str] = ContextVar("full_precision", default="")  # the type of device

# The switches that the kernels read: one per operation since torch 2.9. Asking torch for its older, global
# settings raises once a caller has mixed the two kinds, so these alone are read and set.
_CPU = (
    [(backend, "fp32_precision", "ieee") for backend in (_mkldnn.matmul, _mkldnn.conv, _mkldnn.rnn)]
    if hasattr(_mkldnn, "conv")
    else []
)
_ACCELERATOR = (
    [(backend, "fp32_precision", "ieee") for backend in (_backends.cuda.matmul, _cudnn.conv, _cudnn.rnn)]
    if hasattr(_cudnn, "conv")
    else [(_cudnn, "allow_tf32", False), (_backends.cuda.matmul, "allow_tf32", False)]
)
# The fused attention of evaluation mode: a frozen encoder with a padding mask makes nested tensors of it, which have no
# shape that could be checked. One path for all is also one function, whoever runs it.
_FUSED = [(_backends.mha, "_is_fastpath_enabled", False)] if hasattr(_backends.mha, "_is_fastpath_enabled") else []
_SWITCHES: list[tuple[Any, str, Any]] = _CPU + _FUSED + (_ACCELERATOR if _backends.cuda.is_built() else [])

# The switches are the process', so threads share them: the first to come notes what the caller had set, and the
# last to go puts it back. One that leaves early must not turn TF32 on under the others' clips.
_lock = threading.Lock()
_holders = 0
_callers: list[Any] = []


class full_precision:
    """Switch autocast and every reduced float32 mode off, and put the caller's settings back.

    A Gram matrix of relative error 1e-3 (TF32, bfloat16) lets Jacobians through that are far above the bound;
    cuDNN's TF32 is on by default. Inside itself, for the same type of device, it has nothing left to do.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device.type
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        if _inside.get() == self._device:
            return
        self._token = _inside.set(self._device)
        _hold()
        self._autocast: torch.autocast | None = None
        if torch.is_autocast_enabled(self._device):
            self._autocast = torch.autocast(self._device, enabled=False)
            self._autocast.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is None:
            return
        try:
            if self._autocast is not None:
                self._autocast.__exit__(kind, fault, trace)
        finally:
            _let_go()
            _inside.reset(self._token)
            self._token = None


def _hold() -> None:
    global _holders
    with _lock:
        found = [getattr(backend, switch) for backend, switch, _ in _SWITCHES]
        if not _holders:
            _callers[:] = found
        for (backend, switch, exact), value in zip(_SWITCHES, found, strict=True):
            if value != exact:
                setattr(backend, switch, exact)
        _holders += 1


def _let_go() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if _holders:
            return
        for (backend, switch, exact), value in zip(_SWITCHES, _callers, strict=True):
            if value != exact:
                setattr(backend, switch, value)
