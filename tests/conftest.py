"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("fedsw", deadline=None)  # how long an example takes says nothing but how busy the machine is
settings.load_profile("fedsw")


@pytest.fixture(autouse=True, scope="session")
def accounts_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests run counts in no account of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSW_ACCOUNTS", str(tmp_path_factory.mktemp("accounts")))
        yield


@pytest.fixture(autouse=True)
def same_draws_wherever_a_test_runs() -> None:
    """Tests that draw their inputs from torch's own generator get the same ones, whatever ran before them."""
    torch.manual_seed(0)
