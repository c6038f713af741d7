"""The preflight: what is tried, what leaves the space, what is remembered; on made-up jobs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replays import Bench, spec_of, surface

from sweeper.core.config import TrialConfig
from sweeper.core.job import PREFLIGHT_RUNNER, Job
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Measurement
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.phases import preflight
from sweeper.sweep.phases.preflight import PREFLIGHT, ValueCheck, drop_failed

PRECISIONS = {"type": "categorical", "choices": ["fp32", "bf16", "fp16"]}
MODES = {"type": "categorical", "choices": ["eager", "default", "graph"]}
KINDS = {"type": "categorical", "choices": ["workers", "resident"]}
BATCH = {"type": "int", "low": 64, "high": 1024, "log": True}
SPACE = {"batch_size": BATCH, "loader.kind": KINDS, "precision.amp": PRECISIONS, "compile.mode": MODES}
WITHOUT_FP16 = "precision.amp: fp16 removed from the space (no fp16)."
Refuses = Callable[[TrialConfig], Failure | None]


COLD = {"warm_start": "off"}


def asked(**changes: Any) -> SweepSpec:
    return spec_of(**{"space": SPACE, "also_try": [], "confirm": {"rounds": 0}, "search": COLD, **changes})


def refusing(name: str, *values: Any, kind: FailureKind = FailureKind.UNSUPPORTED) -> Refuses:
    def refuses(config: TrialConfig) -> Failure | None:
        value = config.flatten()[name]
        return Failure(kind=kind, message=f"no {value}") if value in values else None

    return refuses


NO_FP16 = refusing("precision.amp", "fp16")


def tried(bench: Bench) -> list[tuple[str, Any]]:
    """The values of the preflight's jobs, as they differ from the baseline's."""
    jobs = [job for job in bench.launcher.jobs if job.runner == PREFLIGHT_RUNNER]
    baseline = asked().baseline_config().flatten()
    return [
        (name, value)
        for job in jobs
        for name, value in job.config.flatten().items()
        if value != baseline.get(name)
    ]


def jobs_of(bench: Bench) -> list[Job]:
    return [job for job in bench.launcher.jobs if job.runner == PREFLIGHT_RUNNER]


def searched(bench: Bench, name: str) -> set[Any]:
    trials = Journal(bench.home / "sweeps" / "toy").trials()
    return {entry.job.config.flatten()[name] for entry in trials if entry.job.stage == "search"}


def configs_of(bench: Bench) -> list[TrialConfig]:
    return [entry.job.config for entry in Journal(bench.home / "sweeps" / "toy").trials()]


def setup_folder(bench: Bench) -> Path:
    return bench.home / "sweeps" / "toy" / "setup"


def test_each_value_is_tried_alone_over_the_baseline(bench: Bench):
    bench.run(asked(space={**SPACE, "optimizer.fused": {"type": "categorical", "choices": [True, False]}}))
    # The baseline's own values were measured; compilers come last.
    assert tried(bench) == [
        ("loader.kind", "workers"),
        ("loader.kind", "resident"),
        ("precision.amp", "bf16"),
        ("precision.amp", "fp16"),
        ("compile.mode", "default"),
        ("compile.mode", "graph"),
    ]
    stages = [job.stage for job in bench.launcher.jobs if job.uid not in ("probe", "prepare")]
    assert list(dict.fromkeys(stages)) == ["baseline", "loss", "preflight", "search", "trace"]
    assert not any("removed from the space" in line for line in bench.watcher.lines)


def test_what_fails_leaves_the_space_with_a_line(bench: Bench):
    bench.run(asked(search={"trials": 30}), refuses=NO_FP16)
    assert WITHOUT_FP16 in bench.watcher.lines
    assert searched(bench, "precision.amp") == {"fp32", "bf16"}


def test_the_specification_of_the_sweep_stays_as_it_was_begun(bench: Bench):
    bench.run(asked(), refuses=NO_FP16)
    assert Journal(bench.home / "sweeps" / "toy").spec() == asked()


def test_what_a_reference_ran_with_is_not_tried(bench: Bench):
    bench.run(asked(also_try=[{"precision.amp": "fp16", "compile.mode": "graph"}]))
    assert ("precision.amp", "fp16") not in tried(bench)
    assert ("compile.mode", "graph") not in tried(bench)
    assert ("precision.amp", "bf16") in tried(bench)


def test_references_that_fail_with_it_make_nothing_else_suspect(bench: Bench):
    """Both have a width in common too, which no trial has run with when the search begins."""
    widths = {"type": "categorical", "choices": [64, 128, 256]}
    entries = [{"batch_size": size, "precision.amp": "fp16", "model.width": 256} for size in (128, 256)]
    spec = asked(
        space={**SPACE, "model.width": widths},
        baseline={"loader.kind": "rows", "model.width": 64},
        also_try=entries,
    )
    bench.run(spec, lambda config: NO_FP16(config) or surface(config), refuses=NO_FP16)
    assert [line for line in bench.watcher.lines if "removed from the space" in line] == [WITHOUT_FP16]
    assert 256 in searched(bench, "model.width")


def test_what_would_not_act_in_the_baseline_is_left_to_the_search(bench: Bench):
    space = {**SPACE, "compile.mode": {**MODES, "when": {"loader.kind": "resident"}}}
    bench.run(asked(space=space))
    assert {name for name, _ in tried(bench)} == {"loader.kind", "precision.amp"}


def test_a_value_stays_where_another_model_kind_takes_it(bench: Bench):
    kinds = {"type": "categorical", "choices": ["lstm", "dense", "cnn"]}
    spec = asked(space={**SPACE, "model.kind": kinds}, baseline={"loader.kind": "rows", "model.kind": "lstm"})

    def refuses(config: TrialConfig) -> Failure | None:
        if config.precision.amp == "fp16" and config.model["kind"] != "cnn":
            return Failure(kind=FailureKind.UNSUPPORTED, message=f"no fp16 {config.model['kind']}")
        return NO_BF16(config)

    bench.run(spec, refuses=refuses)
    assert (
        "precision.amp: fp16 stays for model.kind=cnn; with the baseline's model it fails (no fp16 lstm)."
        in bench.watcher.lines
    )
    assert "precision.amp: bf16 removed from the space (no bf16)." in bench.watcher.lines
    folders = {path.name for path in setup_folder(bench).glob("preflight-precision*")}
    name = "preflight-precision.amp"
    assert folders == {f"{name}-bf16", f"{name}-bf16-1", f"{name}-bf16-2"} | {
        f"{name}-fp16",
        f"{name}-fp16-1",
        f"{name}-fp16-2",
    }


NO_BF16 = refusing("precision.amp", "bf16")


@pytest.mark.parametrize(
    "kind",
    [FailureKind.TIMEOUT, FailureKind.LOST, FailureKind.HOST_OOM, FailureKind.OOM, FailureKind.SHM],
)
def test_what_the_environment_ended_stays_and_is_tried_again_by_the_next_sweep(bench: Bench, kind):
    unlucky = refusing("precision.amp", "fp16", kind=kind)
    bench.run(asked(), refuses=unlucky)
    lines = [
        line for line in bench.watcher.lines if line.startswith("precision.amp: fp16 could not be tried")
    ]
    assert len(lines) == 1
    assert kind in lines[0]
    assert tried(bench).count(("precision.amp", "fp16")) == 1
    bench.run(asked(), new=True)
    assert tried(bench) == [("precision.amp", "fp16")]


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.USER_ERROR, FailureKind.COMPILE_ERROR])
def test_a_crash_and_an_error_are_the_values_own(bench: Bench, kind):
    bench.run(asked(), refuses=refusing("precision.amp", "fp16", kind=kind))
    assert WITHOUT_FP16 in bench.watcher.lines


def test_the_second_sweep_asks_nothing(bench: Bench):
    bench.run(asked(), refuses=NO_FP16)
    bench.run(asked(), new=True)
    assert tried(bench) == []
    (line,) = [line for line in bench.watcher.lines if "removed from the space" in line]
    assert line.startswith("precision.amp: fp16 removed from the space (no fp16; known from an earlier sweep")
    file = Path(line.partition("remove ")[2].partition(" to try")[0])
    file.unlink()
    bench.run(asked(), new=True)
    assert tried(bench) == [("precision.amp", "fp16")]


def test_another_device_or_pipeline_is_asked_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    gpu = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-a", memory_gib=22.5)

    def on_the_gpu(config: TrialConfig) -> Any:
        measured = surface(config)
        assert isinstance(measured, Measurement)
        return dataclasses.replace(measured, device=gpu)

    bench.run(asked())
    bench.run(asked(), on_the_gpu, devices=[gpu], new=True)
    assert len(tried(bench)) == 6
    Path("toy_pipeline.py").write_text(Path("toy_pipeline.py").read_text() + "\nCHANGED = 1\n")
    bench.run(asked(), new=True)
    assert len(tried(bench)) == 6
    monkeypatch.setattr(preflight, "__version__", "another")
    bench.run(asked(), new=True)
    assert len(tried(bench)) == 6


def test_a_spoilt_file_of_the_cache_is_no_answer(bench: Bench):
    bench.run(asked(), refuses=NO_FP16)
    for file in (bench.home / "cache" / "preflight").iterdir():
        assert "config" in json.loads(file.read_text())
        file.write_text("{")
    bench.run(asked(), new=True)
    assert len(tried(bench)) == 6


class Killed(BaseException):
    """Ends the supervisor, as kill -9 would."""


def dying(after: int) -> Callable[[TrialConfig], Any]:
    """A surface whose supervisor dies while that trial runs."""
    left = [after]

    def answer(config: TrialConfig) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return surface(config)

    return answer


@pytest.mark.parametrize("known", [False, True], ids=["asked", "cached"])
def test_a_sweep_that_goes_on_decides_the_same(bench: Bench, tmp_path: Path, known: bool):
    if known:
        bench.run(asked(name="before"), refuses=NO_FP16)
    with pytest.raises(Killed):
        bench.run(asked(), dying(4), refuses=NO_FP16)
    assert bool(tried(bench)) is not known
    # Another machine's answers, and a cache that is gone: the sweep's own folder decides.
    for file in (bench.home / "cache" / "preflight").iterdir():
        file.unlink()
    bench.run(asked(), refuses=refusing("precision.amp", "bf16"))
    assert tried(bench) == []
    assert any(line.startswith(WITHOUT_FP16[:-2]) for line in bench.watcher.lines)
    whole = Bench(tmp_path / "whole")
    whole.run(asked(), refuses=NO_FP16)
    assert configs_of(bench) == configs_of(whole)


def test_cut_off_in_between_only_the_rest_is_tried(bench: Bench):
    def dying(config: TrialConfig) -> Failure | None:
        if config.precision.amp == "fp16":
            raise Killed
        return None

    with pytest.raises(Killed):
        bench.run(asked(), refuses=dying)
    assert not (setup_folder(bench) / PREFLIGHT).exists()
    bench.run(asked(), refuses=NO_FP16)
    assert tried(bench)[0] == ("precision.amp", "fp16")
    assert WITHOUT_FP16 in bench.watcher.lines


def test_it_takes_a_tenth_of_the_time_at_most(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    # 12 s: enough for everything but a compiler.
    bench.run(asked(search={"trials": 3, "minutes": 2.0}))
    assert ("compile.mode", "default") not in tried(bench)
    assert ("compile.mode", "graph") in tried(bench)
    line = "compile.mode: default could not be tried before the search (limited to 10% of search.minutes)."
    assert line in bench.watcher.lines
    assert all(job.timeout_seconds <= 12 for job in jobs_of(bench))
    bench.run(asked(search={"trials": 3, "minutes": 20.0}), new=True)
    assert tried(bench) == [("compile.mode", "default")]


def test_a_job_has_a_limit_of_its_own_and_one_attempt(bench: Bench):
    bench.run(asked())
    limits = {job.config.compile.mode: job.timeout_seconds for job in jobs_of(bench)}
    assert limits["eager"] == preflight.LIMIT_SECONDS
    assert limits["default"] == preflight.LIMIT_SECONDS + preflight.COMPILER_SECONDS
    assert {(job.plan.repeats, job.config.device.count) for job in jobs_of(bench)} == {(0, 1)}


def test_a_script_has_no_preflight(bench: Bench):
    Path("train.py").write_text("")
    spec = SweepSpec.from_dict(
        {
            "name": "toy",
            "command": ["python", "train.py", "--amp={precision.amp}"],
            "space": {"precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]}},
            "baseline": {"precision.amp": "fp32"},
            "measure": {"quality_samples": 0},
            "confirm": {"rounds": 0},
            "search": {"trials": 2, "minutes": None},
        }
    )
    bench.run(spec, lambda config: surface(TrialConfig()))
    assert jobs_of(bench) == []
    assert not (setup_folder(bench) / PREFLIGHT).exists()


# -- what leaves --------------------------------------------------------------------------------------------


def test_a_parameter_keeps_its_values_where_all_of_them_fail():
    spec, lines = drop_failed(
        asked(),
        [ValueCheck(name="loader.kind", value=value, failed="no room") for value in ("workers", "resident")],
    )
    assert spec == asked()
    assert lines == ["loader.kind: every value failed before the search, so all stay (no room)."]


def test_a_parameter_with_one_value_left_is_decided():
    spec, lines = drop_failed(
        asked(), [ValueCheck(name="precision.amp", value=value, failed="no") for value in ("bf16", "fp16")]
    )
    assert "precision.amp" not in spec.space
    assert spec.fix["precision.amp"] == "fp32"
    assert lines == ["precision.amp: bf16, fp16 removed from the space (no)."]


def test_what_has_left_the_space_otherwise_is_no_matter():
    spec = asked(space={"batch_size": BATCH, "loader.kind": KINDS})
    assert drop_failed(spec, [ValueCheck(name="precision.amp", value="fp16", failed="no")]) == (spec, [])
