"""`check --deep` of a pipeline: what is run of it, what is expected of its largest trial, what ends it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from replays import PIPELINE, spec_of

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import (
    DRY_STEP_RUNNER,
    GPU_CHECK_RUNNER,
    PREPARE_RUNNER,
    PROBE_RUNNER,
    Job,
    read_job,
    write_outcome,
)
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Report
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.scaffold import check_pipeline
from sweeper.scaffold.check_pipeline import PipelineCheck, build_out, expected_gib, largest_config
from sweeper.trainer import gpu_check

GPU = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-0", memory_gib=22.0)
Answer = Callable[[TrialConfig], Report | Failure]


def stepped(
    config: TrialConfig, *, gib: float = 0.01, seconds: float = 1e-4, samples: int = 5000, **other: Any
) -> Report:
    """Steps which take so much for each sample, and 1 GiB besides."""
    values = {
        "train_samples": samples,
        "val_samples": 100,
        "peak_gib": 1 + gib * config.batch_size,
        "step_seconds": [1.0, seconds * config.batch_size],
        "losses": [1.0, 0.9],
    }
    return Report(values={**values, **other})


class Device:
    """A launcher on which a configuration's steps are what `answer` says."""

    capacity = 1

    def __init__(
        self,
        answer: Answer = stepped,
        *,
        prepared: Report | Failure | None = None,
        checked: Answer = lambda config: Report(values={"findings": []}),
        device: DeviceInfo = GPU,
    ) -> None:
        self.answer, self.checked, self.jobs = answer, checked, list[Job]()
        self.device = device
        self.prepared = prepared or Report(values={"notes": [], "synthetic": True, "bytes": 2**30})

    @property
    def tried(self) -> list[TrialConfig]:
        return [job.config for job in self.jobs if job.runner == DRY_STEP_RUNNER]

    def submit(self, folder: Path) -> Future[Any]:
        job = read_job(folder)
        self.jobs.append(job)
        probe = Report(values={"devices": encode([self.device]), "usable_cpus": 8, "lacks": {}})
        known = {PROBE_RUNNER: probe, PREPARE_RUNNER: self.prepared}
        answer = self.checked if job.runner == GPU_CHECK_RUNNER else self.answer
        outcome = known.get(job.runner) or answer(job.config)
        write_outcome(folder, outcome)
        future: Future[Any] = Future()
        future.set_result(outcome)
        return future

    def close(self) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return tmp_path / "home"


def built(home: Path, device: Device, **changes: Any) -> PipelineCheck:
    return build_out(home, spec_of(**changes), lambda folder: device)


def space(**parameters: Any) -> dict[str, Any]:
    return {"batch_size": {"type": "int", "low": 64, "high": 4096, "log": True}, **parameters}


def choices(*values: Any) -> dict[str, Any]:
    return {"type": "categorical", "choices": list(values)}


def test_the_largest_has_the_largest_batch_and_model_in_full_precision():
    spec = spec_of(
        space=space(
            **{
                "model.hidden_size": choices(256, 64),
                "model.depth": {"type": "int", "low": 1, "high": 3},
                "model.kind": choices("gru", "lstm"),
                "model.tied": choices(False, True),
                "loader.kind": choices("workers", "resident"),
                "precision.amp": choices("bf16", "fp32"),
                "compile.mode": choices("graph", "eager"),
            }
        ),
        baseline={"batch_size": 64, "model.kind": "lstm", "precision.amp": "bf16"},
    )
    found = largest_config(spec, 10_000)
    assert (found.batch_size, found.model) == (
        4096,
        {"hidden_size": 256, "depth": 3, "kind": "lstm", "tied": False},
    )
    assert (found.loader.kind, found.precision.amp, found.compile.mode) == ("resident", "fp32", "eager")


def test_no_batch_is_larger_than_the_data():
    assert largest_config(spec_of(space=space()), 500).batch_size == 500


