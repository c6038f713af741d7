"""The order in which a tune tries its changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from measurements import measurement
from tuning.virtual import close, exact

from sweeper.script.run.warm import WarmProcess
from sweeper.tuning.race import _place, shares_cores


def test_threads_come_first_where_others_compute_on_their_cores() -> None:
    candidates = close("threads=one", "compile=model", "precision=bf16", "optimizer=fused", "mine=on")
    candidates += exact("loader=gathered")

    def names(*, shares_cores: bool) -> list[str]:
        placed = sorted(candidates, key=lambda one: _place(one, shares_cores=shares_cores))
        return [one.name for one in placed]

    rest = ["mine", "compile"]
    assert names(shares_cores=True) == ["loader", "threads", "optimizer", "precision", *rest]
    assert names(shares_cores=False) == ["loader", "optimizer", "precision", "threads", *rest]


@pytest.mark.parametrize(
    ("seen", "foreign_cores", "shared"),
    [
        ({"num_workers": 0, "ranks": 1}, 0.0, False),
        ({}, 0.2, False),
        # A busy neighbour takes a whole core.
        ({}, 0.9, True),
        ({"num_workers": 1}, 0.0, True),
        ({"ranks": 2}, 0.0, True),
    ],
)
def test_workers_ranks_and_other_programs_share_cores(
    seen: dict[str, Any], foreign_cores: float, shared: bool
) -> None:
    seen_of_it = dataclasses.replace(measurement(), observed=seen)
    assert shares_cores(WarmProcess(measurement=seen_of_it, foreign_cores=foreign_cores)) is shared
