"""A whole sweep on the replay launcher: what it runs, in which order, and what it leaves."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
from parts.noop import synthetic
from replays import Bench, failing, raced, spec_of, surface, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.job import TRACE_RUNNER, Job, read_job, read_outcome, write_outcome
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Measurement, Report
from sweeper.core.record import BASELINE
from sweeper.errors import EnvironmentStopError, NothingFeasibleError, UserError
from sweeper.exports import make_export
from sweeper.results.decision_lines import decision_lines
from sweeper.sweep import budget, progress
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.start import bootstrap
from sweeper.sweep.trial_runner import TrialRunner

JOURNAL = {
    "sweep.yaml",
    "study.log",
    "publication",
    "result.json",
    "lock",
    "epoch",
    "setup",
    "trials",
    "races",
}


def folder_of(bench: Bench, name: str = "toy"):
    return bench.home / "sweeps" / name


def result_of(bench: Bench, name: str = "toy") -> dict:
    return json.loads((folder_of(bench, name) / "result.json").read_text())


def test_the_folder_is_the_journal(bench):
    bench.run()
    folder = folder_of(bench)
    assert {path.name for path in folder.iterdir()} == JOURNAL
    trials = sorted(path.name for path in (folder / "trials").iterdir())
    assert trials == [f"{number:04d}" for number in range(10)]
    for path in (folder / "trials").iterdir():
        names = {each.name for each in path.iterdir()} - {"search_result.json", "publication"}
        assert names == {"config.json", "outcome.json"}
    assert not list(bench.home.rglob("*.tmp"))
    # Two candidates and the baseline, three rounds.
    confirm = list((folder / "races/final").glob("0*"))
    assert len(confirm) == 9
    asked = {(job.params["round"], job.params["arm"]) for job in map(read_job, confirm)}
    assert len(asked) == 9
    assert {number for number, _ in asked} == {0, 1, 2}


def test_references_come_first_and_as_written_and_then_exactly_the_trials_asked_for(bench):
    bench.run()
    trials = list(Journal(folder_of(bench)).trials())
    assert [entry.job.stage for entry in trials] == ["baseline", "reference"] + ["search"] * 8
    assert trials[0].job.config.loader.kind == "rows"
    assert trials[1].job.config.loader.num_workers == 8
    keys = [entry.job.config.key() for entry in trials]
    assert len(set(keys)) == len(keys)
    assert len({entry.job.uid for entry in trials}) == len(trials)
    assert bench.watcher.trials == list(range(10))
    # A reference lies outside this space: the search is not told of it.
    assert [entry.result is not None for entry in trials] == [False, False] + [True] * 8


def test_a_reference_inside_the_space_is_told_and_not_asked_again(bench):
    space = {"batch_size": {"type": "categorical", "choices": [64, 128]}}
    bench.run(spec_of(space=space, baseline={"batch_size": 64}, also_try=[]))
    trials = list(Journal(folder_of(bench)).trials())
    assert [entry.job.config.batch_size for entry in trials] == [64, 128]
    assert trials[0].result is not None
    assert result_of(bench)["search_end"] == "the space is exhausted after 1 trial"


def test_a_space_of_four_gives_four_trials(bench):
    space = {
        "batch_size": {"type": "categorical", "choices": [128, 256]},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    }
    bench.run(spec_of(space=space, search={"trials": 20}))
    assert len(bench.jobs("search")) == 4
    assert result_of(bench)["search_end"] == "the space is exhausted after 4 trials"


def test_the_same_command_again_runs_nothing(bench):
    assert bench.run().was_run
    before = {path: path.read_bytes() for path in bench.home.rglob("*.json")}
    again = bench.run()
    assert not again.was_run
    assert bench.launcher.jobs == []
    assert {path: path.read_bytes() for path in bench.home.rglob("*.json")} == before


def test_the_winner_is_the_simplest_of_the_fastest(bench):
    bench.run(spec_of(search={"trials": 20}))
    summary = load_sweep(Journal(folder_of(bench))).summary
    fastest = max(throughput(record.config) for record in summary.records)
    assert summary.winner is not None
    assert throughput(summary.winner.config) == fastest
    assert summary.ratio is not None
    assert summary.ratio.ratio == pytest.approx(fastest / 64)


def test_nothing_better_than_the_baseline_is_a_result(bench):
    def same(config: TrialConfig) -> Measurement:
        return synthetic(100.0 if config.loader.kind == "rows" else 50.0)

    assert bench.run(answer=same).was_run
    assert result_of(bench)["winner"] is None
    assert raced(bench) == []


def test_two_devices_run_two_trials_at_once_and_no_number_twice(bench):
    devices = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=22.5) for i in "ab"]
    bench.run(devices=devices, sleep_seconds=0.005)
    jobs = bench.jobs("search")
    assert len(jobs) == 8
    assert {job.device for job in jobs} == {"GPU-a", "GPU-b"}
    assert "Running on 2 x NVIDIA A10, 22.5 GiB." in bench.watcher.lines
    numbers = [entry.number for entry in Journal(folder_of(bench)).trials()]
    assert numbers == list(range(10))


def test_failures_are_values_and_infeasible_ones_are_told_the_worst(bench):
    bench.run(answer=failing(FailureKind.OOM, FailureKind.USER_ERROR, FailureKind.TIMEOUT))
    trials = {entry.number: entry for entry in Journal(folder_of(bench)).trials()}
    assert [trials[n].outcome.kind for n in (2, 3, 4)] == ["oom", "user_error", "timeout"]
    # The worst feasible value so far: the baseline's, even though it lies outside the space.
    assert trials[2].result.values == (64.0,)
    assert trials[3].result.values is None
    assert trials[4].result.values == (64.0,)
    assert trials[2].result.constraints == {"ran": 1.0, "val_loss": 1.0}
    assert len(bench.jobs("search")) == 8
    assert load_sweep(Journal(folder_of(bench))).summary.counts == {
        "oom": 1,
        "user_error": 1,
        "timeout": 1,
        "measured": 5,
    }


def test_a_loss_beyond_the_limit_cannot_win(bench):
    def loss(config: TrialConfig) -> float:
        return 1.0 if config.precision.amp == "fp32" else 1.1

    bench.run(spec_of(search={"trials": 16}), loss=loss)
    winner = load_sweep(Journal(folder_of(bench))).summary.winner
    assert winner is not None
    assert winner.config.precision.amp == "fp32"
    told = [entry.result for entry in Journal(folder_of(bench)).trials() if entry.result]
    beyond = [each for each in told if each.constraints["val_loss"] > 0]
    assert beyond
    assert all(each.constraints["val_loss"] == pytest.approx(1.1 / 1.02 - 1) for each in beyond)


def test_the_baselines_loss_is_measured_over_three_seeds(bench):
    losses = iter([1.0, 1.2, 0.8])

    def loss(config: TrialConfig) -> float:
        return next(losses, 1.35) if config.loader.kind == "rows" else 1.35

    bench.run(loss=loss)
    seeds = [read_job(folder_of(bench) / "setup" / f"loss-{i}").config.seed for i in range(3)]
    assert seeds == [0, 1, 2]
    # Two standard deviations are 0.4: far beyond the 1.02 asked for.
    assert load_sweep(Journal(folder_of(bench))).summary.winner is not None


def test_quality_runs_only_where_it_could_win_and_once_per_numerics(bench):
    def flat(config: TrialConfig) -> Measurement:
        return synthetic({"rows": 10.0, "workers": 100.0, "resident": 1000.0}[config.loader.kind])

    space = {
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 3, "when": {"loader.kind": "workers"}},
        "loader.drop_last": {"type": "categorical", "choices": [True, False]},
        "batch_size": {"type": "int", "low": 64, "high": 80},
    }
    spec = spec_of(
        space=space,
        baseline={"loader.kind": "rows", "batch_size": 32},
        also_try=[],
        search={"trials": 40, "sampler": "random"},
    )
    bench.run(spec, flat)
    passes, best = {}, 10.0
    for entry in Journal(folder_of(bench)).trials():
        assert isinstance(entry.outcome, Measurement)
        quality = entry.outcome.quality
        key = entry.job.config.quality_key()
        could_win = entry.outcome.throughput >= 0.9 * best
        assert (quality is not None) == (entry.number > 0 and could_win and key not in passes), entry.number
        if quality is not None:
            passes[key] = quality
        if key in passes or entry.number == 0:
            best = max(best, entry.outcome.throughput)
    searched = [entry for entry in Journal(folder_of(bench)).trials() if entry.job.stage == "search"]
    resident = {e.job.config.quality_key() for e in searched if e.job.config.loader.kind == "resident"}
    everything = {e.job.config.quality_key() for e in searched}
    assert len(resident) <= len(passes) < len(everything)
    records = load_sweep(Journal(folder_of(bench))).table.records
    for record in records.values():
        assert (record.quality is not None) == (record.config.quality_key() in passes or record.number == 0)


def test_a_loss_that_cannot_be_compared_is_said(bench):
    bench.run(constant_loss=0.9)
    assert any("The loss cannot tell configurations apart" in line for line in bench.watcher.lines)


def test_a_batch_range_is_cut_to_fifty_steps_with_one_line(bench):
    bench.run(spec_of(measure={"quality_samples": 5000}))
    assert [line for line in bench.watcher.lines if line.startswith("batch_size")] == [
        "batch_size: at most 100 here, so that 5,000 samples (measure.quality_samples) make 50 steps."
    ]
    assert max(job.config.batch_size for job in bench.jobs("search")) <= 100


def test_what_the_device_cannot_do_leaves_the_space_with_a_line_each(bench):
    lacks = {"precision.amp=bf16": "no bf16 here", "compile.mode=default": "no compiler"}
    bench.run(lacks=lacks, usable_cpus=2)
    assert "precision.amp: bf16 removed from the space (no bf16 here)." in bench.watcher.lines
    assert "loader.num_workers: at most 2 here (2 usable cores)." in bench.watcher.lines
    assert not any("compile" in line for line in bench.watcher.lines)
    assert {job.config.precision.amp for job in bench.jobs("search")} == {"fp32"}
    assert max(job.config.loader.num_workers for job in bench.jobs("search")) <= 2
    # A reference runs as it is written.
    assert bench.jobs("reference")[0].config.loader.num_workers == 8


@pytest.mark.parametrize(("rounds", "ran", "trials"), [(0, 0, 10), (1, 1, 8)])
def test_minutes_end_the_search_and_leave_a_fifth_for_confirmation(bench, monkeypatch, rounds, ran, trials):
    """120 s, of which confirmation keeps 24, and every trial takes 10 by this clock."""

    def clock() -> float:
        return 10.0 * sum(job.plan.repeats > 0 for job in bench.launcher.jobs)

    monkeypatch.setattr(bootstrap, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    spec = spec_of(search={"trials": 100, "minutes": 2}, confirm={"rounds": rounds}, measure={"trace": False})
    bench.run(spec)
    assert result_of(bench)["search_end"] == f"the time is up after {trials} trials"
    assert len(raced(bench)) == ran


def test_confirmation_keeps_the_time_that_its_processes_take(bench, monkeypatch):
    """Six processes of 19 s and two of 16 s for the winner's loss need more than a fifth, and get half."""

    def clock() -> float:
        return 20.0 * sum(job.plan.repeats > 0 for job in bench.launcher.jobs)

    monkeypatch.setattr(bootstrap, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    spec = spec_of(search={"trials": 100, "minutes": 4}, confirm={"rounds": 3, "top": 3}, also_try=[])
    bench.run(spec, lambda config: dataclasses.replace(surface(config), startup_seconds=15.0))
    assert result_of(bench)["search_end"] == "the time is up after 4 trials"
    # One candidate, so that it has as many rounds as fit; a sweep that is continued keeps to that.
    candidates = {tuple(each.job.params["arms"]) for each in Journal(folder_of(bench)).race_jobs("final")}
    assert len(candidates) == 1
    assert len(candidates.pop()) == 1
    assert [len(each) for each in raced(bench)] == [2]


def test_runs_of_the_confirmation_that_fail_are_named(bench):
    def answer(config: TrialConfig) -> Measurement | Failure:
        confirming = [job for job in bench.launcher.jobs if job.stage == "race"]
        if confirming and config.loader.kind != "rows":
            return Failure(kind=FailureKind.TIMEOUT, message="it took 30 s")
        return surface(config)

    bench.run(spec_of(confirm={"rounds": 3, "top": 1}), answer)
    said = [line for line in bench.watcher.lines if line.startswith("A confirmation run of ")]
    assert len(said) == 2
    assert said[0].endswith(" failed (timeout: it took 30 s).")


def test_the_baseline_has_to_run(bench):
    def broken(config: TrialConfig) -> Failure:
        return Failure(kind=FailureKind.USER_ERROR, message="ValueError: no such layer (toy_pipeline.py:7)")

    with pytest.raises(NothingFeasibleError, match=r"no such layer \(toy_pipeline.py:7\)"):
        bench.run(answer=broken)
    assert [job.stage for job in bench.launcher.jobs if job.plan.repeats] == ["baseline"]
    # Mended outside the sweep: the same command tries again.
    assert bench.run().was_run
    assert bench.watcher.lines[0] == "The earlier `toy` has no measurements, so it starts over."


def test_the_same_error_three_times_ends_the_sweep(bench):
    broken = failing(*[FailureKind.USER_ERROR] * 8)
    with pytest.raises(EnvironmentStopError, match="the same error ended 3 trials: it broke"):
        bench.run(answer=broken)
    assert len(bench.jobs("search")) == 3


def test_the_same_error_now_and_then_does_not_end_it(bench):
    def now_and_then(config: TrialConfig):
        odd = config.loader.kind == "workers" and config.loader.num_workers
        return Failure(kind=FailureKind.USER_ERROR, message="odd") if odd else surface(config)

    bench.run(spec_of(search={"trials": 12, "seed": 3}), now_and_then)
    assert len(bench.jobs("search")) == 12


@pytest.mark.parametrize(
    ("kind", "error"), [(FailureKind.USER_ERROR, UserError), (FailureKind.CRASH, EnvironmentStopError)]
)
def test_data_that_cannot_be_prepared_leaves_nothing(bench, kind, error):
    with pytest.raises(error, match="no rows"):
        bench.run(prepared=Failure(kind=kind, message="no rows"))
    assert not folder_of(bench).exists()


def test_setup_jobs_answer_with_reports(bench):
    bench.run()
    for name in ("probe", "prepare", "loss-0", "loss-1", "loss-2"):
        assert read_outcome(folder_of(bench) / "setup" / name) is not None


def test_without_rounds_the_best_is_said_to_be_unconfirmed(bench):
    bench.run(spec_of(confirm={"rounds": 0}))
    summary = load_sweep(Journal(folder_of(bench))).summary
    assert summary.winner is None
    first, *why = decision_lines(summary)
    assert "your baseline in a single trial, unconfirmed" in first
    assert "is better than" not in first
    assert [line.partition(" is ")[0] for line in why if " is compute-bound" in line] == [
        "  Your baseline",
        "  The fastest trial",
    ]


def test_a_loader_kind_whose_loss_was_not_looked_at_is_in_the_summary(bench):
    """Too slow to win, so that no quality pass was run for it; still the best of its kind."""

    def slow_workers(config: TrialConfig) -> Measurement:
        return synthetic(throughput(config) / (10 if config.loader.kind == "workers" else 1))

    bench.run(spec_of(search={"trials": 4}), slow_workers)
    journal = Journal(folder_of(bench))
    records = load_sweep(journal).table.finished_trials()
    measured = {r.config.loader.kind for r in records if r.feasible}
    rows = load_sweep(journal).summary.per_loader
    assert {row.title for row in rows} == measured
    assert any(row.record.quality is None for row in rows)


def test_the_baseline_has_one_speed_in_all_tables(bench):
    """The one of the rounds, where it was slower than in the search; it is the best of its kind."""
    seen: list[TrialConfig] = []

    def slower_later(config: TrialConfig) -> Measurement:
        seen.append(config)
        is_rival = config != seen[0] and config.loader.kind == seen[0].loader.kind
        return synthetic(throughput(config) / (10 if is_rival else 1 + (seen.count(config) > 1)))

    bench.run(spec_of(search={"trials": 4}), slower_later)
    summary = load_sweep(Journal(folder_of(bench))).summary
    assert summary.baseline_throughput
    rows = [*summary.per_loader, *summary.per_size]
    speeds = {row.throughput for row in rows if row.record.number == BASELINE}
    assert speeds == {summary.baseline_throughput}


# -- timings that are not clean -------------------------------------------------------------------------

BUSY = "other processes took cores"


def disturbed_in(*turns: int, canary_ms: float = 0.0):
    """A surface on which a resident trial is disturbed in these of its turns; the first is the search."""
    taken: dict[str, int] = {}

    def answer(config: TrialConfig) -> Measurement:
        found = surface(config)
        assert isinstance(found, Measurement)
        turn = taken[config.key()] = taken.get(config.key(), -1) + 1
        flags = (BUSY,) if config.loader.kind == "resident" and turn in turns else ()
        windows = (dataclasses.replace(found.windows[0], disturbances=flags, canary_ms=canary_ms),)
        return dataclasses.replace(found, windows=windows)

    return answer


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ((0, 1, 2, 3), "3 of 3 confirmation runs"),
        ((2,), "1 of 3 confirmation runs"),
        # What counts are the rounds.
        ((0,), ""),
    ],
)
def test_a_winner_whose_timings_were_disturbed_says_so(bench, turns: tuple[int, ...], said: str):
    bench.run(answer=disturbed_in(*turns))
    summary = load_sweep(Journal(folder_of(bench))).summary
    assert summary.winner is not None
    assert summary.winner.config.loader.kind == "resident"
    assert summary.disturbance_of(summary.winner) == said
    assert summary.disturbance_of(summary.yardstick.baseline) == ""
    lines = [line.strip() for line in decision_lines(summary) if "disturbed" in line]
    assert lines == ([f"The timings of the winner stayed disturbed: {said}."] if said else [])
    for row in summary.per_size:
        assert row.disturbed == bool(said)
    warnings = make_export(summary, spec_of())["warnings"]
    assert any("stayed disturbed" in warning for warning in warnings) == bool(said)


