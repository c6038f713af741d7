"""Whatever is cut off where: the folder alone is enough to go on, and nothing is run or lost twice."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from replays import Bench, failing, raced, spec_of, surface

from sweeper.core.job import CONFIG, OUTCOME, read_job, read_outcome, write_job, write_outcome
from sweeper.core.measurement import Failure, FailureKind
from sweeper.errors import SweepConflictError
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.sweep import job_runner as runner_module
from sweeper.sweep.folder.journal import SEARCH_RESULT, Journal
from sweeper.sweep.folder.lock import SweepLock
from sweeper.system.files import read_json, write_json


class Killed(BaseException):
    """Ends the supervisor between two lines, as kill -9 would."""


def dying(after: int):
    """A surface whose supervisor dies while trial `after` runs: a config.json without an outcome."""
    left = [after]

    def answer(config):
        if not left[0]:
            raise Killed
        left[0] -= 1
        return surface(config)

    return answer


def folder_of(bench: Bench) -> Path:
    return bench.home / "sweeps" / "toy"


def trial(bench: Bench, number: int) -> Path:
    return Journal(folder_of(bench)).trial_folder(number)


def outcomes(bench: Bench) -> dict[Path, bytes]:
    """All but those of the probe and of preparing, which every start asks anew."""
    passed_over = {folder_of(bench) / "setup" / name / OUTCOME for name in ("probe", "prepare")}
    return {path: path.read_bytes() for path in set(folder_of(bench).rglob(OUTCOME)) - passed_over}


def finished_as_asked(bench: Bench, trials: int = 8) -> None:
    """Exactly the searched trials, none twice, all told, none running in the study."""
    entries = list(Journal(folder_of(bench)).trials())
    assert sum(entry.job.stage == "search" for entry in entries) == trials
    assert [entry.number for entry in entries] == list(range(trials + 2))
    assert all(entry.outcome is not None for entry in entries)
    keys = [entry.job.config.key() for entry in entries]
    assert len(set(keys)) == len(keys)
    storage = JournalStorage(JournalFileBackend(str(folder_of(bench) / "study.log")))
    study = optuna.load_study(study_name="toy", storage=storage)
    numbers = [t.user_attrs["sweeper.number"] for t in study.trials if "sweeper.number" in t.user_attrs]
    assert sorted(numbers) == list(range(2, trials + 2))
    assert all(t.state in (TrialState.COMPLETE, TrialState.FAIL) for t in study.trials)


def same_as_uninterrupted(bench: Bench, tmp_path: Path) -> None:
    whole = Bench(tmp_path / "whole")
    whole.run()
    assert {e.number: e.job.config for e in Journal(folder_of(bench)).trials()} == {
        e.number: e.job.config for e in Journal(folder_of(whole)).trials()
    }


@pytest.mark.parametrize("after", range(0, 19, 2))
def test_a_config_without_an_outcome_runs_again_under_its_number(bench, tmp_path, after):
    with pytest.raises(Killed):
        bench.run(answer=dying(after))
    before = outcomes(bench)
    assert bench.run().was_run
    assert "Continuing `toy`" in bench.watcher.lines[0]
    assert {path: outcomes(bench)[path] for path in before} == before
    finished_as_asked(bench)
    same_as_uninterrupted(bench, tmp_path)
    assert len(list((folder_of(bench) / "races/final").glob("0*"))) == 9


def test_killed_after_each_trial_in_turn(bench, tmp_path):
    for _ in range(40):
        try:
            bench.run(answer=dying(1))
        except Killed:
            continue
        break
    finished_as_asked(bench)
    same_as_uninterrupted(bench, tmp_path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (TrialTable, "enter"),
        (TrialTable, "record_result"),
        (Journal, "write_search_result"),
        (runner_module, "write_job"),
        (Journal, "write_result"),
    ],
)
@pytest.mark.parametrize("at", [0, 3, 7])
def test_killed_before_any_step(bench, tmp_path, monkeypatch, module, name, at):
    if name == "write_result" and at:
        pytest.skip("a sweep ends once")
    real, left = getattr(module, name), [at]

    def dies(*arguments, **more):
        if not left[0]:
            raise Killed
        left[0] -= 1
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, dies)
        with pytest.raises(Killed):
            bench.run()
    before = outcomes(bench)
    bench.run()
    assert {path: outcomes(bench)[path] for path in before} == before
    finished_as_asked(bench)
    same_as_uninterrupted(bench, tmp_path)


def unfinished(bench: Bench, searched: int = 4) -> None:
    with pytest.raises(Killed):
        bench.run(answer=dying(2 + searched))


def test_an_outcome_that_was_not_told_is_told_now(bench):
    unfinished(bench)
    (trial(bench, 5) / SEARCH_RESULT).unlink()
    bench.run()
    assert (trial(bench, 5) / SEARCH_RESULT).exists()
    finished_as_asked(bench)


def test_what_was_told_is_never_told_otherwise(bench):
    unfinished(bench)
    path = trial(bench, 4) / SEARCH_RESULT
    told = read_json(path)
    write_json(path, {**told, "values": [123.0]})
    bench.run()
    assert read_json(path)["values"] == [123.0]
    storage = JournalStorage(JournalFileBackend(str(folder_of(bench) / "study.log")))
    study = optuna.load_study(study_name="toy", storage=storage)
    assert [123.0] in [t.values for t in study.trials]


@pytest.mark.parametrize("cut", [None, 20, 400])
def test_a_study_that_is_torn_or_gone(bench, tmp_path, cut):
    unfinished(bench)
    study = folder_of(bench) / "study.log"
    if cut is None:
        study.unlink()
    else:
        os.truncate(study, study.stat().st_size - cut)
    bench.run()
    finished_as_asked(bench)
    same_as_uninterrupted(bench, tmp_path)


def test_a_trial_lost_with_three_supervisors_is_lost(bench):
    for _ in range(3):
        with pytest.raises(Killed):
            bench.run(answer=dying(4) if not folder_of(bench).exists() else dying(0))
    bench.run()
    outcome = read_outcome(trial(bench, 4))
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.LOST
    assert "ended 3 times" in outcome.message
    finished_as_asked(bench)
    assert read_json(trial(bench, 4) / SEARCH_RESULT)["values"] is None


@pytest.mark.parametrize(("times", "kinds"), [(2, {"measured"}), (3, {"measured", "lost"})])
def test_a_worker_that_leaves_nothing_is_tried_twice_more(bench, times, kinds):
    bench.run(answer=failing(*[FailureKind.LOST] * times))
    assert [job.attempt for job in bench.jobs("search")[:3]] == [0, 1, 2]
    entries = [e for e in Journal(folder_of(bench)).trials() if e.job.stage == "search"]
    assert {e.outcome.kind.value if isinstance(e.outcome, Failure) else "measured" for e in entries} == kinds
    # Without an end its run would be RUNNING for ever.
    assert all(e.outcome.finished_at >= e.job.created_at > 0 for e in entries)
    finished_as_asked(bench)


def test_a_preempted_attempt_is_kept_aside_and_tried_again(bench):
    bench.run(answer=failing(FailureKind.PREEMPTED))
    aside = read_json(trial(bench, 2) / "attempt-0-outcome.json")
    assert aside["kind"] == "preempted"
    assert not isinstance(read_outcome(trial(bench, 2)), Failure)


def test_preempted_together_with_its_supervisor_it_runs_again(bench):
    """SLURM ends all of a job's processes at once: the worker still writes what it saw."""
    unfinished(bench)
    write_outcome(trial(bench, 6), Failure(kind=FailureKind.PREEMPTED, message="SIGTERM"))
    bench.run()
    assert not isinstance(read_outcome(trial(bench, 6)), Failure)
    finished_as_asked(bench)


