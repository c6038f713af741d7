"""Options of loaders, compiling and gradient exchange: each has the effect that it names, or says why not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sweeper.core.config import DdpConfig, LoaderConfig, TrialConfig
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.trainer import device as devices
from sweeper.trainer import quality
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.workers import WorkerLoader
from sweeper.trainer.pipeline import Pipeline, Samples
from sweeper.trainer.step import fp8
from sweeper.trainer.step import stepper as steps
from sweeper.trainer.step.fp8 import lacks_fp8, use_fp8
from sweeper.trainer.step.stepper import Stepper, repeated_blocks

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SAMPLES = Samples(tensors={"x": torch.arange(64.0)[:, None]}, length=64)
CPU = torch.device("cpu")


def loader(samples: Samples = SAMPLES, **options: Any) -> WorkerLoader:
    config = LoaderConfig(kind="workers", num_workers=1, **options)
    return WorkerLoader(samples, Order(64, 8, 0, drop_last=True), config, CPU)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


class Repeating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def stepper(model: nn.Module, **changes: Any) -> Stepper:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = model(batch["x"]).square().mean()
        return found

    pipeline = Pipeline(model=model, train=SAMPLES, val=SAMPLES, loss=loss)
    return Stepper(pipeline, TrialConfig().replace(changes), CPU)


def test_batches_may_come_out_of_order():
    unordered = loader(in_order=False)
    assert unordered._loader is not None
    assert not unordered._loader.in_order
    assert loader()._loader.in_order  # type: ignore[union-attr]
    unordered.start()
    assert len(unordered.next().batch["x"]) == 8
    unordered.close()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_start_as_asked(method: str):
    found = loader(start_method=method)
    assert found._loader is not None
    assert found._loader.multiprocessing_context.get_start_method() == method


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_data_set_that_cannot_be_sent_is_no_fault_of_the_users():
    unsendable = Samples(tensors=SAMPLES.tensors, length=64, row=lambda index: {"x": torch.zeros(1)})
    found = WorkerLoader(
        unsendable,
        Order(64, 8, 0, drop_last=True),
        LoaderConfig(kind="rows", num_workers=1, start_method="spawn"),
        CPU,
    )
    with pytest.raises(TrialFailedError, match="needs a data set that can be pickled") as raised:
        found.start()
    assert raised.value.kind == FailureKind.UNSUPPORTED


def test_an_error_of_the_users_own_is_none_of_pickling():
    def row(index: int) -> dict[str, torch.Tensor]:
        raise TypeError("a row of the user's own")

    failing = Samples(tensors=SAMPLES.tensors, length=64, row=row)
    config = LoaderConfig(kind="rows", num_workers=0, start_method="spawn")
    found = WorkerLoader(failing, Order(64, 8, 0, drop_last=True), config, CPU)
    with pytest.raises(TypeError, match="a row of the user's own"):
        found.start()


def test_the_repeated_block_is_found():
    model = Repeating()
    assert repeated_blocks(model) == list(model.blocks)
    assert repeated_blocks(nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))) == []


def test_the_repeated_block_is_compiled_and_no_other(monkeypatch: pytest.MonkeyPatch):
    compiled: list[tuple[nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(Block, "compile", lambda self, **options: compiled.append((self, options)))
    model = Repeating()
    found = stepper(model, **{"compile.mode": "default", "compile.regional": True, "compile.dynamic": True})
    assert [block for block, _ in compiled] == list(model.blocks)
    assert compiled[0][1] == {"mode": None, "dynamic": True}
    assert found.compiled is model
    assert "compile.regional" not in found.refused


def test_a_model_without_a_repeated_block_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    found = stepper(nn.Linear(1, 1), **{"compile.mode": "default", "compile.regional": True})
    assert found.refused["compile.regional"].startswith("false: ")


@pytest.fixture
def compiled_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Has blocks be compiled to what they are; returns a list with an entry for each compiled call."""
    calls: list[str] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            calls.append("block")
            return graph(*inputs)

        return call

    monkeypatch.setattr(Block, "compile", lambda self, **options: nn.Module.compile(self, backend=backend))
    torch._dynamo.reset()
    yield calls
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_with_compiled_blocks_a_ragged_batch_and_validation_run_uncompiled(compiled_calls: list[str]):
    found = stepper(Repeating(), **{"compile.mode": "default", "compile.regional": True, "batch_size": 48})

    def evaluate(model: nn.Module, batches: Any) -> dict[str, float]:
        return {"mean": sum(model(batch["x"]).mean().item() for batch in batches)}

    pipeline = dataclasses.replace(found.pipeline, evaluate=evaluate)
    # Batches of 48 and of 16 samples, a validation of 64, and `evaluate`.
    result = quality.measure(pipeline, found, MeasurePlan(quality_samples=64))
    assert result.samples == 64
    assert "mean" in result.metrics
    assert len(compiled_calls) == len(repeated_blocks(found.model))


@pytest.mark.parametrize(("dynamic", "expected"), [(False, False), (True, True), ("auto", None)])
def test_sizes_may_vary_in_compiled_code(
    dynamic: Any, expected: bool | None, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Any] = []

    def compile(model: nn.Module, **options: Any) -> nn.Module:
        asked.append(options["dynamic"])
        return model

    monkeypatch.setattr(torch, "compile", compile)
    stepper(nn.Linear(1, 1), **{"compile.mode": "default", "compile.dynamic": dynamic})
    assert asked == [expected]


