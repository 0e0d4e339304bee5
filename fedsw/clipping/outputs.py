"""What a module may return: a tensor, several, or several by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsw.clipping.refusals import UnsupportedModule


@dataclass(frozen=True)
class OutputForm:
    """How the tensors that a module returned were arranged.

    Attributes:
        names: of the outputs, in the order of the tensors; None if they have none.
        single: whether the module returned one bare tensor.
    """

    names: tuple[str, ...] | None = None
    single: bool = False

    @staticmethod
    def of(returned: Any) -> OutputForm:
        """The form of what a module returned.

        Raises:
            ValueError: if it is neither a tensor, nor a tuple of tensors, nor tensors by name.
        """
        if isinstance(returned, Tensor):
            return OutputForm(single=True)
        named = isinstance(returned, Mapping) and all(isinstance(name, str) for name in returned)
        parts = list(returned.values()) if named else returned if isinstance(returned, tuple) else []
        if not parts or not all(isinstance(each, Tensor) for each in parts):
            raise ValueError(
                f"the module returned {type(returned).__name__}; it must return a tensor, a tuple of tensors, or a "
                "dict of tensors by name."
            )
        return OutputForm(names=tuple(returned) if named else None)

    def tensors(self, returned: Any, n: int) -> tuple[Tensor, ...]:
        """The tensors (n, ...) of what the module returned for n records, in the order of this form.

        Raises:
            UnsupportedModule: if an output does not lead with the records, or other outputs came for other records.
        """
        own = OutputForm.of(returned)
        if own.single != self.single or (own.names is None) != (self.names is None):
            raise UnsupportedModule("the module returned outputs of another form for some records than for others.")
        if self.names is not None and set(own.names or ()) != set(self.names):
            raise UnsupportedModule(
                f"the module returned outputs {sorted(own.names or ())} for some records and {sorted(self.names)} for "
                "others. Return the same names always."
            )
        parts = self.parts(returned)
        for output in parts:
            if not output.dim() or output.shape[0] != n:
                raise UnsupportedModule(
                    f"the module returned shape {tuple(output.shape)} for {n} records: every output must lead "
                    "with the records. Return per-record values, not their sum or mean."
                )
        return parts

    def parts(self, returned: Any) -> tuple[Tensor, ...]:
        """The tensors, of any shape, of something in this form, in its order."""
        if self.single:
            return (returned,)
        return tuple(returned) if self.names is None else tuple(returned[name] for name in self.names)

    def arranged(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors of any shape in this form: one bare, a tuple, or a dict by name."""
        if self.single:
            return tensors[0]
        return tuple(tensors) if self.names is None else dict(zip(self.names, tensors, strict=True))