def test_an_unconfirmed_best_says_what_disturbed_its_search(bench):
    bench.run(spec_of(confirm={"rounds": 0}), disturbed_in(0))
    summary = load_sweep(Journal(folder_of(bench))).summary
    lines = decision_lines(summary)
    assert [line.strip() for line in lines if "disturbed" in line] == [
        f"The timings of the fastest trial stayed disturbed: {BUSY}."
    ]
    # Of the best and not of the baseline, whose line comes first.
    where = next(i for i, line in enumerate(lines) if "disturbed" in line)
    assert any("The fastest trial is" in line for line in lines[:where])


def test_disturbed_rounds_are_counted_by_trial(bench):
    bench.run(answer=disturbed_in(1, 2))
    result = result_of(bench)
    assert set(result["disturbances"]) == {
        str(number) for number in (0, *(r["trial"] for r in result["ratios"]))
    }
    assert result["disturbances"]["0"] == 0
    assert result["disturbances"][str(result["winner"])] == 2


def test_every_trial_knows_the_canary_of_the_quiet_machine(bench):
    times = iter([25.0, 0.0, 21.0, 23.0])

    def answer(config: TrialConfig) -> Measurement:
        return disturbed_in(canary_ms=next(times, 30.0))(config)

    bench.run(spec_of(), answer)
    told = [job.plan.quiet_canary_ms for job in bench.launcher.jobs if job.plan.repeats]
    # Of a window beside the trial's own loader there is none; else the shortest so far.
    assert told[:5] == [0.0, 25.0, 25.0, 21.0, 21.0]
    assert set(told[5:]) == {21.0}


