"""Changes to how a model computes: in effect from the second step, gone in evaluations and copies."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hearing import Run, run

from sweeper.script.changes import CHANGES, CHANGES_VARIABLE
from sweeper.script.changes.change import ChangeRefusedError
from sweeper.script.changes.model import _compile_graphs

MODELS = str(Path(__file__).parent / "models.py")
FP32, BF16 = "torch.float32", "torch.bfloat16"


@functools.cache
def trained(kind: str, changes: str = "") -> Run:
    found = run([sys.executable, "-W", "ignore", MODELS, kind], {CHANGES_VARIABLE: changes})
    assert found.status == 0, found.errors
    return found


def why(found: Run, name: str) -> list[str]:
    return [each["change"]["why"] for each in found.messages if each.get("change", {}).get("name") == name]


@pytest.mark.parametrize("kind", ["rows", "named", "pictures"])
def test_a_model_computes_in_bf16_and_gives_floats(kind):
    plain, found = trained(kind).truth, trained(kind, "precision=bf16")
    truth = found.truth
    assert why(found, "precision") == [""]
    assert [dtype for dtype, _ in truth["during"]] == [FP32, *[BF16] * 5]
    # On a GPU, other elements of a tensor of 16 bits would be dropped.
    assert truth["dropped"] == truth["dtypes"] == [FP32] * 6
    assert truth["types"] == [FP32]
    assert [dtype for dtype, _ in truth["evaluating"]] == [FP32]
    assert truth["losses"][0] == plain["losses"][0]
    assert truth["losses"] == pytest.approx(plain["losses"], rel=0.02)
    assert truth["losses"] != plain["losses"]
    assert truth["names"]
    assert truth["copied"]
    assert truth["draw"] == plain["draw"]


def test_a_sigmoid_is_not_rounded_to_1():
    plain, found = trained("gated").truth, trained("gated", "precision=bf16")
    assert why(found, "precision") == [""]
    assert [dtype for dtype, _ in found.truth["during"]] == [FP32, *[BF16] * 5]
    assert found.truth["losses"] == pytest.approx(plain["losses"], rel=0.2)
    assert min(found.truth["losses"]) > 0


def test_an_output_of_an_unknown_kind_ends_the_change():
    found = trained("odd", "precision=bf16")
    (said,) = why(found, "precision")
    assert "an output of type Odd" in said
    assert found.truth["dtypes"] == [FP32] * 6


def test_a_model_that_is_called_in_a_loop_stays_as_it_is():
    found = trained("loop", "precision=bf16")
    assert why(found, "precision") == ["its Model is called 20 times in a step"]
    assert found.truth == trained("loop").truth


@pytest.mark.slow
def test_where_torch_captures_nothing_the_model_runs_as_it_is():
    found = trained("rows", "compile=graphs")
    assert why(found, "compile")[-1] == "its Model is not changed: torch has captured none of its operations"
    assert found.truth["losses"] == pytest.approx(trained("rows").truth["losses"])


def test_what_cannot_be_captured_has_the_reason_that_torch_gives(monkeypatch: pytest.MonkeyPatch):
    def compiled(call, *, mode):
        def run(x):
            raise RuntimeError("skipping cudagraphs due to mutated inputs (1 instances)")

        return run

    made = []
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(
        "sweeper.script.changes.model.change_calls", lambda _, make, report: made.append(make)
    )
    monkeypatch.setattr("sweeper.script.changes.model._cannot_compile", lambda: "")
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    settings = SimpleNamespace(triton=SimpleNamespace(cudagraph_or_error=False))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", settings)
    CHANGES["compile"].apply(torch, "graphs", pytest.fail)
    call = made[0](None, lambda x: x)
    with pytest.raises(
        ChangeRefusedError, match="cannot be captured: skipping cudagraphs due to mutated inputs"
    ):
        call(torch.ones(1))


def test_a_replay_begins_a_step_and_what_it_returns_outlives_the_next(monkeypatch: pytest.MonkeyPatch):
    static = torch.zeros(2)
    modes, steps = [], []

    def compiled(call, *, mode):
        modes.append(mode)
        return lambda x: {"y": static.copy_(call(x)), "name": "x"}

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: steps.append(len(steps)))
    monkeypatch.setattr("sweeper.script.changes.model._has_graphs", lambda _: True)
    config = SimpleNamespace(triton=SimpleNamespace(cudagraph_or_error=False))
    call = _compile_graphs(torch, lambda x: 2 * x, config)
    assert config.triton.cudagraph_or_error
    outputs = [call(torch.full((2,), float(number))) for number in range(5)]
    assert [float(output["y"][0]) for output in outputs] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert (modes, steps) == (["reduce-overhead"], [0, 1, 2, 3, 4])
    # What does not fit a graph later, such as in an evaluation, does not end the script.
    assert not config.triton.cudagraph_or_error


def test_pictures_have_their_channels_last():
    plain, found = trained("pictures").truth, trained("pictures", "layout=channels_last")
    truth = found.truth
    assert why(found, "layout") == [""]
    assert [is_last for _, is_last in truth["during"]] == [False, *[True] * 5]
    assert truth["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert truth["names"]


@pytest.mark.parametrize("changes", ["layout=channels_last", "layout=channels_last optimizer=fused"])
def test_an_optimizers_state_has_the_layout_of_its_parameters(changes):
    """A fused optimizer goes through both in the order of memory."""
    truth = trained("pictures", changes).truth
    assert truth["moments"] == [True]
    assert truth["losses"] == pytest.approx(trained("pictures").truth["losses"], rel=1e-5)


def test_a_model_without_pictures_keeps_its_layout():
    found = trained("rows", "layout=channels_last")
    assert "no convolutions of images" in why(found, "layout")[0]


def test_a_model_with_parts_of_five_dimensions_keeps_its_layout():
    found = trained("volumes", "layout=channels_last")
    assert "of five dimensions" in why(found, "layout")[0]


def test_both_together():
    truth = trained("pictures", "layout=channels_last precision=bf16").truth
    assert truth["during"] == [[FP32, False], *[[BF16, True]] * 5]


@pytest.mark.slow
def test_a_compiled_model_draws_as_before_and_is_compiled_once():
    plain, found = trained("rows").truth, trained("rows", "compile=model")
    truth = found.truth
    assert why(found, "compile") == [""]
    assert len(truth["during"]) == 2
    assert truth["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert truth["draw"] == plain["draw"]
    assert truth["graphs"] > 0


@pytest.mark.slow
def test_a_model_that_cannot_be_compiled_runs_as_it_is(tmp_path):
    """There is no compiler on the path, and none that torch remembers."""
    empty = {"PATH": str(tmp_path), "CXX": "none", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-W", "ignore", MODELS, "rows"]
    found = run(command, {**empty, CHANGES_VARIABLE: "compile=model"})
    assert found.status == 0, found.errors
    (said,) = why(found, "compile")
    assert "No working C++ compiler" in said
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.truth["losses"] == Run(0, plain.stdout, "").truth["losses"]


@pytest.mark.parametrize(
    ("name", "value", "observed", "said"),
    [
        ("precision", "bf16", {"precision": "bf16"}, "already computes"),
        ("compile", "model", {"compiled": True}, "compiles its model itself"),
        ("compile", "model", {"compiled": False}, ""),
        ("layout", "channels_last", {"convolves": False}, "no convolution"),
        ("layout", "channels_last", {"convolves": True}, ""),
        ("tf32", "on", {"device": "cpu"}, "not train on a GPU"),
        ("tf32", "on", {"device": "cuda", "precision": "bf16"}, "other than float32"),
        ("tf32", "on", {"device": "cuda", "precision": "fp32"}, ""),
        ("ddp", "views", {}, "in one process"),
        ("ddp", "views", {"ranks": 2}, ""),
        ("pin_memory", "on", {"device": "cuda"}, "not come from a DataLoader"),
        ("pin_memory", "on", {"device": "cuda", "num_workers": 0, "pin_memory": True}, "already pins memory"),
        ("pin_memory", "on", {"device": "cpu", "num_workers": 0, "pin_memory": False}, "not train on a GPU"),
        ("pin_memory", "on", {"device": "cuda", "num_workers": 0, "pin_memory": False}, ""),
        ("cudnn_benchmark", "search", {"device": "cuda", "convolves": True}, ""),
        ("compile", "graphs", {"device": "cpu"}, "does not train on a GPU"),
        ("compile", "graphs", {"device": "cuda"}, ""),
        ("cudnn_benchmark", "search", {"device": "cuda", "convolves": False}, "no convolution"),
        ("loader", "gathered", {}, "not come from a DataLoader"),
        ("loader", "no_workers", {"num_workers": 0}, "has no workers"),
        ("loader", "cores", {"num_workers": len(os.sched_getaffinity(0))}, "already has"),
        ("batch_size", "128", {"num_workers": 0}, "unknown"),
        ("batch_size", "128", {"batch_size": 64}, "not come from a DataLoader"),
    ],
)
def test_what_cannot_help_a_training_is_not_tried(name, value, observed, said):
    found = CHANGES[name].refusal(value, observed)
    assert said in found
    assert bool(said) == bool(found)
