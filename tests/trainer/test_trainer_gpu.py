"""What only a GPU can show; skipped where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from sweeper.core.config import TrialConfig
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.trainer import device as devices
from sweeper.trainer import measure
from sweeper.trainer.data import make_loader
from sweeper.trainer.pipeline import Pipeline, Samples
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.fp8 import lacks_fp8
from sweeper.trainer.step.stepper import Stepper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Said once by each process that has waits made errors.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]
ROWS, FEATURES = 4096, 16


@pytest.fixture(autouse=True)
def loud_syncs() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


class Recurrent(nn.Module):
    """What torch.compile leaves alone, and a graph captures."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.unsqueeze(1))[0][:, -1]).squeeze(-1)


def pipeline(model: str = "dense") -> Pipeline:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((ROWS, FEATURES)).astype(np.float32))
    samples = Samples(tensors={"x": x, "y": x.sum(dim=1)}, length=ROWS)
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Pipeline(
        model=Recurrent() if model == "lstm" else dense,
        train=samples,
        val=samples,
        loss=lambda model, batch: nn.functional.mse_loss(model(batch["x"]).float(), batch["y"]),
    )


def trained(changes: dict, steps: int = 60, model: str = "dense") -> tuple[Stepper, list[float]]:
    """Takes steps; from the tenth on, one that waits for the device is an error."""
    config = TrialConfig().replace({"batch_size": 256, "optimizer.lr": 0.01, **changes})
    device = torch.device("cuda", 0)
    devices.apply(config, device)
    source = pipeline(model)
    stepper = Stepper(source, config, device)
    graph = config.compile.mode == "graph"
    loader = make_loader(source.train, config.loader, 256, 0, device, index_only=graph)
    if graph:
        stepper.capture(loader)
    loader.start()
    losses = []
    for step in range(steps):
        if step == 10 and config.loader.kind in ("resident", "stream"):
            torch.cuda.set_sync_debug_mode("error")
        stepper.step(loader, NoClock())
        losses.append(stepper.last_loss.clone())
    torch.cuda.set_sync_debug_mode("default")
    loader.close()
    return stepper, torch.stack(losses).tolist()


@pytest.mark.parametrize("model", ["dense", "lstm"])
@pytest.mark.parametrize("amp", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_captured_step_trains_as_an_eager_one(model: str, amp: str, optimizer: str, accumulate: int):
    changes = {
        "precision.amp": amp,
        "optimizer.name": optimizer,
        "optimizer.warmup_steps": 20,
        "optimizer.clip_norm": 1.0,
        "accumulate_steps": accumulate,
    }
    _, eager = trained(changes, model=model)
    stepper, captured = trained({**changes, "compile.mode": "graph"}, model=model)
    assert stepper.captured.num_graphs == accumulate
    assert captured == pytest.approx(eager, rel=0.05 if amp != "fp32" else 1e-3)
    assert captured[-1] < captured[0]


@pytest.mark.filterwarnings("ignore")
def test_float8_trains_as_bf16_does_or_is_refused():
    if why := lacks_fp8(devices.describe(torch.device("cuda", 0)).capability):
        with pytest.raises(TrialFailedError, match=re.escape(why)):
            trained({"precision.amp": "fp8"})
        return
    stepper, losses = trained({"precision.amp": "fp8"})
    assert "precision.amp" not in stepper.refused
    assert losses == pytest.approx(trained({"precision.amp": "bf16"})[1], rel=0.1)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["rows", "workers", "stream"])
def test_every_loader_gives_what_the_resident_one_does(kind: str):
    _, resident = trained({"loader.kind": "resident"})
    changes = {"loader.kind": kind, "loader.num_workers": 2, "loader.pin_memory": True}
    assert trained(changes)[1] == pytest.approx(resident, rel=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_the_scaler_waits_for_the_device_only_without_a_fused_optimiser(fused: bool):
    changes = {"precision.amp": "fp16", "optimizer.fused": fused}
    if fused:
        trained(changes)
    else:
        with pytest.raises(RuntimeError, match="synchroniz"):
            trained(changes)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_trial_on_a_gpu(make_job, mode: str):
    import dataclasses

    uuid = devices.describe(torch.device("cuda", 0)).uuid
    job = dataclasses.replace(make_job({"model.hidden": 64, "compile.mode": mode}, repeats=2), device=uuid)
    result = measure.run(job, SilentProgress())
    assert (result.device.kind, result.device.uuid) == ("cuda", uuid)
    assert result.gpu_mem_peak_gib > 0
    assert result.effective == {}
    assert result.breakdown.step_s == pytest.approx(result.step_ms / 1e3, rel=0.03)
    assert (result.breakdown.graph_s > 0) == (mode == "graph")
    for window in result.windows:
        # The host must not run so far ahead that a window lasts long beyond its end.
        assert window.seconds < 0.4


def test_memory_is_bounded():
    config = TrialConfig().replace({"device.memory_fraction": 0.01})
    devices.apply(config, torch.device("cuda", 0))
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(
                int(0.02 * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda"
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.filterwarnings("ignore:Please use the new API settings")
def test_tf32_is_what_was_asked_for():
    try:
        for on in (True, False):
            devices.apply(TrialConfig().replace({"precision.tf32": on}), torch.device("cuda", 0))
            assert torch.backends.cuda.matmul.allow_tf32 is on
            assert torch.backends.cudnn.allow_tf32 is on
    finally:
        # As torch comes.
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
