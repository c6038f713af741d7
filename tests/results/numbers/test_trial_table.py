"""What the trials come to, against a look at all of them."""

from __future__ import annotations

import dataclasses
import random

import pytest
from parts.noop import synthetic
from replays import spec_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Quality
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.limits import objective_values
from sweeper.results.numbers.trial_table import TrialTable, _Extremes, is_passed_over

QUALITY = Quality(key="k", samples=10, seconds=0, train_loss=1.0, val_loss=1.0)


def drawn(draw: random.Random, number: int) -> TrialRecord:
    found = synthetic(float(draw.randint(1, 20)))
    window = dataclasses.replace(found.windows[0], canary_ms=draw.choice([0.0, draw.uniform(10, 20)]))
    failure = Failure(kind=FailureKind.OOM, message="")
    return TrialRecord(
        number=number,
        uid="",
        stage="search" if number else "baseline",
        config=TrialConfig(model={"width": draw.choice([1, 2])}),
        outcome=draw.choice([dataclasses.replace(found, windows=(window,)), failure]),
        quality=draw.choice([QUALITY, None]),
        violations={"ran": draw.choice([0.0, 1.0])},
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("needs_loss", [True, False])
def test_it_is_what_all_records_say(seed: int, needs_loss: bool):
    draw = random.Random(seed)
    spec = spec_of(objectives=[{"maximize": "throughput"}, {"minimize": "epoch_seconds"}])
    extremes, records = _Extremes(spec, needs_loss=needs_loss), {}
    order = list(range(draw.randint(1, 30)))
    draw.shuffle(order)
    for number in order:
        records[number] = drawn(draw, number)
        extremes.add(records[number])
        measured = [each for _, each in sorted(records.items()) if each.measurement]
        for width in (1, 2):
            config = TrialConfig(model={"width": width})
            fine = [e for e in measured if e.feasible and e.config.work_key() == config.work_key()]
            fine = [e for e in fine if e.quality or not needs_loss]
            best = max(fine, key=lambda each: each.metric("throughput") or 0.0, default=None)
            assert extremes.best_number(config.work_key()) == (best.number if best else None)
        canaries = [w.canary_ms for each in measured for w in each.measurement.windows if w.canary_ms]
        assert extremes.quiet_canary_ms == min(canaries, default=0.0)
        assert extremes.measured == sum(each.stage == "search" for each in measured)
        # Told the same whether of all the others or of the worst: by one that is known, and a new one.
        for mine in (records[number], drawn(draw, 99)):
            worst = [records[each] for each in extremes.worst_numbers()]
            assert objective_values(mine, worst, spec) == objective_values(mine, records.values(), spec)


def test_only_what_is_expected_not_to_fit_was_passed_over():
    kinds = {FailureKind.OOM_EXPECTED: True, FailureKind.OOM: False}
    for kind, passed_over in kinds.items():
        record = dataclasses.replace(drawn(random.Random(0), 1), outcome=Failure(kind=kind, message=""))
        assert is_passed_over(record) == passed_over


def test_a_start_of_what_has_compiled_takes_as_long_as_that_of_cached_code():
    """The slowest start from the cache counts, of the same compile settings."""
    table = TrialTable(spec_of())
    ways = [
        ("default", 8.0, "cold"),
        ("default", 2.0, "warm"),
        ("default", 3.0, "warm"),
        ("max-autotune", 60.0, "cold"),
        ("eager", 4.0, ""),
    ]
    for number, (mode, first, cache) in enumerate(ways):
        outcome = dataclasses.replace(
            synthetic(100.0), startup_seconds=1.0, first_step_seconds=first, compile_cache=cache
        )
        config = TrialConfig().replace({"compile.mode": mode})
        table.enter(
            TrialRecord(number=number, uid=str(number), stage="search", config=config, outcome=outcome)
        )
    seconds = [table.restart_seconds(record) for record in table.records.values()]
    assert seconds == [4.0, 3.0, 4.0, 61.0, 5.0]