def test_preempted_together_with_its_supervisor_a_loss_is_measured_again(bench):
    """Without the baseline's loss, its limits would not be applied."""
    unfinished(bench)
    folder = Journal(folder_of(bench)).setup_folder("loss-0")
    write_outcome(folder, Failure(kind=FailureKind.PREEMPTED, message="SIGTERM"))
    bench.run()
    assert not isinstance(read_outcome(folder), Failure)
    assert read_job(folder).attempt == 1
    finished_as_asked(bench)


def test_the_night_between_two_supervisors_is_not_the_trials_time(bench):
    unfinished(bench)
    job = read_job(trial(bench, 6))
    (trial(bench, 6) / CONFIG).unlink()
    write_job(trial(bench, 6), dataclasses.replace(job, created_at=time.time() - 36_000))
    bench.run(spec_of(search={"minutes": 5}))
    job, outcome = read_job(trial(bench, 6)), read_outcome(trial(bench, 6))
    assert outcome is not None
    assert outcome.finished_at - job.created_at < 60
    assert job.attempt == 1
    finished_as_asked(bench)


def test_a_round_of_confirmation_that_was_cut_off_is_completed(bench):
    with pytest.raises(Killed):
        bench.run(answer=dying(14))
    done = {path: path.read_bytes() for path in (folder_of(bench) / "races/final").rglob(OUTCOME)}
    assert len(done) == 4
    bench.run()
    assert len(bench.jobs("race")) == 5
    assert {path: path.read_bytes() for path in done} == done