def test_its_own_batch_is_run_after_smaller_ones(home: Path):
    device = Device(lambda config: stepped(config, gib=0.005))
    found = built(home, device, space=space())
    assert [config.batch_size for config in device.tried] == [64, 64, 256, 1024, 4096]
    assert [each.config.batch_size for each in found.stepped] == [64, 256, 1024, 4096]
    assert expected_gib(found.stepped, 4096) == pytest.approx(1 + 0.005 * 4096)
    assert not found.not_run
    assert found.failure is None
    # Every process is its own, on one device, and finds the data that a sweep would.
    jobs = [job for job in device.jobs if job.runner == DRY_STEP_RUNNER]
    assert len({job.folder for job in jobs}) == 5
    assert {job.prepared for job in jobs} == {next(j.prepared for j in device.jobs if j.uid == "prepare")}
    assert Path(jobs[0].prepared).parent == home / "cache"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda config: stepped(config, gib=0.01), "a batch of 4,096 is not expected to fit"),
        (
            lambda config: stepped(config, gib=0.001, seconds=0.002),
            "a step with a batch of 4,096 is expected to take 8 s",
        ),
    ],
)
def test_what_would_not_fit_or_takes_too_long_is_expected_and_not_run(home: Path, answer: Answer, why: str):
    device = Device(answer)
    found = built(home, device, space=space())
    assert [config.batch_size for config in device.tried] == [64, 64, 256, 1024]
    assert found.not_run == why
    assert (expected_gib(found.stepped, 4096) or 0) > 5
    assert found.failure is None


def test_running_out_of_memory_in_the_largest_is_told_and_no_failure(home: Path):
    def answer(config: TrialConfig) -> Report | Failure:
        oom = Failure(kind=FailureKind.OOM, message="CUDA out of memory")
        return oom if config.batch_size > 2000 else stepped(config, gib=0.001)

    found = built(home, Device(answer), space=space())
    assert found.not_run == "oom with a batch of 4,096: CUDA out of memory"
    assert found.failure is None


def test_a_failure_of_the_largest_is_one(home: Path):
    def answer(config: TrialConfig) -> Report | Failure:
        crash = Failure(kind=FailureKind.CRASH, message="it broke")
        return crash if config.model.get("depth") == 3 else stepped(config)

    depth = {"model.depth": choices(1, 3)}
    found = built(home, Device(answer), space=space(**depth))
    assert found.baseline is not None
    assert found.failure is not None
    assert found.failure.message == "it broke"


@pytest.mark.parametrize("kind", [FailureKind.OOM, FailureKind.USER_ERROR])
def test_a_baseline_that_fails_ends_it(home: Path, kind: FailureKind):
    device = Device(lambda config: Failure(kind=kind, message="it broke"))
    found = built(home, device)
    assert found.baseline is None
    assert found.failure is not None
    assert len(device.tried) == 1


def test_what_the_pipeline_refuses_is_the_users_to_mend(home: Path):
    device = Device(lambda config: Report(values={"refused": "`model.sise` is not an option."}))
    with pytest.raises(UserError, match=r"^`model\.sise` is not an option\.$"):
        built(home, device)


def test_data_that_cannot_be_prepared_ends_it(home: Path):
    bad = Failure(kind=FailureKind.USER_ERROR, message="`rows.csv` has no column `y`.")
    device = Device(prepared=bad)
    with pytest.raises(UserError, match=r"no column `y`"):
        built(home, device)
    assert not device.tried


def test_a_trial_of_several_devices_is_tried_on_one(home: Path):
    baseline = {"batch_size": 64, "loader.kind": "rows", "device.count": 2}
    device = Device()
    found = built(home, device, baseline=baseline)
    assert {config.device.count for config in device.tried} == {1}
    assert found.baseline is not None
    assert found.baseline.config.device.count == 2


def test_a_space_with_nothing_larger_says_so(home: Path):
    device = Device()
    same = {"loader.kind": choices("workers", "resident")}
    found = built(home, device, space=same, baseline={"batch_size": 64, "loader.kind": "resident"})
    assert found.largest is None
    assert len(device.tried) == 1


