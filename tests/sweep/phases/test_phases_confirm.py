"""The confirmation of a sweep: who takes part, how many rounds, whose loss holds, and Ctrl-C."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from replays import Bench, raced, spec_of, surface, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.job import QUALITY_RUNNER, read_job
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import NothingFeasibleError, UserError
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.phases.reconfirm import reconfirm
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker

pytestmark = pytest.mark.slow

BATCHES = {"batch_size": {"type": "categorical", "choices": [64, 128, 256, 512]}}


def journal_of(bench: Bench) -> Journal:
    return Journal(bench.home / "sweeps" / "toy")


def result_of(bench: Bench) -> dict:
    return json.loads((journal_of(bench).folder / "result.json").read_text())


def noisy(sd: float, seed: int = 0):
    rng = random.Random(seed)
    return lambda config: synthetic(throughput(config) * rng.lognormvariate(0, sd))


def interrupting(when, *, then=surface):
    """A surface whose supervisor gets Ctrl-C in each job for which `when(config, count)` holds."""
    count = [0]

    def answer(config: TrialConfig):
        count[0] += 1
        if when(config, count[0]):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        return then(config)

    return answer


# -- rounds ---------------------------------------------------------------------------------------------


def test_no_round_is_added_where_the_intervals_are_narrow(bench):
    bench.run(spec_of(space=BATCHES, search={"trials": 3}))
    assert len(raced(bench)) == 3
    assert result_of(bench)["race_end"] == "the intervals are narrow enough"


def test_rounds_are_added_while_an_interval_is_wide_and_not_for_ever(bench):
    bench.run(spec_of(space=BATCHES, search={"trials": 3}), noisy(0.3))
    rounds = raced(bench)
    assert len(rounds) == 12
    assert "the intervals are still wide" in result_of(bench)["race_end"]


def test_a_candidate_that_is_clearly_slower_drops_out(bench):
    rng = random.Random(0)

    def wide_at_the_top(config: TrialConfig) -> Measurement:
        sd = 0.3 if config.batch_size in (64, 512) else 0.001
        return synthetic(
            config.batch_size * (100 if config.batch_size == 512 else 1) * rng.lognormvariate(0, sd)
        )

    spec = spec_of(space=BATCHES, search={"trials": 3}, baseline={"batch_size": 64}, confirm={"rounds": 5})
    bench.run(spec, wide_at_the_top)
    assert [len(each) for each in raced(bench)] == [3] + [2] * 19


def test_the_order_within_rounds_differs(bench):
    spec = spec_of(space=BATCHES, search={"trials": 3}, confirm={"rounds": 3})
    bench.run(spec, lambda config: synthetic(1000.0 + config.batch_size / 1000))
    entries = sorted(journal_of(bench).race_jobs("final"), key=lambda entry: entry.number)
    orders = {}
    for entry in entries:
        orders.setdefault(entry.job.params["round"], []).append(entry.job.params["arm"])
    assert {len(order) for order in orders.values()} == {3}
    assert len({tuple(order) for order in orders.values()}) > 1


def test_near_duplicates_do_not_fill_the_places(bench):
    space = {"batch_size": {"type": "categorical", "choices": [128, 500, 510, 512]}}
    spec = spec_of(space=space, search={"trials": 4}, confirm={"top": 2}, also_try=[])
    bench.run(spec, lambda config: synthetic(20_000.0 + config.batch_size))
    configs = {entry.job.config.batch_size for entry in journal_of(bench).race_jobs("final")}
    assert configs == {64, 128, 512}


# -- the loss of those that may win ----------------------------------------------------------------------


def test_a_winner_whose_loss_holds_for_one_seed_only_is_passed_over(bench):
    def loss(config: TrialConfig) -> float:
        return 2.0 if config.batch_size == 512 and config.seed else 1.0

    bench.run(spec_of(space=BATCHES, search={"trials": 3}), loss=loss)
    result = result_of(bench)
    summary = load_sweep(journal_of(bench)).summary
    assert summary.winner is not None
    assert summary.winner.config.batch_size == 256
    assert result["infeasible"] == [
        record.number for record in summary.records if record.config.batch_size == 512
    ]
    assert any("is ruled out: its loss over 3 seeds is 1.667" in line for line in bench.watcher.lines)


def winning_batch(bench: Bench, failure: Failure, seeds: Collection[int]) -> int:
    """The winner's batch size, if the loss of the fastest one ends with `failure` for some seeds."""

    class Failing(ReplayLauncher):
        def _answer(self, job):
            config = job.config
            if job.runner == QUALITY_RUNNER and config.batch_size == 512 and config.seed in seeds:
                return failure
            return super()._answer(job)

    spec = spec_of(space=BATCHES, search={"trials": 3})
    run_sweep(bench.home, spec, NullTracker(), bench.watcher, launch=lambda folder: Failing(surface))
    summary = load_sweep(journal_of(bench)).summary
    assert summary.winner is not None
    return summary.winner.config.batch_size


