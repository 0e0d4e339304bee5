"""Who takes part."""

from __future__ import annotations

from fedsw.experiment.sections.section import PositiveFloat, PositiveInt, Section


class Federation(Section):
    """Who takes part and how long the server waits."""

    clients: PositiveInt = 4
    min_clients: PositiveInt | None = None
    timeout: PositiveFloat = 120.0
    max_attempts: PositiveInt = 3
    threads: PositiveInt = 1
