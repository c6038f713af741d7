"""A first search space for a pipeline: it loads, says what the module offers, and fits the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeper.core.measurement import DeviceInfo
from sweeper.errors import UserError
from sweeper.scaffold.pipeline_options import PipelineOptions, pipeline_options
from sweeper.scaffold.pipeline_space import first_space, searched_names
from sweeper.schema import SweepSpec, read_yaml
from sweeper.sweep.job_runner import Slot
from sweeper.sweep.start import setup
from sweeper.trainer.support import lacks

CPU = DeviceInfo(kind="cpu", name="a CPU")
A10 = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-0", memory_gib=22.5, capability="8.6")
V100 = DeviceInfo(kind="cuda", name="Tesla V100", uuid="GPU-0", memory_gib=16.0, capability="7.0")
OFFER = PipelineOptions(
    module="pipelines.weather",
    summary="Predicts the weather.",
    about_data="`path` (a folder), or without it `days` of weather.",
    data={"source": "synthetic", "path": "", "target": "yes", "days": 100},
    model={"hidden_size": 128, "kind": "lstm"},
    space={"model.hidden_size": (64, 256), "model.kind": ("lstm", "no"), "data.days": (10, 100)},
)


def machine(device: DeviceInfo, cores: int = 8) -> setup.Machine:
    return setup.Machine((device,), cores, lacks(device), (Slot("cpu"),))


def written(
    tmp_path: Path, device: DeviceInfo = CPU, cores: int = 8, offer: PipelineOptions = OFFER
) -> SweepSpec:
    path = tmp_path / "weather.yaml"
    path.write_text(first_space(offer, machine(device, cores), path.name))
    # There is no such pipeline.
    return SweepSpec.from_dict(read_yaml(path))


@pytest.mark.parametrize("device", [CPU, V100, A10], ids=lambda device: device.name)
def test_it_loads_and_this_device_can_take_all_of_it(tmp_path: Path, device: DeviceInfo):
    spec = written(tmp_path, device)
    assert (spec.name, spec.pipeline) == ("weather", "pipelines.weather")
    assert searched_names(OFFER, machine(device)) == spec.varied_names()
    cut, removed = setup.restrict(spec, machine(device), {"bytes": 1})
    assert (cut, removed) == (spec, [])


def test_what_only_a_gpu_has_is_searched_there_alone(tmp_path: Path):
    gpus_own = {"loader.pin_memory", "precision.tf32", "compile.mode"}
    assert not gpus_own & written(tmp_path, CPU).space.keys()
    assert gpus_own <= written(tmp_path, A10).space.keys()
    assert "gpu_mem_peak_fraction" in written(tmp_path, A10).constraints
    assert "gpu_mem_peak_fraction" not in written(tmp_path, CPU).constraints
    volta = written(tmp_path, V100).space
    assert "precision.tf32" not in volta
    assert volta["precision.amp"].choices == ("fp32", "fp16")


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (8, 8), (64, 16)])
def test_no_more_workers_than_cores(tmp_path: Path, cores: int, most: int):
    assert written(tmp_path, cores=cores).space["loader.num_workers"].high == most


@pytest.mark.parametrize(("device", "most"), [(CPU, 1024), (V100, 2048), (A10, 4096)])
def test_batches_go_to_several_times_what_is_good_on_such_a_gpu(
    tmp_path: Path, device: DeviceInfo, most: int
):
    batch = written(tmp_path, device).space["batch_size"]
    assert (batch.low, batch.high, batch.log) == (32, most, True)
    text = (tmp_path / "weather.yaml").read_text()
    assert ("is a good first guess on" in text) == (device is not CPU)


def test_the_baseline_is_what_most_scripts_have_with_the_pipelines_own_defaults(tmp_path: Path):
    assert written(tmp_path).baseline == {
        "loader.kind": "rows",
        "loader.num_workers": 4,
        "batch_size": 64,
        "precision.amp": "fp32",
        "device.malloc": "default",
        "model.hidden_size": 128,
        "model.kind": "lstm",
        "data.days": 100,
    }


def test_the_pipelines_own_values_are_searched_as_they_are(tmp_path: Path):
    space = written(tmp_path).space
    assert space["model.hidden_size"].choices == (64, 256)
    assert space["model.kind"].choices == ("lstm", "no")
    assert space["data.days"].choices == (10, 100)


def test_its_options_stand_there_with_their_defaults(tmp_path: Path):
    assert written(tmp_path).data == {"source": "synthetic"}
    text = (tmp_path / "weather.yaml").read_text()
    assert "# Predicts the weather." in text
    assert text.count("source: synthetic") == 1
    assert "# `path` (a folder), or without it `days` of weather." in text
    (tmp_path / "weather.yaml").write_text(text.replace("  # days:", "  days:").replace("  # tar", "  tar"))
    assert read_yaml(tmp_path / "weather.yaml")["data"] == {
        "source": "synthetic",
        "days": 100,
        "target": "yes",
    }


@pytest.mark.parametrize(
    ("offers", "data"),
    [({}, {}), ({"data": {"days": 3}}, {}), ({"unread": ("DATA",)}, {}), ({"module": "_own"}, {})],
)
def test_a_pipeline_that_says_little_gets_the_general_dimensions(
    tmp_path: Path, offers: dict[str, Any], data: dict[str, Any]
):
    offer = PipelineOptions(**{"module": "mine", "data": {}, "model": {}, "space": {}, **offers})
    spec = written(tmp_path, offer=offer)
    assert spec.data == data
    assert {"batch_size", "loader.kind", "loader.num_workers"} <= spec.space.keys()
    assert not any(name.startswith(("model.", "data.")) for name in spec.space)
    text = (tmp_path / "weather.yaml").read_text()
    assert ("DATA in mine is not a literal table" in text) == bool(offer.unread)


def test_the_pipelines_own_word_on_a_general_dimension_holds(tmp_path: Path):
    own = {
        "batch_size": (8, 16),
        "optimizer.lr": (1e-3, 3e-4),
        "loader.buckets": (1, 4),
        "precision.amp": ("fp32", "fp16"),
    }
    offer = PipelineOptions(module="mine", data={}, model={}, space=own)
    spec = written(tmp_path, offer=offer)
    assert {name: spec.space[name].choices for name in own} == own
    assert (spec.baseline["loader.buckets"], spec.baseline["optimizer.lr"]) == (1, 1e-3)
    assert "optimizer.lr" not in spec.fix


def test_a_name_that_is_no_field_of_a_trial_is_for_check_to_name(tmp_path: Path):
    offer = PipelineOptions(module="mine", data={}, model={}, space={"hidden": (1, 2)})
    with pytest.raises(UserError, match="hidden"):
        written(tmp_path, offer=offer)


REPOSITORY = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (REPOSITORY / "pipelines").glob("[a-z]*"))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_pipelines_offer_tables_that_can_be_searched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(REPOSITORY)
    offer = pipeline_options(name)
    assert not offer.unread
    assert all(
        offer.default(each) is not None for each in offer.space if each.startswith(("model.", "data."))
    )
    spec = written(tmp_path, A10, offer=offer)
    assert spec.pipeline == f"pipelines.{name}"
    assert offer.space.keys() <= spec.space.keys()
