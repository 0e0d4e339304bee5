"""Who takes part."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsw.experiment.sections.section import PositiveFloat, PositiveInt, Section


class Federation(Section):
    """Who takes part, in how many processes, and how long the server waits.

    Attributes:
        sites: processes that hold the clients, each a run of consecutive ones; None for what the engine does: one in
            process, one for each core on Ray, one for each client elsewhere.
        drop_out: the probability with which a simulated client is lost between the two exchanges of a round.
    """

    clients: PositiveInt = 4
    sites: PositiveInt | None = None
    drop_out: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    min_clients: PositiveInt | None = None
    timeout: PositiveFloat = 120.0
    max_attempts: PositiveInt = 3
    threads: PositiveInt = 1