@pytest.mark.parametrize(
    ("probed", "seen", "quiet"), [(0.0, 0.0, 0.0), (20.0, 0.0, 20.0), (0.0, 25.0, 25.0), (20.0, 19.0, 19.0)]
)
def test_the_quiet_canary_is_the_shortest_of_probe_and_windows(probed: float, seen: float, quiet: float):
    context = SimpleNamespace(machine=SimpleNamespace(canary_ms=probed))
    known = SimpleNamespace(_context=context, table=SimpleNamespace(quiet_canary_ms=lambda: seen))
    assert TrialRunner.quiet_canary_ms(known) == quiet


def test_rounds_are_single_windows_with_room_for_one_repetition(bench):
    bench.run(spec_of(measure={"window_seconds": 2.0}))
    rounds = bench.jobs("race")
    assert len(rounds) == 9
    for job in rounds:
        plan = job.plan
        assert (plan.repeats, plan.window_seconds, plan.cap_seconds, plan.diagnose) == (1, 2.0, 3.0, False)
    assert all(job.plan.diagnose for job in bench.jobs("search"))


# -- traces ---------------------------------------------------------------------------------------------


def traced(bench: Bench) -> list[Job]:
    return [job for job in bench.launcher.jobs if job.runner == TRACE_RUNNER]


