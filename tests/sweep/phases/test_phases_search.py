"""The search of a sweep: fidelity, memory that does not suffice, and when it is enough."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from parts.noop import synthetic
from replays import Bench, spec_of, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Measurement
from sweeper.search import Hints
from sweeper.search.guidance import RECOMPUTATION
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.job_runner import Slot
from sweeper.sweep.memory_limit import Capacity
from sweeper.sweep.phases.search import hints_of
from sweeper.sweep.start.setup import Machine

GPU = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-a", memory_gib=8.0)
WIDE = {
    "batch_size": {"type": "int", "low": 64, "high": 65536, "log": True},
    "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    "optimizer.fused": {"type": "categorical", "choices": [True, False]},
}


def entries_of(bench: Bench) -> list:
    return list(Journal(bench.home / "sweeps" / "toy").trials())


def reason_of(bench: Bench) -> str:
    result = Journal(bench.home / "sweeps" / "toy").result()
    assert result is not None
    return result.search_end


def peak(config: TrialConfig) -> float:
    return 0.5 + config.batch_size * (0.5e-3 if config.precision.amp == "bf16" else 1e-3)


def on_a_gpu(config: TrialConfig) -> Measurement | Failure:
    """A device of 8 GiB: at most 7500 samples in fp32, 15000 in bf16."""
    if peak(config) > GPU.memory_gib:
        return Failure(kind=FailureKind.OOM, message="CUDA out of memory")
    measured = synthetic(config.batch_size**0.5 * (1.1 if config.precision.amp == "bf16" else 1.0))
    return dataclasses.replace(measured, gpu_mem_peak_gib=peak(config), device=GPU)


# -- fidelity -------------------------------------------------------------------------------------------


def test_searched_trials_are_screened_against_the_best_so_far(bench):
    bench.run()
    assert {job.plan.screen_above for job in bench.jobs("baseline") + bench.jobs("reference")} == {0.0}
    searched = bench.jobs("search")
    best = 256.0
    for job in searched:
        assert job.plan.screen_above == pytest.approx(0.8 * best)
        assert 0 < job.plan.screen_seconds < job.plan.window_seconds
        best = max(best, throughput(job.config))
    slow = [entry for entry in entries_of(bench) if entry.outcome.is_screened]
    assert slow
    for entry in slow:
        assert throughput(entry.job.config) < entry.job.plan.screen_above
        # It is told as it was found, and no loss is looked at.
        assert entry.result.values == (throughput(entry.job.config),)
        assert entry.outcome.quality is None


def test_what_was_screened_out_is_no_finalist(bench):
    bench.run(spec_of(confirm={"top": 100}))
    screened = {entry.number for entry in entries_of(bench) if entry.outcome.is_screened}
    confirmed = {
        entry.job.params["arm"] for entry in Journal(bench.home / "sweeps" / "toy").race_jobs("final")
    }
    assert screened
    assert not screened & confirmed


def test_with_several_objectives_nothing_is_screened_and_that_is_said(bench):
    bench.run(spec_of(objectives=[{"maximize": "throughput"}, {"minimize": "val_loss"}]))
    assert {job.plan.screen_above for job in bench.jobs("search")} == {0.0}
    assert any("no trial is ended early" in line for line in bench.watcher.lines)


# -- memory ---------------------------------------------------------------------------------------------


def test_what_is_expected_not_to_fit_is_not_run(bench):
    spec = spec_of(space=WIDE, search={"trials": 20, "seed": 3}, constraints={}, also_try=[])
    bench.run(spec, on_a_gpu, devices=[GPU])
    ended = [(entry.job.config, entry.outcome) for entry in entries_of(bench)]
    passed_over = [config for config, outcome in ended if getattr(outcome, "kind", "") == "oom_expected"]
    ran_out = [config for config, outcome in ended[6:] if getattr(outcome, "kind", "") == "oom"]
    assert passed_over
    assert all(peak(config) > GPU.memory_gib for config in passed_over)
    assert len(ran_out) <= 1
    # They are trials with a number and a reason, are told, and do not count as trials.
    assert len(bench.jobs("search")) == 20
    entry = next(each for each in entries_of(bench) if getattr(each.outcome, "kind", "") == "oom_expected")
    assert entry.outcome.message.startswith("not run: expected to need ")
    assert "the limit is 8" in entry.outcome.message
    assert entry.result.constraints["ran"] == 1.0
    assert load_sweep(Journal(bench.home / "sweeps" / "toy")).summary.counts["oom_expected"] == len(
        passed_over
    )


def _in_place(bench: Bench) -> list[tuple[TrialConfig, Job]]:
    """Each configuration that was passed over, with the next job."""
    return [
        (one.job.config, other.job)
        for one, other in itertools.pairwise(entries_of(bench))
        if getattr(one.outcome, "kind", "") == "oom_expected"
    ]


def test_half_of_a_batch_that_does_not_fit_is_run_in_its_place(bench):
    spec = spec_of(space=WIDE, search={"trials": 20, "seed": 3}, constraints={}, also_try=[])
    bench.run(spec, on_a_gpu, devices=[GPU])
    offered = [pair for pair in _in_place(bench) if pair[1].config.accumulate_steps > 1]
    assert 1 <= len(offered) <= 3
    for refused, job in offered:
        run = job.config
        # A batch that cannot be halved evenly loses a sample.
        assert 0 <= refused.global_batch - run.global_batch < run.accumulate_steps
        assert peak(run) <= GPU.memory_gib


def test_what_does_not_fit_is_run_with_recomputed_activations(bench):
    space = {**WIDE, "activation_checkpointing": {"type": "categorical", "choices": [False, True]}}

    def lean(config: TrialConfig) -> Measurement | Failure:
        """Recomputed activations take two thirds of each sample's memory, and a quarter more time."""
        is_lean = config.activation_checkpointing
        stored = config.replace({"batch_size": config.batch_size // 3}) if is_lean else config
        found = on_a_gpu(stored)
        if isinstance(found, Failure):
            return found
        return dataclasses.replace(found, throughput=config.batch_size**0.5 * (0.8 if is_lean else 1.0))

    spec = spec_of(space=space, search={"trials": 24, "seed": 3}, constraints={}, also_try=[])
    bench.run(spec, lean, devices=[GPU])
    offered = [pair for pair in _in_place(bench) if pair[1].origin.startswith(RECOMPUTATION)]
    assert offered
    for refused, job in offered:
        assert job.config == refused.replace({"activation_checkpointing": True})


def test_a_limit_on_memory_is_a_limit_for_the_model(bench):
    spec = spec_of(
        space=WIDE,
        search={"trials": 16},
        also_try=[],
        constraints={"gpu_mem_peak_fraction": {"max": 0.5}},
    )
    bench.run(spec, on_a_gpu, devices=[GPU])
    passed_over = [e for e in entries_of(bench) if getattr(e.outcome, "kind", "") == "oom_expected"]
    assert passed_over
    assert all("the limit is 4" in entry.outcome.message for entry in passed_over)
    assert all(peak(entry.job.config) > 4 for entry in passed_over)


def test_cut_off_after_a_refusal_the_offer_is_still_made(bench, tmp_path):
    spec = spec_of(space=WIDE, search={"trials": 20, "seed": 3}, constraints={}, also_try=[])
    bench.run(spec, on_a_gpu, devices=[GPU])
    whole = [entry.job.config for entry in entries_of(bench)]
    refused = next(
        i for i, e in enumerate(entries_of(bench)) if getattr(e.outcome, "kind", "") == "oom_expected"
    )
    import shutil

    other = Bench(tmp_path / "other")
    shutil.copytree(bench.home, other.home)
    folder = other.home / "sweeps" / "toy"
    for entry in Journal(folder).trials():
        if entry.number > refused:
            shutil.rmtree(entry.folder)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "races/final")
    other.run(spec, on_a_gpu, devices=[GPU])
    assert [entry.job.config for entry in entries_of(other)] == whole


def test_what_was_passed_over_is_asked_again_once_more_is_known(bench, monkeypatch):
    """Refused until three trials have been measured: the memory model changes its mind like this."""
    refused = Failure(kind=FailureKind.OOM_EXPECTED, message="not run")

    def objection(capacity, config):
        few = len(capacity._table.searched_trials()) < 3
        return refused if config.batch_size == 512 and few else None

    monkeypatch.setattr(Capacity, "objection", objection)
    space = {"batch_size": {"type": "categorical", "choices": [128, 256, 512, 1024]}}
    bench.run(spec_of(space=space, search={"trials": 20}, also_try=[]))
    large = [entry.outcome for entry in entries_of(bench) if entry.job.config.batch_size == 512]
    assert [isinstance(outcome, Failure) for outcome in large] == [True, False]


@pytest.mark.parametrize(("chance", "runs"), [(0.4, True), (0.01, False)])
def test_what_may_not_fit_runs_in_the_end_if_it_promises_enough(bench, monkeypatch, chance, runs):
    refused = Failure(kind=FailureKind.OOM_EXPECTED, message="not run")
    monkeypatch.setattr(
        Capacity, "objection", lambda capacity, config: refused if config.batch_size == 1024 else None
    )
    monkeypatch.setattr(Capacity, "chance", lambda capacity, config: chance)
    space = {
        "batch_size": {"type": "categorical", "choices": [128, 256, 512, 1024]},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    }
    bench.run(spec_of(space=space, search={"trials": 20, "regret": 0.02}, also_try=[]))
    entries = [each for each in entries_of(bench) if each.job.config.batch_size == 1024]
    ran = [each for each in entries if isinstance(each.outcome, Measurement)]
    assert bool(ran) is runs
    assert all(each.job.origin == "may not fit: nothing else promises more" for each in ran)
    if ran:
        others = [each.number for each in entries_of(bench) if each.job.config.batch_size < 1024]
        assert ran[0].number > max(others[:5])


# -- enough ---------------------------------------------------------------------------------------------


def test_patience_ends_the_search(bench):
    bench.run(spec_of(search={"trials": 100, "patience": 5}))
    assert reason_of(bench) == "5 trials in a row were no better"
    numbers = [entry.number for entry in entries_of(bench)]
    best = max(entries_of(bench), key=lambda entry: entry.outcome.throughput)
    assert numbers[-1] - best.number == 5


@pytest.mark.parametrize(("trace", "searched"), [(True, 0), (False, 20)])
def test_the_search_leaves_time_for_the_traces(bench, trace, searched):
    # Each trace is expected to take one and a half seconds.
    bench.run(
        spec_of(
            search={"trials": 20, "minutes": 0.1},
            measure={"window_seconds": 2.0, "trace": trace},
        )
    )
    assert len(bench.jobs("search")) == searched


@pytest.mark.parametrize(("minutes", "tried"), [(10, {128, 256}), (None, {128, 256, 512})])
def test_other_sizes_get_a_tenth_of_the_time(bench, minutes, tried):
    def answer(config: TrialConfig) -> Measurement:
        size = config.model["hidden_size"]
        return dataclasses.replace(synthetic(64_000.0 / size), seconds=1.0 if size == 64 else 30.0)

    bench.run(
        spec_of(
            space={
                "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
                "model.hidden_size": {"type": "categorical", "choices": [64, 128, 256, 512]},
            },
            baseline={"model.hidden_size": 64, "batch_size": 64},
            also_try=[],
            search={"trials": 8, "minutes": minutes, "regret": 0.01},
        ),
        answer,
    )
    sizes = [job.config.model["hidden_size"] for job in bench.jobs("search")]
    assert {*sizes} - {64} == tried
    said = "model.hidden_size: 1 of the other sizes will not run: together, they would take more than 10%"
    assert any(line.startswith(said) for line in bench.watcher.lines) == (minutes is not None)


def test_little_to_gain_ends_the_search(bench):
    bench.run(spec_of(search={"trials": 100, "regret": 0.02}))
    assert "the expected gain was at most" in reason_of(bench)
    assert 5 <= len(bench.jobs("search")) < 60
    best = max(entry.outcome.throughput for entry in entries_of(bench))
    assert best == pytest.approx(4 * 1024 * 1.1)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 20))]
)
def test_cut_off_in_the_middle_the_same_trials_are_asked(tmp_path, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_pipeline.py").write_text("def prepare(data): ...\ndef build(config, prepared): ...\n")
    spec = spec_of(search={"trials": 14, "seed": seed}, confirm={"rounds": 0})
    whole, cut = Bench(tmp_path / "whole"), Bench(tmp_path / "cut")
    whole.run(spec)
    cut.run(spec)
    folder = cut.home / "sweeps" / "toy"
    import shutil

    for entry in Journal(folder).trials():
        if entry.number > 4 + seed % 8:
            shutil.rmtree(entry.folder)
    (folder / "result.json").unlink()
    cut.run(spec)
    assert [e.job.config for e in entries_of(cut)] == [e.job.config for e in entries_of(whole)]


def test_first_guesses_rest_on_the_cores_that_a_trial_may_use():
    gpus = tuple(DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}") for i in range(2))
    machine = Machine(gpus, 6, {}, tuple(Slot(gpu.uuid) for gpu in gpus))
    assert hints_of(machine) == Hints(device="NVIDIA A10", cores=6)