def test_gradients_are_exchanged_as_asked(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def exchanging(model: nn.Module, **options: Any) -> nn.Module:
        asked.append(options)
        return model

    monkeypatch.setattr(steps, "DistributedDataParallel", exchanging)
    changes = {"ddp.static_graph": True, "ddp.gradient_as_bucket_view": True, "ddp.broadcast_buffers": False}
    stepper(nn.Linear(1, 1), **changes).join_group(0)
    assert asked == [
        {
            "device_ids": None,
            "static_graph": True,
            "gradient_as_bucket_view": True,
            "broadcast_buffers": False,
        }
    ]


def test_activations_are_computed_again_and_the_gradients_are_the_same(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda self, x: (calls.append(1), forward(self, x))[1])
    grads = []
    for changes in ({}, {"activation_checkpointing": True}):
        torch.manual_seed(0)
        found = stepper(Repeating(), **changes)
        calls.clear()
        found.pipeline.loss(found.model, SAMPLES.tensors).backward()
        grads.append([each.grad for each in found.parameters])
        assert len(calls) == (6 if changes else 3)
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_without_a_repeated_block_activations_are_kept():
    found = stepper(nn.Linear(1, 1), activation_checkpointing=True)
    assert found.refused["activation_checkpointing"] == "false: no block of the model is repeated"


def test_one_node_is_near_in_any_case(monkeypatch: pytest.MonkeyPatch):
    config = TrialConfig().replace({"device.numa": "near"})
    monkeypatch.setattr(devices.numa, "nodes", lambda: {0: frozenset([0])})
    devices.apply(config, CPU)
    found = devices.ineffective_settings(config, CPU)
    assert found["device.numa"] == "without effect: this machine has one node"


def test_a_trial_stays_near_its_memory(monkeypatch: pytest.MonkeyPatch):
    bound: list[int] = []
    cores = frozenset(range(os.cpu_count() or 1))
    monkeypatch.setattr(devices.numa, "nodes", lambda: {0: frozenset(), 1: cores})
    monkeypatch.setattr(devices.numa, "bind", lambda node, among: bound.append(node))
    config = TrialConfig().replace({"device.numa": "near"})
    devices.apply(config, CPU)
    assert bound == [1]
    assert "device.numa" not in devices.ineffective_settings(config, CPU)


def test_segments_that_grow_need_a_gpu():
    found = devices.ineffective_settings(TrialConfig().replace({"device.expandable_segments": True}), CPU)
    assert found["device.expandable_segments"] == "without effect: no GPU"


def test_a_key_has_only_what_is_not_a_default():
    config = TrialConfig()
    assert config.settings() == {}
    assert config.replace({"batch_size": 7}).settings() == {"batch_size": 7}
    changed = {
        "loader.in_order": False,
        "loader.start_method": "spawn",
        "compile.dynamic": True,
        "compile.regional": True,
        "device.expandable_segments": True,
        "device.numa": "near",
        "activation_checkpointing": True,
        "ddp.static_graph": True,
        "ddp.gradient_as_bucket_view": True,
        "ddp.broadcast_buffers": False,
    }
    acting = {"loader.kind": "workers", "loader.num_workers": 2, "compile.mode": "default", "device.count": 2}
    usual = config.replace(acting)
    for name, value in changed.items():
        assert usual.replace({name: value}).key() != usual.key()


def test_what_has_no_effect_is_no_other_configuration():
    eager = TrialConfig()
    for name in ("loader.in_order", "compile.regional", "ddp.static_graph"):
        other = eager.replace({name: name != "loader.in_order"})
        assert other.key() == eager.key()
    assert eager.canonical().ddp == DdpConfig()


def test_float8_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TrialFailedError, match="float8 needs an NVIDIA GPU") as raised:
        stepper(nn.Linear(1, 1), **{"precision.amp": "fp8"})
    assert raised.value.kind == FailureKind.UNSUPPORTED
    assert "8.6" in lacks_fp8("8.6")
    monkeypatch.setattr(fp8.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in lacks_fp8("9.0")


def test_float8_says_that_it_found_no_layer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "lacks_fp8", lambda capability: "")
    monkeypatch.setattr(steps, "use_fp8", lambda model: 0)
    found = stepper(nn.Linear(1, 1), **{"precision.amp": "fp8"})
    assert found.refused["precision.amp"].startswith("bf16: ")
    assert found.autocast is not None


@pytest.mark.filterwarnings("ignore")
def test_linear_layers_multiply_in_float8():
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))
    x = torch.randn(16, 32)
    expected = model(x)
    assert use_fp8(model, emulated=True) == 1
    assert [type(layer).__name__ for layer in model] == ["Float8Linear", "ReLU", "Linear"]
    found = model(x)
    # It rounds, and trains the same float32 weights.
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.2, atol=0.1)
    found.sum().backward()
    assert model[0].weight.grad is not None
    assert model[0].weight.dtype == torch.float32
    # torchao would return another model in its place.
    assert use_fp8(nn.Linear(32, 64), emulated=True) == 0


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_static", [False, True])
def test_gradients_that_accumulate_are_exchanged_once(
    is_static: bool, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
):
    class Exchanging(nn.Module):
        def no_sync(self) -> str:
            return "apart"

    monkeypatch.setattr(steps, "DistributedDataParallel", Exchanging)
    found = stepper(nn.Linear(1, 1), **{"ddp.static_graph": is_static})
    model = Exchanging()
    if is_compiled:
        wrapper = nn.Module()
        wrapper._orig_mod = model
        model = wrapper
    # torch fails if a static graph's first backward pass is apart.
    assert found._apart(model) == (steps._NOTHING if is_static else "apart")
    assert found._apart(nn.Linear(1, 1)) is steps._NOTHING