def test_baseline_and_winner_are_traced_at_the_end(bench):
    bench.run()
    winner = result_of(bench)["winner"]
    trials = folder_of(bench).resolve() / "trials"
    baseline, best = traced(bench)
    assert bench.launcher.jobs[-2:] == [baseline, best]
    assert [job.trace for job in (baseline, best)] == [
        str(trials / f"{number:04d}" / "trace.json.gz") for number in (0, winner)
    ]
    records = load_sweep(Journal(folder_of(bench))).table.records
    assert [job.config.key() for job in (baseline, best)] == [records[n].config.key() for n in (0, winner)]
    # Nothing of them is timed, and none is a trial.
    assert {job.plan.repeats for job in (baseline, best)} == {0}
    assert len(records) == 10


def test_a_sweep_without_traces(bench):
    bench.run(spec_of(measure={"trace": False}))
    assert traced(bench) == []


def test_a_trace_that_fails_costs_a_line(bench):
    def answer(config: TrialConfig) -> Measurement | Failure:
        if bench.launcher.jobs[-1].runner == TRACE_RUNNER:
            return Failure(kind=FailureKind.CRASH, message="no profiler here")
        return surface(config)

    assert bench.run(answer=answer).was_run
    lines = [line for line in bench.watcher.lines if "No trace" in line]
    assert lines[0] == "No trace of 000 baseline (crash: no profiler here)."
    assert len(lines) == 2
    assert load_sweep(Journal(folder_of(bench))).summary.winner is not None


def test_operations_are_those_of_the_trace(bench):
    bench.run()
    sweep = load_sweep(Journal(folder_of(bench)))
    assert sweep.trace_report(0) == {}
    write_outcome(sweep.journal.setup_folder("trace-0"), Report(values={"operations": {"aten::mm": 1.25}}))
    assert sweep.trace_report(0)["operations"] == {"aten::mm": 1.25}
    assert sweep.trace_report(1) == {}
