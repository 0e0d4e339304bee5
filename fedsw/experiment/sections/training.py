"""Rounds, batches, and what steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from fedsw.experiment.sections.section import Arguments, PositiveFloat, PositiveInt, Section

_OPTIMIZERS = ("sgd", "adam")


class Training(Section):
    """Rounds, batches and the optimizer; everything here is fixed in advance.

    `preset` "auto" leaves what is not written here, and in [clip], to rules that read public numbers alone
    (`fedsw.experiment.preset`); a run's own record has what they chose.

    A round's batch takes `batch_fraction` of every group (rounded down, at least one record), or `batch_size`
    records of every group where that is given.

    `averaging` in (0, 1) releases the mean of that last fraction of the iterates (post-processing, free).
    `decay` in (0, 1] lets the learning rate fall linearly to 0 over that last fraction of the rounds.
    `momentum` is Adam's first coefficient too (0.9 where it is 0); `second_moment` its second.

    `optimizer` is "sgd" or "adam" with the settings above, or any name of torch.optim ("AdamW", "RMSprop", ...) with
    `learning_rate` and its own `optimizer_arguments`; `scheduler` is any name of torch.optim.lr_scheduler, with
    `scheduler_arguments`, and moves once a round.

    `released_norm` scales what a round released down to that l2 norm, where it is longer, before the step: it reads
    nothing but the release (RLL, Appendix D.2).

    `device` is where models run, ranks are found and contributions are added: one with float64.
    """

    preset: Literal["auto", "none"] = "none"
    rounds: PositiveInt = 500
    batch_fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    batch_size: PositiveInt | None = None
    optimizer: Annotated[str, Field(pattern=r"^[A-Za-z]\w*$", max_length=60)] = "sgd"
    optimizer_arguments: Arguments = {}
    scheduler: Annotated[str, Field(pattern=r"^[A-Za-z]\w*$", max_length=60)] | None = None
    scheduler_arguments: Arguments = {}
    learning_rate: PositiveFloat = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    second_moment: Annotated[float, Field(ge=0, lt=1)] = 0.999
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.0
    decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    released_norm: PositiveFloat | None = None
    precision: Literal["float32", "float64"] = "float32"
    micro_batch: PositiveInt = 65_536
    device: Literal["cpu", "cuda"] = "cpu"

    @field_validator("device", mode="before")
    @classmethod
    def _has_float64(cls, device: object) -> object:
        if device == "mps":
            raise ValueError(
                "'mps' has no float64, in which everything that a guarantee rests on is added; use 'cpu' or 'cuda'"
            )
        return device

    @model_validator(mode="after")
    def _settings_of_the_optimizer(self) -> Training:
        own = self.optimizer in _OPTIMIZERS
        if own and self.optimizer_arguments:
            raise ValueError(
                f"optimizer_arguments are for optimizers of torch.optim by their names there ('SGD', 'AdamW', ...); "
                f"{self.optimizer!r} reads momentum and second_moment"
            )
        for name, default in (("momentum", 0.0), ("second_moment", 0.999)):
            if not own and getattr(self, name) != default:
                raise ValueError(
                    f"{name} is for 'sgd' and 'adam'; write it in optimizer_arguments of {self.optimizer!r}"
                )
        if "lr" in self.optimizer_arguments:
            raise ValueError("optimizer_arguments sets lr; that is learning_rate: leave it out")
        if self.scheduler_arguments and self.scheduler is None:
            raise ValueError("scheduler_arguments are given and no scheduler; name one of torch.optim.lr_scheduler")
        if self.scheduler is not None and self.decay:
            raise ValueError(f"scheduler {self.scheduler!r} and decay both move the learning rate; keep one")
        return self
