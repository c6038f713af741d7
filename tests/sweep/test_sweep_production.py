"""What a production run adds to what is known of the machine."""

from __future__ import annotations

import dataclasses
import math

import pytest
from replays import Bench, spec_of

from sweeper.core.training import Training
from sweeper.production.promise import Judgement
from sweeper.production.request import Promise, RunRequest
from sweeper.production.run import remember
from sweeper.race.drift import Block
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.folder.machine_record import MachineRecord

CLEAN = Judgement(reached=2000.0, promised=1900.0, ratio=2000 / 1900, reasons=())


def blocks_of(bench: Bench) -> list[Block]:
    line = find_sweep(bench.home, "toy").read_sweep_file()["about"]["device"]
    return MachineRecord(bench.home, line).blocks()


def test_a_run_is_known_by_what_its_winner_is_known_by(bench):
    bench.run(spec_of())
    (before,) = blocks_of(bench)
    sweep = load_sweep(find_sweep(bench.home, "toy"))
    number = sweep.confirmation.winner
    wanted = RunRequest(
        name="toy",
        pipeline="toy_pipeline",
        data={},
        config=sweep.table.records[number].config,
        training=Training(folder="", epochs=1),
        promise=Promise(throughput=1900.0, conditions={}),
        changed=(),
        sweep="toy",
        trial=number,
    )
    remember(bench.home, wanted, CLEAN, "toy-001")
    _, after = blocks_of(bench)
    ((key, (log, _)),) = after.speeds.items()
    assert key in before.speeds
    assert math.exp(log) == pytest.approx(2000)
    # What was disturbed, never promised, too short or swept elsewhere tells nothing.
    remember(bench.home, wanted, dataclasses.replace(CLEAN, reasons=("heat",)), "toy-002")
    remember(bench.home, dataclasses.replace(wanted, promise=None), CLEAN, "toy-003")
    remember(bench.home, wanted, dataclasses.replace(CLEAN, reached=0.0), "toy-004")
    remember(bench.home, dataclasses.replace(wanted, sweep="gone"), CLEAN, "toy-005")
    assert len(blocks_of(bench)) == 2