def test_the_space_is_cut_to_the_device_as_a_sweep_does(home: Path):
    workers = {"loader.num_workers": {"type": "int", "low": 0, "high": 40}}
    many = Report(values={"notes": [], "synthetic": False, "bytes": 40 * 2**30})
    kinds = {"loader.kind": choices("workers", "resident")}
    found = built(home, Device(prepared=many), space=space(**workers, **kinds))
    assert any("at most 8 here" in line for line in found.removed)
    assert "40 GiB and the device has 22" in found.not_resident
    assert found.largest is not None
    assert found.largest.loader.kind == "workers"


@pytest.mark.parametrize(
    ("usual", "most", "sizes"),
    [
        (64, 4096, [64, 256, 1024, 4096]),
        (512, 512, [128, 256, 512]),
        (64, 2, [1, 2]),
        (1, 1, [1]),
        (3, 40, [3, 12, 40]),
    ],
)
def test_the_batches_that_are_run(usual: int, most: int, sizes: list[int]):
    assert check_pipeline._sizes(usual, most) == sizes


def test_the_line_goes_through_the_last_two_smaller_batches():
    peaks = ((8, 1.0), (16, 1.0), (32, 1.5), (64, 9.0))
    found = [
        check_pipeline.StepResult(config=TrialConfig(batch_size=b), values={"peak_gib": p}) for b, p in peaks
    ]
    assert expected_gib(found, 64) == pytest.approx(2.5)
    assert expected_gib(found[:2], 64) == pytest.approx(1.0)
    assert expected_gib(found[:1], 64) is None


def test_a_home_that_takes_no_files_is_one_line(home: Path):
    home.write_text("a file, not a folder")
    with pytest.raises(EnvironmentStopError, match="cannot write in"):
        built(home, Device())


def finding(effect: str = "fails", place: str = "toy.py:3", part: str = "validation") -> dict[str, str]:
    return {"effect": effect, "part": part, "place": place, "what": "it mixes devices"}


def findings(*found: dict[str, str]) -> Report:
    return Report(values={"findings": list(found)})


def test_each_word_of_the_models_own_is_checked_for_a_gpu(home: Path):
    def checked(config: TrialConfig) -> Report | Failure:
        if config.model.get("kind") == "gru":
            return Report(values={"refused": "no gru with attention"})
        if config.model.get("tied"):
            return findings(finding(), finding(place="toy.py:9"))
        return findings(finding())

    words = {
        "model.kind": choices("lstm", "gru", "transformer"),
        "model.tied": choices(False, True),
        "model.depth": choices(1, 2),
        "loader.kind": choices("workers", "resident"),
    }
    baseline = {"batch_size": 64, "model.kind": "lstm", "model.tied": False}
    device = Device(checked=checked)
    found = built(home, device, space=space(**words), baseline=baseline)
    kinds = [(each.model["kind"], each.model["tied"]) for each in found.checked]
    assert kinds == [("lstm", False), ("transformer", False), ("lstm", True)]
    assert [each["place"] for each in found.findings] == ["toy.py:3", "toy.py:9"]
    assert [job.config.model["kind"] for job in device.jobs if job.runner == GPU_CHECK_RUNNER] == [
        *("lstm", "gru", "transformer", "lstm")
    ]


CPU = DeviceInfo(kind="cpu", name="a CPU", host_memory_gib=8.0)


@pytest.mark.parametrize(
    ("device", "found", "fails"),
    [
        (CPU, finding(), False),
        (GPU, finding(), True),
        (GPU, finding("waits"), False),
        (GPU, finding("unknown"), False),
        (GPU, finding(part=check_pipeline.STEP), False),  # which the baseline has just taken there
    ],
)
def test_what_a_gpu_refuses_is_a_failure_where_there_is_one(
    home: Path, device: DeviceInfo, found: dict[str, str], fails: bool
):
    result = built(home, Device(checked=lambda config: findings(found), device=device))
    assert result.fails_here == fails


def test_a_check_that_breaks_is_no_failure(home: Path):
    broken = Failure(kind=FailureKind.CRASH, message="it broke")
    result = built(home, Device(checked=lambda config: broken))
    assert [(each["effect"], each["what"]) for each in result.findings] == [("unknown", "it broke")]
    assert result.baseline is not None
    assert not result.fails_here


def test_the_checks_own_word_for_the_training_step():
    assert check_pipeline.STEP == gpu_check.STEP
