"""The export: complete in itself, with provenance, and honest about what it rests on."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from exports import A10, export_of
from parts.noop import synthetic
from replays import PIPELINE, Bench, failing, spec_of, surface

from sweeper._version import __version__
from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import FailureKind, Report, Stats
from sweeper.errors import NothingFeasibleError, UserError
from sweeper.exports import Setting, make_export, pass_env, read, render_export, verification
from sweeper.exports.schema import MeasurementBlock
from sweeper.exports.verification import Verification
from sweeper.results.numbers.confirmation import Ratio
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import LoadedSweep, load_sweep


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return Bench(tmp_path / "home")


def loaded(bench: Bench) -> LoadedSweep:
    return load_sweep(Journal(bench.home / "sweeps" / "toy"))


def test_the_configuration_is_the_one_that_was_measured(bench):
    bench.run()
    sweep = loaded(bench)
    summary = sweep.summary
    found = make_export(summary, sweep.spec)
    assert summary.winner is not None
    assert decode(TrialConfig, found["config"]) == summary.winner.config.canonical()
    assert found["provenance"]["trial"] == summary.winner.number
    assert found["provenance"]["uid"] == summary.winner.uid
    assert found["provenance"]["sweeper"] == __version__
    assert found["measurement"]["speedup"]["rounds"] == 3
    assert found["measurement"]["val_loss"] == 1.0
    assert found["conditions"]["device"] == "none"
    assert found["pipeline"] == "toy_pipeline"


def test_what_a_tune_proved_is_said_of_its_winner_alone(bench):
    bench.run()
    sweep = loaded(bench)
    summary = sweep.summary
    assert summary.winner is not None
    assert "verification" not in make_export(summary, sweep.spec)
    known = Verification(
        kind="exact", changes=(), is_nondeterministic=False, difference="", extent="9 steps", code="c"
    )
    verification.write(summary.winner, known)
    verified = {"kind": "exact", "extent": "9 steps", "code": "c"}
    assert make_export(summary, sweep.spec)["verification"] == verified
    assert "verification" not in make_export(summary, sweep.spec, 5)
    verification.write(summary.winner, dataclasses.replace(known, difference="its losses differ"))
    assert "verification" not in make_export(summary, sweep.spec)


def test_warnings_stand_where_the_numbers_rest_on_little(bench):
    bench.run()
    sweep = loaded(bench)
    assert [w.partition(":")[0] for w in make_export(sweep.summary, sweep.spec)["warnings"]] == [
        "Measured on synthetic data",
        "The global batch is 1024 (baseline",
    ]
    searched = make_export(sweep.summary, sweep.spec, 5)
    assert searched["measurement"]["speedup"] is None
    assert any("Not confirmed" in warning for warning in searched["warnings"])


def test_on_real_data_a_confirmed_winner_whose_rate_follows_the_batch_has_no_warning(bench):
    spec = spec_of(fix={"optimizer.lr_rule": "sqrt"})
    bench.run(spec, prepared=Report(values={"synthetic": False, "notes": []}))
    sweep = loaded(bench)
    assert make_export(sweep.summary, sweep.spec)["warnings"] == []


def test_only_what_was_measured_and_is_feasible(bench):
    bench.run(answer=failing(FailureKind.OOM))
    sweep = loaded(bench)
    with pytest.raises(UserError, match="but trial 2 is not: it broke"):
        make_export(sweep.summary, sweep.spec, 2)
    with pytest.raises(UserError, match="has no trial 77"):
        make_export(sweep.summary, sweep.spec, 77)
    with pytest.raises(UserError, match=r"Did you mean `json`\?"):
        render_export({}, "jsn")


def test_without_a_winner(bench):
    bench.run(answer=lambda config: synthetic(5.0))
    sweep = loaded(bench)
    with pytest.raises(NothingFeasibleError, match="no winner to export"):
        make_export(sweep.summary, sweep.spec)


def test_what_the_numbers_hold_for():
    value = export_of(
        {"batch_size": 512},
        spec_of(production={"samples": 2e9, "data_gib": 3}),
        device=A10,
        setting=Setting(data_gib=0.123456, usable_cpus=12),
        about={"production_samples": 3.6e6},
        versions={"torch": "2.9.1", "cuda": "12.8", "driver": "570.1"},
        cpu_threads=4,
        gpu_mem_peak_gib=2.25,
        host_mem_peak_gib=3.5,
        telemetry={"tree_mem_gib": Stats(mean=4.0, p50=4.0, p95=5.0)},
    )
    assert value["conditions"] == {
        "device": "1 x NVIDIA A10",
        "gpu": "NVIDIA A10",
        "gpu_mem_gib": 22.5,
        "torch": "2.9.1",
        "cuda": "12.8",
        "driver": "570.1",
        "train_samples": 1_000_000,
        "data_gib": 0.1235,
        "cpu_threads": 4,
        "usable_cpus": 12,
    }
    assert value["production"] == {"samples": 2e9, "data_gib": 3}
    measured = value["measurement"]
    assert (measured["gpu_mem_peak_gib"], measured["gpu_mem_headroom_gib"]) == (2.25, 20.25)
    assert (measured["host_mem_peak_gib"], measured["tree_mem_gib"]) == (3.5, 5.0)
    assert measured["projected_hours"] == 1.0
    assert measured["verdict"].startswith("inconclusive: ")


def test_the_keys_stand_in_the_order_of_the_schema():
    spec = spec_of(production={"samples": 2e9}, execution={"pass_env": ["X"]})
    value = export_of({}, spec, device=A10, versions={"torch": "2.9.1"})
    subject, after = ["pipeline", "data", "config"], ["measurement", "conditions"]
    assert list(value) == ["schema", *subject, *after, "production", "execution", "provenance", "warnings"]
    confirmed = {"throughput_low", "throughput_high"}
    names = [each.name for each in dataclasses.fields(MeasurementBlock)]
    assert list(value["measurement"]) == [each for each in names if each not in confirmed]
    device, *conditions = value["conditions"]
    assert [device, *conditions[:3]] == ["device", "gpu", "gpu_mem_gib", "torch"]


def test_what_is_not_known_is_null_and_what_is_not_there_is_absent():
    value = export_of({})
    assert "production" not in value
    assert "gpu" not in value["conditions"]
    assert value["conditions"]["data_gib"] is value["conditions"]["usable_cpus"] is None
    assert value["measurement"]["gpu_mem_headroom_gib"] is value["measurement"]["projected_hours"] is None


def test_a_single_round_confirms_nothing_and_is_read_back(tmp_path):
    ratio = Ratio(
        trial=1, ratio=2.0, low=0.0, high=math.nan, throughput=900.0, rounds=(900.0,), throughput_low=0.0
    )
    value = export_of({}, about={"ratio": ratio})
    path = tmp_path / "best.yaml"
    path.write_text(render_export(value, "yaml"))
    measured = read(path)["measurement"]
    assert (measured["throughput"], measured["speedup"]) == (900.0, None)
    assert "throughput_low" not in measured
    assert any("Not confirmed" in warning for warning in value["warnings"])


@pytest.mark.parametrize(("rule", "value"), [("none", 1e-3), ("sqrt", 4e-3), ("linear", 1.6e-2)])
def test_the_learning_rate_is_the_one_that_was_used(rule: str, value: float):
    asked = {
        "batch_size": 512,
        "accumulate_steps": 2,
        "optimizer.lr_rule": rule,
        "optimizer.lr_batch_size": 64,
    }
    found = export_of(asked)
    assert found["measurement"]["lr"] == {
        "value": value,
        "global_batch": 1024,
        "rule": rule,
        "from_lr": 1e-3,
        "at_batch": 1024 if rule == "none" else 64,
    }
    assert any("learning rate" in warning for warning in found["warnings"]) == (rule == "none")


def test_a_rate_that_was_searched_or_whose_batch_is_the_baselines_needs_no_second_look():
    rate = {"optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}
    searched = spec_of(space={**spec_of().to_dict()["space"], **rate})
    assert not any("learning rate" in each for each in export_of({"batch_size": 512}, searched)["warnings"])
    assert not any("learning rate" in each for each in export_of({"batch_size": 64})["warnings"])


def test_resident_data_larger_than_the_device_is_refused():
    spec = spec_of(production={"samples": 1e9, "data_gib": 40})
    with pytest.raises(UserError) as caught:
        export_of({"loader.kind": "resident"}, spec, device=A10)
    assert str(caught.value) == (
        "`loader.kind: resident` of trial 1 needs all of production's data on the device, but the production "
        "data takes 40 GiB and the device has 22.5 GiB. Export a trial with `loader.kind: stream`, or sweep "
        "with `fix: {loader.kind: stream}`."
    )
    # A share of the device is the model's.
    with pytest.raises(UserError, match=r"18\.5 GiB"):
        export_of({}, spec_of(production={"samples": 1e9, "data_gib": 18.5}), device=A10)
    assert export_of({}, spec_of(production={"samples": 1e9, "data_gib": 17.5}), device=A10)
    assert export_of({"loader.kind": "stream"}, spec, device=A10)
    host = dataclasses.replace(A10, kind="cpu", memory_gib=0.0)
    assert export_of({}, spec, device=host)
    with pytest.raises(UserError, match="60 GiB and the device has 64 GiB"):
        export_of({}, spec_of(production={"samples": 1e9, "data_gib": 60}), device=host)


@pytest.mark.parametrize("goals", [["throughput"], ["throughput", "val_loss"]], ids=["speed", "two"])
def test_a_sweep_never_crowns_what_production_has_no_memory_for(bench, goals):
    directions = {"throughput": "maximize", "val_loss": "minimize"}

    def best_kind(data_gib: float) -> str:
        spec = spec_of(
            objectives=[{directions[goal]: goal} for goal in goals],
            production={"samples": 1e9, "data_gib": data_gib},
        )
        # The probe has no size of its memory to tell; each trial has.
        bench.run(spec, answer=lambda config: dataclasses.replace(surface(config), device=A10), new=True)
        name = max((bench.home / "sweeps").iterdir(), key=lambda path: path.stat().st_mtime).name
        summary = load_sweep(Journal(bench.home / "sweeps" / name)).summary
        assert summary.winner is not None
        assert not summary.front or summary.picked in (row.record for row in summary.front)
        kinds = {row.record.config.loader.kind for row in summary.front}
        assert data_gib < 18 or "resident" not in kinds
        return summary.winner.config.loader.kind

    assert best_kind(10.0) == "resident"
    assert best_kind(40.0) != "resident"


def test_data_that_fits_a_memory_which_productions_does_not_is_warned_of():
    def warned(here: float, production: float, **kind: str) -> list[str]:
        spec = spec_of(production={"samples": 1e9, "data_gib": production})
        settings = {"loader.kind": "workers", **kind}
        found = export_of(settings, spec, device=A10, setting=Setting(data_gib=here))["warnings"]
        return [each for each in found if "The sweep's data" in each]

    (device,) = warned(1.0, 40.0)
    assert device == (
        "The sweep's data (1 GiB) fits in device memory (22.5 GiB), but production's (40 GiB) will not. "
        "Loading may be slower there."
    )
    assert ["host memory" in each for each in warned(1.0, 400.0)] == [False, True]
    assert ["host memory" in each for each in warned(30.0, 400.0)] == [True]
    assert warned(30.0, 40.0) == warned(1.0, 2.0) == []


def test_no_credentials_are_written():
    data = {
        "path": "s3://key:se%2Fcret@store.example/bucket",
        "mirror": ["http://u:p@ss@host/x", "ssh://git@h"],
    }
    spec = spec_of().model_copy(update={"data": data})
    value = export_of({}, spec)
    assert value["data"] == {"path": "s3://store.example/bucket", "mirror": ["http://host/x", "ssh://git@h"]}
    assert [each for each in value["warnings"] if "credentials" in each] == [
        f"The credentials in the URL of `{path}` were removed. Supply them at run time."
        for path in ("data.path", "data.mirror[0]")
    ]


def test_what_trials_were_passed_is_carried(bench):
    spec = spec_of(execution={"pass_env": ["MYLAB_TOKEN", "AWS_*"]})
    found = export_of({"batch_size": 512}, spec)
    assert found["execution"] == {"pass_env": ["MYLAB_TOKEN", "AWS_*"]}
    Path("best.yaml").write_text(render_export(found, "yaml"))
    assert pass_env(read(Path("best.yaml"))) == ("MYLAB_TOKEN", "AWS_*")
    assert pass_env(read(Path("best.yaml"), ["execution.pass_env=[X]"])) == ("X",)
    assert "execution" not in export_of({"batch_size": 512})
    assert pass_env({}) == ()
    for wrong in ({"pass_env": "X"}, {"pass_env": [1]}, "X", ["X"]):
        with pytest.raises(UserError, match=r"`execution.pass_env` must be a list"):
            pass_env({"execution": wrong})
