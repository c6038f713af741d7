"""Scripts run in forks of a process that has torch."""

from collections.abc import Iterator

import pytest
import warm


@pytest.fixture(scope="package", autouse=True)
def torch_is_warm() -> Iterator[None]:
    with warm.process():
        yield
