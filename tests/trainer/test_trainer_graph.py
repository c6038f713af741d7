"""Captured steps train as eager ones do; the capture is a fake that runs on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.trainer import measure, quality
from sweeper.trainer.data import make_loader
from sweeper.trainer.setup import set_up
from sweeper.trainer.step import stepper as stepper_module
from sweeper.trainer.step.clocks import GRAPH, H2D, OPTIMIZER, HostClock, NoClock
from sweeper.trainer.step.graph import EAGER_STEPS, CapturedStep
from sweeper.trainer.step.stepper import Stepper

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.usefixtures("quiet"),
]

# Rates that a float32 on the device holds exactly, as the host's own number does.
EXACT = {"optimizer.lr": 2.0**-5, "model.hidden": 8}
RESIDENT = {"loader.kind": "resident"}


class Fake:
    """Replays by running the body itself, which reads the static tensors."""

    def __init__(self) -> None:
        self.eager = self.recorded = self.replayed = 0

    def run(self, body: Callable[[], None]) -> None:
        self.eager += 1
        body()

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            body()

        return replay


class Failing(Fake):
    """Cannot record."""

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        raise RuntimeError("operation not permitted\nin all of many lines")


def small_scale(stepper: Stepper) -> None:
    """Begins with a scale at which nothing overflows by itself."""
    if stepper.scaler:
        stepper.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)


def trained(job, steps: int, make_capture: Callable[[Stepper], Fake] | None = None):
    """Takes `steps` micro-steps, captured or eager; returns stepper, losses, weights, capture."""
    pipeline, stepper, _ = set_up(job)
    config = job.config
    captured = make_capture is not None
    loader = make_loader(
        pipeline.train, config.loader, config.batch_size, config.seed, stepper.device, index_only=captured
    )
    capture = make_capture(stepper) if make_capture else None
    if capture is not None:
        stepper.capture(loader, capture)
    small_scale(stepper)
    loader.start()
    losses = []
    for _ in range(steps):
        stepper.step(loader, NoClock())
        losses.append(stepper.last_loss.item())
    loader.close()
    weights = torch.cat([p.detach().flatten() for p in stepper.parameters])
    return stepper, losses, weights, capture


def fake(_: Stepper) -> Fake:
    return Fake()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loader.kind": "stream"},
        {"loader.kind": "workers"},
        {"loader.drop_last": False, "batch_size": 600},
        {"optimizer.warmup_steps": 8},
        {"accumulate_steps": 2},
        {"optimizer.clip_norm": 0.25},
        {"accumulate_steps": 2, "optimizer.clip_norm": 0.25, "optimizer.warmup_steps": 4},
        {"optimizer.name": "adam", "optimizer.weight_decay": 0.25},
        {"optimizer.name": "sgd"},
        {"precision.amp": "bf16"},
        {"precision.amp": "fp16", "optimizer.clip_norm": 0.25},
        {"precision.amp": "fp16", "model.fault": "inf", "model.fault_at": 20},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()) or "plain",
)
def test_captured_steps_train_as_eager_ones_do(make_job, options: dict):
    job = make_job({**EXACT, **options})
    eager, want, want_weights, _ = trained(job, 30)
    stepper, got, got_weights, capture = trained(job, 30, fake)
    assert got == want
    assert torch.equal(got_weights, want_weights)
    assert len(set(want)) > 20
    assert (stepper.updates, stepper.micro_steps) == (eager.updates, eager.micro_steps)
    assert stepper.skipped.item() == eager.skipped.item()
    # A ragged batch, the last of four here, is not worth a graph.
    ragged = 30 // 4 if options.get("batch_size") else 0
    kinds = options.get("accumulate_steps", 1)
    assert (capture.eager, capture.recorded) == (kinds * EAGER_STEPS, kinds)
    assert capture.replayed == 30 - capture.eager - ragged


def test_the_rate_of_a_graph_lies_on_the_device_and_follows_the_warm_up(make_job):
    stepper, *_ = trained(make_job({**EXACT, "optimizer.warmup_steps": 8}), 3, fake)
    (group,) = stepper.optimizer.param_groups
    assert isinstance(group["lr"], torch.Tensor)
    assert group["lr"].item() == 3 * 2.0**-8
    assert group["capturable"] is True
    rate = group["lr"]
    stepper, *_ = trained(make_job({**EXACT, "optimizer.warmup_steps": 8}), 12, fake)
    assert stepper.optimizer.param_groups[0]["lr"].item() == 2.0**-5
    assert rate.item() == 3 * 2.0**-8


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["resident", "stream", "rows"])
def test_each_length_of_a_bucket_has_its_graph(make_sequence_job, kind: str, accumulate: int):
    options = {"batch_size": 32, "loader.buckets": 2, "loader.kind": kind, "accumulate_steps": accumulate}
    job = make_sequence_job({**options, "optimizer.lr": 2.0**-5})
    _, want, want_weights, _ = trained(job, 40)
    stepper, got, got_weights, capture = trained(job, 40, fake)
    assert got == want
    assert torch.equal(got_weights, want_weights)
    assert capture.recorded == stepper.captured.num_graphs == 2 * accumulate
    assert stepper.has_seen(2)
    assert not stepper.has_seen(3)


def test_warm_up_waits_for_the_graphs_of_all_shapes(make_sequence_job):
    job = make_sequence_job({"batch_size": 32, "loader.buckets": 2, "accumulate_steps": 2})
    for steps in range(6, 30):
        stepper, _, _, capture = trained(job, steps, fake)
        assert stepper.has_seen(2) == (capture.recorded == 4)
    assert stepper.has_seen(2)


def test_gradients_that_accumulate_stay_where_the_graphs_write_them(make_job):
    job = make_job({**EXACT, "accumulate_steps": 2})
    pipeline, stepper, _ = set_up(job)
    loader = make_loader(pipeline.train, job.config.loader, 100, 0, stepper.device, index_only=True)
    stepper.capture(loader, Fake())
    loader.start()
    where = [parameter.grad.data_ptr() for parameter in stepper.parameters]
    for number in range(1, 15):
        stepper.step(loader, NoClock())
        assert [parameter.grad.data_ptr() for parameter in stepper.parameters] == where
        assert all((parameter.grad == 0).all() for parameter in stepper.parameters) == (number % 2 == 0)
    # Where nothing accumulates they are each step's own.
    stepper, *_ = trained(make_job(EXACT), 5, fake)
    assert [parameter.grad for parameter in stepper.parameters] == [None] * len(stepper.parameters)


# -- the step itself ------------------------------------------------------------------------------------


def test_what_is_handed_over_is_copied_to_where_the_graph_reads():
    seen = []

    def step(batch: dict, length: int, update: bool) -> None:
        seen.append((batch["x"].data_ptr(), batch["x"].tolist(), length, update))

    captured = CapturedStep(step, Fake())
    handed = [torch.full((4,), float(i)) for i in range(10)]
    for tensor in handed:
        captured({"x": tensor}, 7, True)
    assert [values[0] for _, values, _, _ in seen] == list(range(10))
    assert {(length, update) for _, _, length, update in seen} == {(7, True)}
    pointers = [pointer for pointer, *_ in seen]
    assert pointers[:EAGER_STEPS] == [tensor.data_ptr() for tensor in handed[:EAGER_STEPS]]
    assert len(set(pointers[EAGER_STEPS:])) == 1
    assert pointers[-1] not in {tensor.data_ptr() for tensor in handed}
    assert [tensor[0].item() for tensor in handed] == list(range(10))


def test_a_graph_is_for_one_shape_type_length_and_kind_of_step():
    capture = Fake()
    captured = CapturedStep(lambda *_: None, capture)
    kinds = [
        ({"x": torch.zeros(4)}, 0, True),
        ({"x": torch.zeros(4)}, 0, False),
        ({"x": torch.zeros(4)}, 8, True),
        ({"x": torch.zeros(3)}, 0, True),
        ({"x": torch.zeros(4, dtype=torch.int64)}, 0, True),
        ({"y": torch.zeros(4)}, 0, True),
    ]
    for _ in range(EAGER_STEPS):
        for kind in kinds:
            captured(*kind)
    assert (capture.eager, captured.num_graphs) == (EAGER_STEPS * 6, 0)
    for number, kind in enumerate(kinds):
        captured(*kind)
        assert captured.num_graphs == number + 1
    for kind in kinds:
        captured(*kind)
    assert (capture.eager, capture.recorded, capture.replayed) == (EAGER_STEPS * 6, 6, 12)


def test_a_replay_is_a_phase_of_its_own(make_job):
    pipeline, stepper, _ = set_up(make_job(EXACT))
    config = stepper.config
    loader = make_loader(pipeline.train, config.loader, 100, 0, stepper.device, index_only=True)
    stepper.capture(loader, Fake())
    loader.start()
    clock = HostClock()
    for _ in range(5):
        assert stepper.step(loader, clock) == 100
    assert clock.seconds[GRAPH] > 0
    assert clock.seconds[H2D + 1 : OPTIMIZER + 1] == [0.0, 0.0, 0.0]
    stepper.reset()
    assert stepper.captured is None
    assert isinstance(stepper.optimizer.param_groups[0]["lr"], float)


# -- where it cannot be captured ------------------------------------------------------------------------


def test_a_step_that_cannot_be_captured_is_a_finding(make_job):
    capture = Failing()
    with pytest.raises(TrialFailedError) as caught:
        trained(make_job(EXACT), 10, lambda _: capture)
    assert caught.value.kind == "unsupported"
    assert str(caught.value) == "the step cannot be captured as a CUDA graph: operation not permitted"
    assert (capture.eager, capture.recorded) == (EAGER_STEPS, 1)


def test_the_first_of_a_chain_of_errors_is_the_cause():
    class FailingAtItsEnd(Fake):
        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            try:
                body()
            finally:
                raise RuntimeError("the capture was invalidated")

    def step(batch: dict, length: int, update: bool) -> None:
        if capture.eager == EAGER_STEPS and capture.recorded:
            raise RuntimeError("a number was asked for\nhere")

    capture = FailingAtItsEnd()
    captured = CapturedStep(step, capture)
    for _ in range(EAGER_STEPS):
        captured({}, 0, True)
    capture.recorded = 1
    with pytest.raises(TrialFailedError, match=r"as a CUDA graph: a number was asked for$"):
        captured({}, 0, True)
    assert captured.num_graphs == 0


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), None),
        (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("the capture was invalidated")),
        (RuntimeError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
    ],
)
def test_memory_that_runs_out_in_a_capture_is_said_as_ever(
    make_job, first: Exception, then: Exception | None
):
    class TooLarge(Fake):
        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            try:
                raise first
            finally:
                if then is not None:
                    raise then

    with pytest.raises(torch.OutOfMemoryError):
        trained(make_job(EXACT), 10, lambda _: TooLarge())


@pytest.mark.parametrize(
    "options", [{"optimizer.name": "sgd"}, {"precision.amp": "fp16"}], ids=["sgd", "fp16"]
)
def test_an_optimiser_that_waits_for_the_device_cannot_be_captured(make_job, options: dict):
    with pytest.raises(TrialFailedError, match=r"needs `optimizer.fused: true` with sgd or fp16") as caught:
        trained(make_job({**options, "optimizer.fused": False}), 1, fake)
    assert caught.value.kind == "unsupported"
    trained(make_job(options), 5, fake)


def test_recomputed_activations_are_captured_where_that_is_safe(make_job, monkeypatch):
    again = {"activation_checkpointing": True}
    monkeypatch.setattr(stepper_module, "repeated_blocks", lambda model: [model])
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.10.0"))
    trained(make_job(again), 5, fake)
    with monkeypatch.context() as older:
        older.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.9.1"))
        with pytest.raises(TrialFailedError, match=r"needs torch 2\.10 or newer"):
            trained(make_job(again), 1, fake)
    _, stepper, _ = set_up(make_job(again), SilentProgress())
    stepper.model.add_module("recurrent", torch.nn.LSTM(2, 2, num_layers=2, dropout=0.1))
    with pytest.raises(TrialFailedError, match="the dropout of recurrent layers"):
        stepper.capture(SimpleNamespace(), Fake())
    # Without repeated blocks, nothing is computed again.
    monkeypatch.setattr(stepper_module, "repeated_blocks", lambda model: [])
    _, stepper, _ = set_up(make_job(again), SilentProgress())
    stepper.model.add_module("recurrent", torch.nn.LSTM(2, 2, num_layers=2, dropout=0.1))
    stepper.capture(SimpleNamespace(materialise=None), Fake())


def test_other_errors_of_a_step_are_raised(make_job):
    class Breaking(Fake):
        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            raise KeyError("x")

    with pytest.raises(KeyError):
        trained(make_job(EXACT), 10, lambda _: Breaking())


def test_a_graph_needs_a_gpu(make_job):
    with pytest.raises(TrialFailedError, match=r"`compile.mode: graph` needs a GPU") as caught:
        measure.run(make_job({"compile.mode": "graph"}), SilentProgress())
    assert caught.value.kind == "unsupported"


# -- a whole trial --------------------------------------------------------------------------------------


@contextlib.contextmanager
def capturing_by(capture: Fake):
    original = Stepper.capture
    with mock.patch.object(Stepper, "capture", lambda self, loader: original(self, loader, capture)):
        yield


def test_a_trial_of_captured_steps(make_job):
    capture = Fake()
    job = make_job({**EXACT, "compile.mode": "graph"}, quality_samples=1000)
    with capturing_by(capture):
        result = measure.run(job, SilentProgress())
    assert dict(result.effective) == {}
    assert (capture.eager, capture.recorded) == (EAGER_STEPS, 1)
    assert capture.replayed >= sum(window.steps for window in result.windows)
    phases = result.breakdown
    assert (phases.forward_s, phases.backward_s, phases.optimizer_s) == (0, 0, 0)
    assert phases.compute_s == phases.graph_s > 0
    assert phases.step_s == pytest.approx(result.step_ms / 1e3, rel=0.05)
    assert (result.compile_seconds, result.compile_cache) == (0.0, "")
    # The quality pass runs eagerly, and is the same one.
    alone = quality.run(make_job(EXACT, quality_samples=1000), SilentProgress()).values
    assert (result.quality.key, result.quality.val_loss) == (alone["key"], alone["val_loss"])
    assert result.quality.train_loss == alone["train_loss"]


def test_a_trial_that_could_not_be_captured_says_so(make_job):
    with (
        capturing_by(Failing()),
        pytest.raises(TrialFailedError, match="the step cannot be captured as a CUDA graph: operation not"),
    ):
        measure.run(make_job({**EXACT, "compile.mode": "graph"}), SilentProgress())