def test_a_winner_that_diverges_with_another_seed_is_passed_over(bench):
    diverged = Failure(kind=FailureKind.NON_FINITE, message="the loss is not finite")
    assert winning_batch(bench, diverged, {1, 2}) == 256
    assert any("ruled out: with another seed, the loss is not" in line for line in bench.watcher.lines)


def test_a_seed_whose_loss_is_not_known_is_named(bench):
    """The machine, not the configuration, may be why it took too long, so it may still win."""

    slow = Failure(kind=FailureKind.TIMEOUT, message="it took longer than 600 s")
    assert winning_batch(bench, slow, {1}) == 512
    (line,) = (line for line in bench.watcher.lines if line.startswith("The loss of "))
    assert line.endswith("fewer seeds than your baseline's (timeout: it took longer than 600 s).")


# -- Ctrl-C ---------------------------------------------------------------------------------------------


def test_ctrl_c_confirms_the_best_so_far_and_the_same_command_goes_on(bench):
    whole = Bench(bench.home.parent / "whole")
    whole.run(spec_of(search={"trials": 8}))
    ran = bench.run(spec_of(search={"trials": 8}), interrupting(lambda config, count: count == 6))
    assert ran.stopped
    stopped = journal_of(bench).interim_result()
    assert stopped is not None
    assert len(stopped.confirmation.ratios[0].rounds) >= 3
    assert journal_of(bench).result() is None
    summary = load_sweep(journal_of(bench)).summary
    assert summary.state == "stopped"
    assert summary.winner is not None
    assert summary.ratio is not None
    assert summary.ratio.low > 1
    assert not bench.run(spec_of(search={"trials": 8})).stopped
    assert journal_of(bench).interim_result() is None
    configs = [entry.job.config for entry in journal_of(bench).trials()]
    assert configs == [entry.job.config for entry in Journal(whole.home / "sweeps" / "toy").trials()]


def test_ctrl_c_twice_ends_at_once_and_says_unconfirmed(bench):
    began = time.monotonic()
    ran = bench.run(
        spec_of(search={"trials": 8}), interrupting(lambda config, count: count in (6, 8)), sleep_seconds=0.01
    )
    assert time.monotonic() - began < 10
    assert ran.stopped
    stopped = journal_of(bench).interim_result()
    assert stopped is not None
    assert not stopped.confirmation.ratios
    assert stopped.confirmation.winner is not None
    summary = load_sweep(journal_of(bench)).summary
    assert summary.winner is not None
    assert summary.ratio is None


def test_ctrl_c_before_anything_is_measured_ends_as_it_always_did(bench):
    with pytest.raises(KeyboardInterrupt):
        bench.run(answer=interrupting(lambda config, count: count == 1))
    assert journal_of(bench).interim_result() is None


def test_ctrl_c_gives_the_signal_back(bench):
    before = signal.getsignal(signal.SIGINT)
    bench.run()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_confirmation_takes_the_rounds_there_are(bench):
    def last(config: TrialConfig, count: int) -> bool:
        return count == 2 + 8 + 3 * 3 + 2 + 1

    ran = bench.run(spec_of(confirm={"rounds": 8}), interrupting(last))
    assert ran.stopped
    stopped = journal_of(bench).interim_result()
    assert stopped is not None
    assert len(stopped.confirmation.ratios[0].rounds) == 4
    assert stopped.confirmation.race_end == "it was stopped"
    bench.run(spec_of(confirm={"rounds": 8}))
    assert len(raced(bench)) == 8
    # What was measured before counts.
    assert len(bench.jobs("race")) <= 3 * 3


def test_after_ctrl_c_in_the_confirmation_nothing_trains(bench):
    """Not to the limit of the loss, and not to the baseline's loss: there are seconds left."""

    def last(config: TrialConfig, count: int) -> bool:
        return count == 2 + 8 + 3 * 3 + 2 + 1

    limit = {"val_loss": {"max_ratio_to_baseline": 2.0}}
    ran = bench.run(spec_of(confirm={"rounds": 8, "to_loss": True}, constraints=limit), interrupting(last))
    assert ran.stopped
    assert journal_of(bench).interim_result().confirmation.ratios
    trained = [Path(job.folder).name for job in bench.launcher.jobs if job.runner == QUALITY_RUNNER]
    assert all(name.startswith("loss-") and name.count("-") == 1 for name in trained), trained


