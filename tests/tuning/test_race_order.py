"""The order in which a tune tries its changes."""

from __future__ import annotations

from tuning.virtual import close, exact

from sweeper.tuning.race import _place


def test_threads_come_first_where_others_compute_on_their_cores() -> None:
    candidates = close("threads=one", "compile=model", "precision=bf16", "optimizer=fused", "mine=on")
    candidates += exact("loader=gathered")

    def names(*, shares_cores: bool) -> list[str]:
        placed = sorted(candidates, key=lambda one: _place(one, shares_cores=shares_cores))
        return [one.name for one in placed]

    rest = ["mine", "compile"]
    assert names(shares_cores=True) == ["loader", "threads", "optimizer", "precision", *rest]
    assert names(shares_cores=False) == ["loader", "optimizer", "precision", "threads", *rest]
