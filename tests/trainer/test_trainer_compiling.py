"""The compile watch: its cache, its threads, and what it tells of what was compiled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from sweeper.core.config import TrialConfig
from sweeper.trainer.step import compiling
from sweeper.trainer.step.compiling import CompileWatch


def config(mode: str = "default", buckets: int = 1) -> TrialConfig:
    return TrialConfig().replace({"compile.mode": mode, "loader.buckets": buckets})


@pytest.fixture(autouse=True)
def as_before(monkeypatch, tmp_path: Path):
    """What the watch sets for the process is set back."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "before"))
    # Their settings cannot be monkeypatched: what was there before would be deleted afterwards.
    with torch._inductor.config.patch(compile_threads=32), torch._dynamo.config.patch(recompile_limit=8):
        yield
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_nothing_is_set_where_nothing_is_compiled(mode: str, tmp_path: Path):
    watch = CompileWatch(config(mode, 30), tmp_path / "cache")
    assert not watch.compiles
    assert (watch.cache, dict(watch.effective_mode())) == ("", {})
    assert not (tmp_path / "cache").exists()
    assert torch._inductor.config.compile_threads == 32
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "before")


def test_the_cache_is_in_its_folder(tmp_path: Path):
    folder = tmp_path / "cache" / "cpu"
    assert CompileWatch(config(), folder).compiles
    assert folder.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    CompileWatch(config(), None)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)


@pytest.mark.parametrize(("asked", "usable", "threads"), [(32, 3, 3), (1, 3, 1), (None, 3, 3), (2, 64, 2)])
def test_threads_of_the_compiler_are_bounded_by_the_usable_cores(
    monkeypatch, asked, usable: int, threads: int
):
    torch._inductor.config.compile_threads = asked
    monkeypatch.setattr(compiling, "usable_cpus", lambda: usable)
    CompileWatch(config(), None)
    assert torch._inductor.config.compile_threads == threads


@pytest.mark.parametrize(("buckets", "limit"), [(1, 8), (7, 8), (8, 9), (40, 41)])
def test_each_length_may_be_compiled(buckets: int, limit: int):
    CompileWatch(config(buckets=buckets), None)
    assert torch._dynamo.config.recompile_limit == limit


@pytest.mark.parametrize(
    ("counted", "cache"),
    [
        ({}, ""),
        ({("inductor", "fxgraph_cache_hit"): 2}, "warm"),
        ({("inductor", "fxgraph_cache_miss"): 1}, "cold"),
        ({("inductor", "fxgraph_cache_hit"): 2, ("inductor", "fxgraph_cache_miss"): 1}, "cold"),
        ({("inductor", "fxgraph_cache_hit"): 2, ("inductor", "fxgraph_cache_bypass"): 1}, "cold"),
        ({("inductor", "fxgraph_cache_hit"): 2, ("aot_autograd", "autograd_cache_miss"): 1}, "cold"),
        ({("inductor", "fxgraph_cache_hit"): 2, ("aot_autograd", "autograd_cache_bypass"): 1}, "cold"),
    ],
)
def test_the_cache_is_warm_where_all_came_from_it(counted: dict, cache: str):
    counters = torch._dynamo.utils.counters
    counters["inductor"]["fxgraph_cache_miss"] = 7
    watch = CompileWatch(config(), None)
    for (group, name), count in counted.items():
        counters[group][name] = count
    assert watch.cache == cache


def test_what_was_compiled_is_told():
    counters = torch._dynamo.utils.counters
    watch = CompileWatch(config("max-autotune"), None)
    assert watch.effective_mode()["compile.mode"].startswith("eager: torch.compile skipped every layer")
    counters["stats"]["unique_graphs"] = 3
    assert watch.effective_mode() == {}
    counters["inductor"]["cudagraph_skips"] = 1
    assert watch.effective_mode()["compile.mode"].startswith("max-autotune, partly without CUDA graphs")
    counters["graph_break"]["reason"] = 1
    assert watch.effective_mode()["compile.mode"].startswith("max-autotune in 3 pieces")
