"""Training steps: accumulation, precision, clipping, warm-up, optimisers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sweeper.core.config import OptimizerConfig, TrialConfig
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.resident import BatchReader
from sweeper.trainer.pipeline import Pipeline, Samples
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import BACKWARD, DATA, FORWARD, GRAPH, H2D, OPTIMIZER, HostClock, NoClock
from sweeper.trainer.step.stepper import Stepper, make_optimizer

# Torch says so where there are fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def first_batches(samples, size: int, num_samples: int):
    """The batches of a quality pass, seed 0."""
    read = BatchReader(samples, torch.device("cpu"))
    order = Order(samples.length, size, 0, drop_last=False)
    return [read(index, length) for index, length in order.first_samples(num_samples).batches()]


def train(job, steps: int, before=lambda stepper: None):
    """Takes `steps` micro-steps; returns the stepper and the losses."""
    pipeline, stepper, _ = set_up(job)
    before(stepper)
    losses = []
    size = job.config.batch_size
    for batch in first_batches(pipeline.train, size, steps * size):
        stepper.train_through(batch, NoClock(), stepper.compiled)
        losses.append(stepper.last_loss.item())
    return stepper, losses


def small_scale(stepper) -> None:
    """Begins with a scale at which nothing overflows by itself."""
    if stepper.scaler:
        stepper.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)


def weights(stepper) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in stepper.parameters])


@pytest.mark.parametrize("amp", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_every_optimiser_learns_in_every_precision(make_job, name: str, amp: str):
    job = make_job({"optimizer.name": name, "optimizer.lr": 0.03, "precision.amp": amp})
    stepper, losses = train(job, 100, before=small_scale)
    assert losses[-1] < 0.2 * losses[0]
    assert stepper.updates == 100
    assert stepper.skipped.item() == 0
    assert {p.dtype for p in stepper.parameters} == {torch.float32}


def test_the_optimiser_is_the_one_asked_for():
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    for name, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        optimizer = make_optimizer(OptimizerConfig(name=name, weight_decay=0.5), 0.25, parameter)
        assert type(optimizer) is kind
        assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.25, 0.5)
        assert optimizer.defaults["fused"] is True
    plain = make_optimizer(OptimizerConfig(name="sgd", fused=False), 0.25, parameter)
    assert not plain.defaults["fused"]
    assert plain.defaults["momentum"] == 0.9


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_accumulation_equals_a_larger_batch(make_job, clip: float):
    common = {"optimizer.name": "sgd", "optimizer.clip_norm": clip}
    large, _ = train(make_job({**common, "batch_size": 100}), 10)
    small, _ = train(make_job({**common, "batch_size": 25, "accumulate_steps": 4}), 40)
    assert small.updates == large.updates == 10
    assert torch.allclose(weights(small), weights(large), rtol=1e-4, atol=1e-6)
    single, _ = train(make_job({**common, "batch_size": 25}), 40)
    assert not torch.allclose(weights(single), weights(large), rtol=1e-2)


@pytest.mark.parametrize("amp", ["fp32", "fp16"])
def test_clipping_bounds_the_step(make_job, amp: str):
    # Of SGD's first step: rate times the clipped gradient's norm. fp16 gradients are scaled by 256,
    # so this also tells whether they are unscaled before they are clipped.
    options = {"optimizer.name": "sgd", "optimizer.lr": 1.0, "precision.amp": amp}
    begin = weights(set_up(make_job(options))[1])

    def first_step(clip: float) -> float:
        stepper, _ = train(make_job({**options, "optimizer.clip_norm": clip}), 1, before=small_scale)
        return float((weights(stepper) - begin).norm())

    assert first_step(0.25) == pytest.approx(0.25, rel=1e-2)
    assert first_step(0.0) > 1.0


def test_the_rate_rises_linearly_and_stays(make_job):
    _, stepper, _ = set_up(make_job({"optimizer.warmup_steps": 4, "optimizer.lr": 0.4}))
    batch = {"x": torch.ones(2, 8), "y": torch.ones(2)}
    rates = []
    for _ in range(6):
        stepper.train_through(batch, NoClock(), stepper.model)
        rates.append(stepper.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    stepper.reset()
    stepper.train_through(batch, NoClock(), stepper.model)
    assert stepper.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_the_rate_follows_the_batch(make_job):
    job = make_job({"optimizer.lr_rule": "linear", "optimizer.lr_batch_size": 25, "accumulate_steps": 2})
    assert set_up(job)[1].optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 200 / 25)


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("fused", [True, False])
def test_the_scaler_skips_infinite_gradients_and_counts_them(make_job, clip: float, fused: bool):
    options = {
        "precision.amp": "fp16",
        "model.fault": "inf",
        "model.fault_at": 3,
        "optimizer.clip_norm": clip,
        "optimizer.fused": fused,
    }
    healthy, _ = train(make_job(options), 3, before=small_scale)
    stepper, losses = train(make_job(options), 8, before=small_scale)
    assert stepper.skipped.item() == 5
    assert torch.equal(weights(stepper), weights(healthy))
    assert all(map(math.isfinite, losses))


def test_reset_goes_back_to_the_seed(make_job):
    job = make_job({"model.hidden": 8, "model.dropout": 0.5})
    stepper, losses = train(job, 5)
    assert not torch.equal(weights(stepper), weights(set_up(job)[1]))
    stepper.reset()
    assert torch.equal(weights(stepper), weights(set_up(job)[1]))
    assert train(job, 5)[1] == losses
    assert train(job, 5, before=lambda s: torch.rand(7) is None or s.reset())[1] == losses
    assert train(make_job({"model.hidden": 8, "seed": 1}), 5)[1] != losses


def test_a_clock_hears_of_every_phase(make_job):
    pipeline, stepper, _ = set_up(make_job())
    clock = HostClock()
    clock.start()
    for batch in first_batches(pipeline.train, 100, 300):
        stepper.train_through(batch, clock, stepper.model)
    data, h2d, forward, backward, optimizer, graph = clock.seconds
    assert tuple(range(6)) == (DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, GRAPH)
    assert data == h2d == graph == 0.0
    assert min(forward, backward, optimizer) > 0.0


# -- whatever the loader --------------------------------------------------------------------------------

LOADERS = [
    {"loader.kind": "rows"},
    {"loader.kind": "rows", "loader.num_workers": 2},
    {"loader.kind": "workers"},
    {"loader.kind": "workers", "loader.num_workers": 2, "loader.persistent_workers": False},
    {"loader.kind": "stream"},
    {"loader.kind": "resident"},
]


def losses_through_a_loader(job, steps: int = 30, *, index_only: bool = False) -> list[float]:
    pipeline, stepper, _ = set_up(job)
    config = job.config
    loader = make_loader(
        pipeline.train, config.loader, config.batch_size, config.seed, stepper.device, index_only=index_only
    )
    loader.start()
    losses = []
    for _ in range(steps):
        stepper.step(loader, NoClock())
        losses.append(stepper.last_loss.item())
    loader.close()
    return losses


def test_losses_are_those_of_the_first_batches_whatever_the_loader(make_job):
    # 2,000 samples in batches of 100: an epoch and a half.
    model = {"model.hidden": 8, "optimizer.lr": 0.03}
    _, want = train(make_job(model), 30)
    assert want[-1] < 0.9 * want[0]
    for options in LOADERS:
        assert losses_through_a_loader(make_job({**model, **options})) == pytest.approx(want, rel=1e-5)
    assert losses_through_a_loader(make_job(model), index_only=True) == pytest.approx(want, rel=1e-5)
    other = losses_through_a_loader(make_job({**model, "seed": 1}))
    assert other != pytest.approx(want, rel=1e-2)


@pytest.mark.parametrize("buckets", [1, 3])
def test_losses_in_buckets_are_the_same_whatever_the_loader(make_sequence_job, buckets: int):
    common = {"batch_size": 32, "loader.buckets": buckets, "optimizer.lr": 0.03}
    want = losses_through_a_loader(make_sequence_job({**common, "loader.kind": "rows"}))
    for options in LOADERS[1:]:
        got = losses_through_a_loader(make_sequence_job({**common, **options}))
        assert got == pytest.approx(want, rel=1e-5)
    got = losses_through_a_loader(make_sequence_job(common), index_only=True)
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("make_sequence_job", [True], indirect=True, ids=["source"])
def test_losses_from_a_source_are_the_same_whatever_the_loader(make_sequence_job):
    common = {"batch_size": 32, "optimizer.lr": 0.03}
    want = losses_through_a_loader(make_sequence_job({**common, **LOADERS[0]}))
    for options in LOADERS[1:-1]:
        got = losses_through_a_loader(make_sequence_job({**common, **options}))
        assert got == pytest.approx(want, rel=1e-5)


def test_a_model_that_cannot_be_channels_last_stays_as_it_is_and_says_so():
    def volumes(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["x"]).square().mean()

    samples = Samples(tensors={"x": torch.randn(8, 1, 3, 3, 3)}, length=8)
    pipeline = Pipeline(model=nn.Conv3d(1, 2, 3), train=samples, val=samples, loss=volumes)
    config = TrialConfig().replace({"memory_format": "channels_last", "batch_size": 4})
    stepper = Stepper(pipeline, config, torch.device("cpu"))
    (reason,) = stepper.refused.values()
    assert set(stepper.refused) == {"memory_format"}
    assert reason.startswith("contiguous: ")
    stepper.train_through({"x": samples.tensors["x"][:4]}, NoClock(), stepper.model)