# -- once more ------------------------------------------------------------------------------------------


def again(bench: Bench, answer=surface, **more):
    return reconfirm(bench.home, "toy", bench.watcher, launch=lambda folder: ReplayLauncher(answer), **more)


def test_confirm_repeats_it_any_day_and_leaves_the_result_alone(bench):
    bench.run()
    before = (journal_of(bench).folder / "result.json").read_bytes()
    found = again(bench)
    assert found.holds
    assert found.now is not None
    assert found.now.ratio == pytest.approx(found.before.ratio)
    assert (journal_of(bench).folder / "result.json").read_bytes() == before
    # The winner and the baseline alone, in a place of its own each time.
    again(bench)
    races = sorted(path.name for path in (journal_of(bench).folder / "races").glob("repeat-*"))
    assert races == ["repeat-0001", "repeat-0002"]
    numbers = {read_job(entry.folder).params["arm"] for entry in journal_of(bench).race_jobs("repeat-0002")}
    assert numbers == {0, found.number}


def test_of_changed_code_the_machines_record_learns_nothing(bench):
    bench.run()
    (path,) = (bench.home / "machines").glob("*.json")
    again(bench)
    assert "toy/repeat-0001" in path.read_text()
    code = Path("toy_pipeline.py")
    code.write_text(code.read_text().replace("return None", "return 1"))
    again(bench)
    assert any(line.startswith("Changed since the sweep: code") for line in bench.watcher.lines)
    assert "toy/repeat-0002" not in path.read_text()


def test_it_may_have_a_time_limit(bench):
    bench.run()
    slow = []

    def answer(config: TrialConfig) -> Measurement:
        slow.append(time.sleep(0.2))
        return noisy(0.3, len(slow))(config)

    found = again(bench, answer, minutes=1 / 60)
    assert found.now is not None
    assert 1 <= len(found.now.rounds) < 4


def test_a_winner_that_has_lost_its_lead_does_not_hold(bench):
    bench.run()
    assert not again(bench, lambda config: synthetic(100.0)).holds


@pytest.mark.slow
def test_ctrl_c_ends_it_with_what_the_rounds_say_or_with_nothing(bench):
    bench.run()
    with pytest.raises(KeyboardInterrupt):
        again(bench, interrupting(lambda config, count: count == 1))
    bench.run(spec_of(confirm={"rounds": 8}, name="other"))
    found = reconfirm(
        bench.home,
        "other",
        bench.watcher,
        launch=lambda folder: ReplayLauncher(interrupting(lambda config, count: count == 9)),
    )
    assert found.now is not None
    assert len(found.now.rounds) == 4


def test_a_soak_says_whether_the_speed_held(bench):
    bench.run()

    def tiring(config: TrialConfig) -> Measurement:
        window = synthetic(600.0).windows[0]
        return dataclasses.replace(
            surface(config), windows=tuple(dataclasses.replace(window, samples=n) for n in (600, 500, 300))
        )

    soak = again(bench, tiring, soak_seconds=60).soak
    assert soak is not None
    assert soak.held == pytest.approx(0.5)
    assert soak.seconds == 3


def test_there_has_to_be_a_winner(bench):
    with pytest.raises(UserError, match="There is no sweep called 'toy'"):
        again(bench)
    bench.run(answer=lambda config: synthetic(100.0))
    with pytest.raises(NothingFeasibleError, match="has no winner to confirm"):
        again(bench)


def test_a_failed_process_leaves_its_round_without_it(bench):
    taken = [0]

    def now_and_then(config: TrialConfig):
        taken[0] += 1
        if taken[0] > 10 and taken[0] % 4 == 0:
            return Failure(kind=FailureKind.OOM, message="no room")
        return surface(config)

    bench.run(answer=now_and_then)
    assert result_of(bench)["winner"] is not None


def test_after_a_hurry_the_rounds_are_those_that_its_ratios_rest_on(bench):
    """It may have cut off what came after the race of the best."""
    bench.run()
    journal = journal_of(bench)
    shutil.copytree(journal.race_folder("final"), journal.race_folder("interim"))
    log = journal.race_log("interim")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if json.loads(line).get("life", 0) < 3))
    assert 0 < len(load_sweep(journal).race) < len(raced(bench))
