"""The guides' values as first guesses: by the GPU's name, by the size of the data, by the cores."""

from __future__ import annotations

import pytest

from sweeper.schema import SweepSpec
from sweeper.search.guidance import PRESETS, preset_for, size_of, workers_for
from sweeper.search.presets import Hints, StartPoint, presets

SPACE = {
    "batch_size": {"type": "int", "low": 64, "high": 4096, "log": True},
    "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
    "loader.num_workers": {"type": "int", "low": 0, "high": 16, "when": {"loader.kind": "workers"}},
    "model.hidden_size": {"type": "categorical", "choices": [64, 128, 256]},
}


def spec_of(space: dict = SPACE, **changes) -> SweepSpec:
    return SweepSpec.from_dict(
        {
            "name": "g",
            "pipeline": "pipelines.tabular",
            "space": space,
            "baseline": {"batch_size": 64, "loader.kind": "rows", "model.hidden_size": 64},
            "constraints": {"val_loss": {"max_ratio_to_baseline": 1.02}},
            **changes,
        }
    )


def guided(starts: list[StartPoint]) -> list[StartPoint]:
    return [start for start in starts if "the guides' values" in start.why]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100, H100 and larger"),
        ("NVIDIA H100 80GB HBM3", "A100, H100 and larger"),
        ("NVIDIA H200", "A100, H100 and larger"),
        ("NVIDIA GH200 480GB", "A100, H100 and larger"),
        ("NVIDIA B200", "A100, H100 and larger"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10"),
        ("Tesla V100-SXM2-16GB", "V100 and RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "V100 and RTX 3090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 and 3080"),
        ("NVIDIA GeForce RTX 3080", "RTX 2080 and 3080"),
        ("Tesla T4", "RTX 2080 and 3080"),
        ("AMD EPYC 9654 96-Core Processor", None),
        ("Quadro K620", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, title: str | None):
    preset = preset_for(name)
    assert (preset.title if preset else None) == title


def test_the_presets_are_the_guides():
    found = {each.title: (each.batch_size, each.hidden_size, each.num_workers) for each in PRESETS}
    assert found == {
        "A100, H100 and larger": (512, 256, 16),
        "A10": (512, 256, 8),
        "V100 and RTX 3090": (256, 128, 8),
        "RTX 2080 and 3080": (128, 128, 4),
    }


@pytest.mark.parametrize(
    ("cores", "batch", "workers"),
    [(20, 512, 8), (20, 64, 2), (8, 512, 4), (2, 4096, 1), (1, 16, 1), (64, 4096, 8)],
)
def test_workers_are_half_the_cores_one_for_32_rows_and_eight_at_most(cores: int, batch: int, workers: int):
    assert workers_for(cores, batch) == workers


@pytest.mark.parametrize(("samples", "most"), [(0, 8), (50_000, 4), (100_000, 8), (2_000_000, 16)])
def test_the_size_of_the_data_limits_the_workers(samples: int, most: int):
    assert size_of(samples).most_workers == most


def test_a_search_on_a_known_gpu_tries_its_values():
    spec = spec_of()
    known = guided(presets(spec, Hints(device="NVIDIA GeForce RTX 3090", cores=20)))
    assert [start.params for start in known] == [
        {"batch_size": 256, "loader.kind": "resident", "loader.num_workers": 8, "model.hidden_size": 128}
    ]
    said = "batch_size 256, model.hidden_size 128, loader.num_workers 8"
    assert known[0].why == f"the guides' values for V100 and RTX 3090: {said}"
    (large,) = guided(presets(spec, Hints(device="NVIDIA GeForce RTX 3090", cores=4, samples=2_000_000)))
    assert large.params["batch_size"] == 512
    assert large.params["loader.num_workers"] == 4
    assert "more than a million samples" in large.why
    assert not guided(presets(spec, Hints(device="Quadro K620", cores=20)))
    assert not guided(presets(spec))


def test_they_are_taken_to_the_nearest_values_of_the_space():
    space = {
        "batch_size": {"type": "categorical", "choices": [32, 100, 300]},
        "model.hidden_size": {"type": "categorical", "choices": [16, 32]},
    }
    (start,) = guided(presets(spec_of(space), Hints(device="NVIDIA A10", cores=4)))
    assert start.params == {"batch_size": 300, "model.hidden_size": 32}


def test_loader_workers_are_reckoned_from_the_cores():
    def with_workers(hints: Hints) -> StartPoint:
        starts = presets(spec_of(), hints)
        return next(start for start in starts if start.params["loader.kind"] == "workers")

    start = with_workers(Hints(cores=12))
    assert start.params["loader.num_workers"] == 6
    assert start.why.endswith("; 6 workers = min(12 cores / 2, 8, 1448 / 32)")
    assert with_workers(Hints(cores=64, samples=10_000)).params["loader.num_workers"] == 4
    # Of no cores nothing is known: the baseline's own, as far as the space has it.
    assert with_workers(Hints()).params["loader.num_workers"] == 0


def test_every_start_says_why_and_no_two_say_the_same():
    said = [start.why for start in presets(spec_of(), Hints(device="NVIDIA A10", cores=8))]
    assert all(said)
    assert len(set(said)) == len(said)


def test_a_scripts_flags_are_each_tried_alone_before_all_at_once() -> None:
    spec = SweepSpec.from_dict(
        {
            "name": "flags",
            "command": [
                "train.py",
                "{batch_size}",
                "{loader.num_workers}",
                "{precision.amp}",
                "{device.malloc}",
            ],
            "space": {
                "batch_size": {"type": "int", "low": 8, "high": 512, "log": True},
                "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
                "loader.num_workers": {"type": "int", "low": 0, "high": 4},
                "device.malloc": {"type": "categorical", "choices": ["default", "retain"]},
            },
            "baseline": {
                "batch_size": 32,
                "precision.amp": "fp32",
                "loader.num_workers": 4,
                "device.malloc": "default",
            },
        }
    )
    starts = presets(spec)
    assert [start.why for start in starts[1:4]] == [
        "your baseline with loader.num_workers 0",
        "your baseline with device.malloc retain",
        "your baseline with precision.amp bf16",
    ]
    assert starts[1].params == {**spec.baseline, "loader.num_workers": 0}
    # On a machine with fewer cores the baseline lies outside.
    fewer = [start.params for start in presets(spec.clip("loader.num_workers", 2))]
    assert fewer[1] == {**spec.baseline, "loader.num_workers": 0}
    assert fewer[2] == {**spec.baseline, "loader.num_workers": 2, "device.malloc": "retain"}
