"""One thread: the tensors here are small, and threads that wait for each other cost more than they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_bf16() -> Callable[[Callable[[], Tensor]], Tensor]:
    """Returns a function that computes a loss in bfloat16, and skips the rest where no LSTM can."""

    def run(loss: Callable[[], Tensor]) -> Tensor:
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss()
        except RuntimeError as error:
            if "could not create a primitive" not in str(error):
                raise
            pytest.skip("this processor has no instructions for an LSTM in bfloat16")

    return run
