"""The tables of edge cases at the heads of clipping's files are true: each row has a test, and it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedsw.mathematics.clipping import (
    Safety,
    Term,
    UnsupportedModule,
    check,
    clipped_sum,
    record,
    refusals,
    tape,
)
from tests.mathematics.clipping.naive import double_by_default, naive_sum

HERE = Path(__file__).parent
ROW = re.compile(
    r"    (?P<case>\S.*): (?P<verdict>refused|exact|bounded)\n        (?P<test>test_\w+)(\[(?P<id>[^\]]+)\])?"
)


def _rows() -> list[re.Match[str]]:
    return [row for module in (refusals, tape) for row in ROW.finditer(module.__doc__ or "")]


def test_every_row_of_the_tables_names_one_test_that_is_there():
    texts = [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("test_*.py"))]
    for row in _rows():
        files = [text for text in texts if f"\ndef {row['test']}(" in text]
        assert len(files) == 1, row[0]
        ids = files[0] + (HERE / "layers.py").read_text(encoding="utf-8")
        assert row["id"] is None or f'"{row["id"]}"' in ids, row[0]


def test_the_tables_have_every_edge_case_and_nothing_but_rows():
    for module in (refusals, tape):
        indented = [line for line in (module.__doc__ or "").split("\n") if line.startswith("    ")]
        assert len(indented) == 2 * len(ROW.findall(module.__doc__ or "")) > 20
    cases = " ".join(row["case"] for row in _rows())
    for subject in (
        "tied weights",
        "reuse",
        "frozen parameters",
        "embeddings",
        "padding",
        "attention masks",
        "layer norm",
        "batch norm",
        "RNN",
        "checkpointing",
        "torch.compile",
        "DDP",
    ):
        assert subject in cases


class Through(nn.Module):
    """A layer without trained parameters between two that train."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 4), layer, nn.Linear(12, 2)

    def forward(self, x):
        seen = self.layer(self.first(x))
        return self.last((seen[0] if isinstance(seen, tuple) else seen).flatten(1))


PARAMETERLESS = {
    "frozen recurrence": lambda: nn.GRU(4, 4, batch_first=True).requires_grad_(False),
    "instance norm": lambda: nn.InstanceNorm1d(3),
    "dropout in evaluation mode": lambda: nn.Dropout(0.5).eval(),
}


@pytest.mark.parametrize("name", PARAMETERLESS)
def test_layers_without_trained_parameters_are_passed_through_exactly(name):
    torch.manual_seed(0)
    with double_by_default():
        model, x, q = Through(PARAMETERLESS[name]()), torch.randn(5, 3, 4), torch.randn(5, 2)
        for bound in (0.3, 1e3):
            taped = record(model, x)
            clipped = clipped_sum(taped, [Term(taped.raw, q, bound)], safety=Safety.off())
            torch.testing.assert_close(clipped, naive_sum(model, x, q, bound), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_compiled_modules_are_refused():
    part = nn.Linear(3, 2)
    part.compile()
    for model in (torch.compile(nn.Linear(3, 2)), nn.Sequential(torch.compile(nn.Linear(3, 2))), nn.Sequential(part)):
        with pytest.raises(UnsupportedModule, match=r"is compiled \(torch\.compile\).*pass the module itself"):
            check(model)
        with pytest.raises(UnsupportedModule, match="is compiled"):
            record(model, torch.randn(4, 3))


def test_modules_that_spread_a_batch_over_processes_are_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        spread = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        for model in (spread, nn.Sequential(nn.DataParallel(nn.Linear(3, 2)))):
            with pytest.raises(UnsupportedModule, match=r"spreads a batch.*pass its \.module"):
                record(model, torch.randn(4, 3))
    finally:
        torch.distributed.destroy_process_group()


def test_reentrant_checkpointing_is_refused():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(checkpoint(self.first, x.requires_grad_(), use_reentrant=True))

    with pytest.raises(UnsupportedModule, match=r"runs without gradient.*use_reentrant=False"):
        record(Checkpointed(), torch.randn(4, 3))