def spend(bench: Bench, seconds: float) -> None:
    """Has a seed of the baseline take longer."""
    seed = next(each for each in Journal(folder_of(bench)).setup() if each.folder.name.startswith("loss"))
    tree = read_json(seed.folder / OUTCOME)
    write_json(seed.folder / OUTCOME, {**tree, "finished_at": tree["finished_at"] + seconds})


@pytest.mark.parametrize(("seconds", "searched"), [(200.0, 12), (290.0, 0)])
def test_the_time_of_jobs_that_are_no_trials_counts_too(bench, seconds, searched):
    unfinished(bench, 8)
    spend(bench, seconds)
    bench.run(spec_of(search={"minutes": 5, "trials": 20}))
    assert len(bench.jobs("search")) == searched


@pytest.mark.parametrize(("seconds", "searched"), [(100.0, 12), (215.0, 0)])
def test_once_it_confirms_it_does_not_search_on_for_a_moment(bench, seconds, searched):
    with pytest.raises(Killed):
        bench.run(answer=dying(14))
    spend(bench, seconds)
    bench.run(spec_of(search={"minutes": 5, "trials": 20}))
    assert len(bench.jobs("search")) == searched
    if not searched:
        reason = read_json(folder_of(bench) / "result.json")["search_end"]
        assert reason == "the time is up after 8 trials"


def test_other_candidates_do_not_inherit_rounds_that_are_not_theirs(bench):
    """`confirm.top` is not part of what must stay the same."""
    with pytest.raises(Killed):
        bench.run(spec_of(confirm={"top": 1}), answer=dying(14))
    bench.run(spec_of(confirm={"top": 2}))
    for path in (folder_of(bench) / "races/final").glob("0*"):
        job, outcome = read_job(path), read_outcome(path)
        expected = surface(read_job(trial(bench, job.params["arm"])).config)
        assert outcome.throughput == expected.throughput, path
    for each in raced(bench):
        # A race goes on with the candidates that it began with.
        assert len(each) == 2
        for number, value in each.items():
            assert value == surface(read_job(trial(bench, int(number))).config).throughput


def test_a_second_supervisor_names_the_holder(bench):
    bench.run()
    lock = SweepLock(folder_of(bench))
    with pytest.raises(SweepConflictError, match=rf"process {os.getpid()} on "):
        bench.run()
    lock.release()
    assert not bench.run().was_run


def test_a_supervisor_that_lost_the_sweep_tells_nothing_more(bench):
    def taken_over(config):
        if config.loader.kind != "rows":
            (folder_of(bench) / "epoch").write_text("99\n")
        return surface(config)

    with pytest.raises(SweepConflictError, match="taken over"):
        bench.run(answer=taken_over)
    assert len(bench.jobs("search")) == 1
    assert not (trial(bench, 2) / SEARCH_RESULT).exists()
    bench.run()
    assert int((folder_of(bench) / "epoch").read_text()) == 100
    finished_as_asked(bench)
