"""A trust model of another package: `central` with more noise than epsilon needs, by a setting of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

from fedsw.experiment.sections import Privacy
from fedsw.federation.trust.central import Central


class CautiousPrivacy(Privacy):
    """[privacy] of this trust model.

    Attributes:
        margin: how many times the noise that epsilon needs is added.
    """

    margin: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0


class Cautious(Central):
    """As `central`, with a margin of noise."""

    name = "cautious"
    adds_noise = "server, more than epsilon needs"
    sections: ClassVar[Mapping[str, type[BaseModel]]] = {"privacy": CautiousPrivacy}

    def plan(self, task: Any, sites: Sequence[Any]) -> Any:
        """See `TrustModel`."""
        planned = super().plan(task, sites)
        assert isinstance(task.experiment.privacy, CautiousPrivacy)
        return replace(planned, multiplier=planned.multiplier * task.experiment.privacy.margin)


CAUTIOUS = Cautious()
