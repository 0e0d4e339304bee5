"""What held-out metrics are measured on."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from fedsw.experiment.sections.section import PositiveInt, Section


class Evaluation(Section):
    """What held-out metrics are measured on: they should cost little beside the rounds that they are about.

    With `mode` "auto" at most about `records` held-out records, a fixed public subsample in which every group and
    class keeps its part (`fedsw.runs.subsample`), and, for distances of samples in more than `directions` dimensions,
    that many directions; in fewer dimensions whole orthogonal blocks. "full" takes all records, and whole blocks. A
    summary says what it was. Both numbers are for "auto".
    """

    mode: Literal["auto", "full"] = "auto"
    records: PositiveInt = 2_000
    directions: PositiveInt = 100

    @model_validator(mode="after")
    def _read_by_auto(self) -> Evaluation:
        for name in ("records", "directions"):
            if self.mode == "full" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is for mode 'auto', and mode 'full' takes all there are: leave one out")
        return self
