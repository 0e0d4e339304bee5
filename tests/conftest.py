"""What holds for every test."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("fedsw", deadline=None)  # how long an example takes says nothing but how busy the machine is
settings.load_profile("fedsw")


@pytest.fixture(autouse=True)
def same_draws_wherever_a_test_runs() -> None:
    """Tests that draw their inputs from torch's own generator get the same ones, whatever ran before them."""
    torch.manual_seed(0)
