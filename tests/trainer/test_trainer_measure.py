"""A whole trial: what is timed, and what is not."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import threading
import time

import pytest
import torch

from sweeper.core.loaders import BUILTIN
from sweeper.core.measurement import Diagnosis
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.system.files import write_atomic
from sweeper.system.process import children
from sweeper.trainer import device, measure
from sweeper.trainer.on_demand import GO, read_ready

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.usefixtures("quiet"),
]

SHORT = {"window_seconds": 0.05, "repeats": 2, "warmup_cap_seconds": 0.05}


class Listener(SilentProgress):
    def __init__(self):
        super().__init__()
        self.stages, self.windows, self.devices = [], [], []

    def stage(self, name):
        self.stages.append(name)

    def window(self, window):
        self.windows.append(window)
        return ()

    def device(self, info):
        self.devices.append(info)


def test_throughput_is_samples_over_wall_and_the_breakdown_sums_to_it(make_job):
    heard = Listener()
    config = {"model.hidden": 256, "batch_size": 500}
    plan = {"window_seconds": 0.2, "repeats": 3, "warmup_cap_seconds": 0.3, "quality_samples": 500}
    result = measure.run(make_job(config, **plan), heard)
    seconds = sum(w.seconds for w in result.windows)
    assert result.throughput == sum(w.samples for w in result.windows) / seconds
    assert all(w.samples == 500 * w.steps for w in result.windows)
    assert result.epoch_seconds == pytest.approx(2000 / result.throughput)
    assert result.step_ms == pytest.approx(1e3 * seconds / sum(w.steps for w in result.windows))
    assert result.breakdown.step_s == pytest.approx(result.step_ms / 1e3, rel=0.03)
    assert result.breakdown.host_gap_s < 0.03 * result.breakdown.step_s
    assert min(result.breakdown.forward_s, result.breakdown.backward_s, result.breakdown.data_s) > 0
    assert heard.stages == ["build", "warmup", "window", "quality"]
    assert tuple(heard.windows) == result.windows
    assert result.repeated_windows == 0
    assert heard.devices == [result.device]
    assert (result.device.kind, result.gpu_mem_peak_gib, result.cpu_threads) == ("cpu", None, 1)
    assert result.versions["torch"] == torch.__version__
    assert result.diagnosis is None  # Not asked for.


def test_windows_follow_one_another_and_have_their_length(make_job):
    result = measure.run(make_job(window_seconds=0.15, repeats=3, warmup_cap_seconds=0.05), SilentProgress())
    assert all(w.seconds >= 0.15 for w in result.windows)
    for before, after in itertools.pairwise(result.windows):
        assert after.start_s >= before.start_s + before.seconds
    assert sum(w.cpu_seconds for w in result.windows) > 0


def test_the_cap_ends_measuring_after_a_window(make_job):
    result = measure.run(make_job(**{**SHORT, "repeats": 50, "cap_seconds": 0.0}), SilentProgress())
    assert len(result.windows) == 1


def test_a_ragged_batch_earns_its_own_samples_only(make_job):
    # 2,000 samples in batches of 1,500 and 500: counted in whole batches it would be half as much again.
    config = {"batch_size": 1500, "loader.drop_last": False}
    result = measure.run(make_job(config, **{**SHORT, "repeats": 1}), SilentProgress())
    (window,) = result.windows
    assert window.samples == pytest.approx(1000 * window.steps, abs=500)
    alone = measure.run(make_job({**config, "batch_size": 5000}, **{**SHORT, "repeats": 1}), SilentProgress())
    assert alone.windows[0].samples == 2000 * alone.windows[0].steps


def test_a_slow_first_step_is_a_figure_of_its_own(make_job):
    result = measure.run(make_job({"model.first_seconds": 0.7}, **SHORT), SilentProgress())
    assert 0.7 <= result.first_step_seconds < 5
    assert result.first_step_seconds <= result.warmup_seconds
    assert result.step_ms < 200
    assert result.throughput * sum(w.seconds for w in result.windows) == pytest.approx(
        100 * sum(w.steps for w in result.windows)
    )
    assert (result.compile_seconds, result.compile_cache, dict(result.effective)) == (0.0, "", {})


def test_workers_have_their_drain(make_job):
    options = {"loader.kind": "workers", "loader.num_workers": 2, "loader.prefetch_factor": 3}
    job = make_job(options, warmup_cap_seconds=0.05)
    result = measure.run(job, SilentProgress())
    for window in result.windows:
        # Cut where the machine is so busy that a drain took longer than twice the window.
        assert window.steps % 6 == 0 or window.seconds >= 0.2


def test_a_loss_that_is_not_finite_is_a_finding(make_job):
    with pytest.raises(TrialFailedError, match="the training loss became nan") as caught:
        measure.run(make_job({"model.fault": "nan"}, **SHORT), SilentProgress())
    assert caught.value.kind == "non_finite"


def test_steps_that_a_scaler_skips_earn_nothing(make_job):
    with pytest.raises(TrialFailedError, match="fp16 skipped 100% of its steps") as caught:
        measure.run(make_job({"precision.amp": "fp16", "model.fault": "inf"}, **SHORT), SilentProgress())
    assert caught.value.kind == "amp_unstable"


def test_skipped_steps_are_those_of_training_not_of_the_quality_pass(make_job, monkeypatch):
    # The first steps of fp16 overflow at the scaler's first scale; the quality pass begins anew.
    config = {"precision.amp": "fp16", "optimizer.lr": 1e-4}
    job = make_job(config, quality_samples=2000, **SHORT)
    seen = []
    reset = measure.quality.measure

    def spy(pipeline, stepper, num_samples):
        seen.append(int(stepper.skipped.item()))
        result = reset(pipeline, stepper, num_samples)
        stepper.skipped += 1000
        return result

    monkeypatch.setattr(measure.quality, "measure", spy)
    assert measure.run(job, SilentProgress()).skipped_steps == seen[0] < 1000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "effective"),
    [({"model.hidden": 8}, {}), ({"model.kind": "lstm"}, {"compile.mode": "eager: torch.compile skipped"})],
    ids=["mlp", "lstm"],
)
def test_compile_says_what_really_ran(make_job, tmp_path, monkeypatch, model: dict, effective: dict):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    job = make_job({"compile.mode": "default", **model}, warmup_cap_seconds=5.0, quality_samples=250)
    job = dataclasses.replace(job, cache=str(tmp_path / "compiled"))
    result = measure.run(job, SilentProgress())
    assert set(result.effective) == set(effective)
    for name, begin in effective.items():
        assert result.effective[name].startswith(begin)
    # Where nothing was compiled there was no cache to be cold or warm.
    assert result.compile_cache == ("" if effective else "cold")
    assert result.compile_seconds == pytest.approx(result.first_step_seconds, rel=0.5)
    assert result.quality is not None
    if not effective:
        assert [entry.name for entry in (tmp_path / "compiled").iterdir()] == ["cpu"]
        assert any((tmp_path / "compiled" / "cpu").iterdir())
        assert measure.run(job, SilentProgress()).compile_cache == "warm"
        # Another slot has a cache of its own.
        torch._dynamo.reset()
        shutil.move(tmp_path / "compiled" / "cpu", tmp_path / "compiled" / "other")
        assert measure.run(job, SilentProgress()).compile_cache == "cold"


def test_settings_that_only_a_gpu_has_are_recorded_as_without_effect(make_job):
    asked = {"precision.tf32": True, "compile.cudnn_benchmark": True}
    result = measure.run(make_job(asked, **SHORT), SilentProgress())
    assert result.effective == {name: "without effect: no GPU" for name in asked}


def test_buckets_of_samples_without_lengths_are_recorded_as_without_effect(make_job, make_sequence_job):
    result = measure.run(make_job({"loader.buckets": 3}, **SHORT), SilentProgress())
    assert result.effective == {"loader.buckets": "without effect: the samples have no lengths"}
    result = measure.run(
        make_sequence_job({"loader.buckets": 3, "batch_size": 32}, **SHORT), SilentProgress()
    )
    assert result.effective == {}


def test_memory_kept_for_an_earlier_trial_is_recorded(make_job):
    kept = measure.run(make_job(**SHORT), SilentProgress())
    assert kept.effective == {}
    assert device._retaining
    result = measure.run(make_job({"device.malloc": "default"}, **SHORT), SilentProgress())
    assert result.effective == {"device.malloc": "retain: an earlier trial in this process set it"}


@pytest.mark.parametrize("kind", BUILTIN)
def test_a_trial_of_every_kind_of_loader(make_sequence_job, kind: str):
    options = {"batch_size": 32, "loader.buckets": 3, "loader.kind": kind}
    result = measure.run(
        make_sequence_job(options, quality_samples=100, diagnose=True, **SHORT), SilentProgress()
    )
    assert all(window.samples == 32 * window.steps for window in result.windows)
    assert result.train_samples == 600
    assert result.quality.samples == 100
    assert result.breakdown.step_s == pytest.approx(result.step_ms / 1e3, rel=0.05)
    assert result.breakdown.graph_s == 0
    assert result.diagnosis.loader_samples_s > 0
    assert result.diagnosis.fits_device is True
    # Of three lengths, which no single batch has.
    assert result.diagnosis.device_samples_s is None


@pytest.mark.parametrize("enough", [True, False])
def test_a_trial_is_measured_where_memory_does_not_do_for_its_diagnosis(make_job, monkeypatch, enough: bool):
    def diagnose(*_: object) -> Diagnosis:
        if enough:
            return Diagnosis(usable_cpus=3)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure, "diagnose", diagnose)
    result = measure.run(make_job(diagnose=True, quality_samples=100, **SHORT), SilentProgress())
    assert result.diagnosis == (Diagnosis(usable_cpus=3) if enough else None)
    assert result.quality is not None


def test_a_streams_windows_cover_whole_chunks(make_job, monkeypatch):
    # 100 rows of 9 numbers, two batches a chunk.
    monkeypatch.setattr("sweeper.trainer.data.stream.CHUNK_BYTES", {"cpu": 2 * 100 * 9 * 4})
    result = measure.run(make_job({"loader.kind": "stream"}, warmup_cap_seconds=0.05), SilentProgress())
    for window in result.windows:
        assert window.steps % 4 == 0 or window.seconds >= 0.2


def test_no_worker_and_no_thread_outlives_a_trial(make_job):
    # Services of other tests may run.
    before = set(children(os.getpid()))
    for options in ({"loader.kind": "stream"}, {"loader.kind": "workers", "loader.num_workers": 2}):
        measure.run(make_job(options, quality_samples=100, **SHORT), SilentProgress())
        assert "stream" not in {thread.name for thread in threading.enumerate()}
        assert set(children(os.getpid())) <= before


def test_a_kept_trial_takes_its_windows_when_they_are_asked_for(make_job, tmp_path):
    """With a loader whose queues fill up while it waits: they are drained before the next window."""
    job = make_job({"loader.kind": "workers", "loader.num_workers": 1}, **SHORT, diagnose=False)
    outcomes = []
    trial = threading.Thread(
        target=lambda: outcomes.append(
            measure.run(dataclasses.replace(job, turns_folder=str(tmp_path)), Listener())
        )
    )
    trial.start()
    asked = []
    for taken in range(2):
        while (ready := read_ready(tmp_path)) is None or ready[0] != taken:
            assert trial.is_alive()
            time.sleep(0.005)
        time.sleep(0.2)
        asked.append(time.perf_counter())
        write_atomic(tmp_path / GO, str(taken + 1))
    trial.join(30)
    (result,) = outcomes
    assert len(result.windows) == 2
    for start, window in zip(asked, result.windows, strict=False):
        assert window.start_s > start
    assert result.windows[1].start_s > asked[1] > result.windows[0].start_s + result.windows[0].seconds
