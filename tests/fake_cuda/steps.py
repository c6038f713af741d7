"""Takes a step of each shipped pipeline on `cuda:0` without a GPU, in each precision; prints a line for each.

    LD_PRELOAD=shim.so python tests/fake_cuda/steps.py fp32 bf16-fused fp16-fused

A process of its own: the shim registers itself before torch asks. Fake tensors have no data; operators tell
shapes, types and devices as CUDA does, autocast's among them, and raise where a value is asked for or devices
are mixed.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from pipelines_cases import CASES, MODEL, module, name_of, prepared
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.stepper import Stepper

CUDA = torch.device("cuda", 0)
BASE = {"batch_size": 8, "optimizer.clip_norm": 1.0, "device.malloc": "default"}
VARIANTS = {
    "fp32": {"precision.amp": "fp32", "optimizer.fused": False},
    "bf16-fused": {"precision.amp": "bf16", "optimizer.fused": True},
    "fp16-fused": {"precision.amp": "fp16", "optimizer.fused": True},
}


def take_a_step(pipeline: Pipeline, config: TrialConfig) -> Tensor:
    """Returns the loss, on the device that is not there."""
    fake = FakeTensorMode()

    def on_device(tensor: Tensor) -> Tensor:
        without_data = fake.from_tensor(tensor.detach())
        with fake:
            return without_data.to(CUDA)

    for each in pipeline.model.modules():
        for name, parameter in list(each._parameters.items()):
            if parameter is not None:
                each._parameters[name] = nn.Parameter(on_device(parameter), parameter.requires_grad)
        for name, buffer in list(each._buffers.items()):
            if buffer is not None:
                each._buffers[name] = on_device(buffer)
    samples = pipeline.train
    tensors = {name: on_device(tensor) for name, tensor in samples.tensors.items()}
    length = 0 if samples.lengths is None else int(samples.lengths.max())
    with fake:
        stepper = Stepper(pipeline, config, CUDA)
        batch = samples.read(tensors, torch.arange(config.batch_size, device=CUDA), length)
        stepper.train_through(batch, NoClock(), stepper.model)
        return stepper.last_loss


def said(pipeline: Pipeline, config: TrialConfig) -> str:
    try:
        return str(take_a_step(pipeline, config).device)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def main() -> None:
    warnings.simplefilter("ignore")
    # What asks the driver. A fake module's tensors are where they are to be.
    torch.cuda.is_available = lambda: True
    torch.cuda.is_bf16_supported = lambda *_: True
    torch.cuda.current_device = lambda: 0
    torch.cuda._lazy_init = lambda: None
    nn.Module.to = lambda self, *_, **__: self
    for name, number, model in CASES:
        own = {f"model.{key}": value for key, value in {**MODEL.get(name, {}), **model}.items()}
        for variant in sys.argv[1:]:
            config = TrialConfig().replace({**BASE, **own, **VARIANTS[variant]})
            pipeline = module(name).build(config, prepared(name, number))
            line = {"case": name_of(name, number, model), "variant": variant}
            print(json.dumps({**line, "said": said(pipeline, config)}), flush=True)
    for planted in (item, constant):
        config = TrialConfig().replace(BASE)
        pipeline = module("tabular").build(config, prepared("tabular", 0))
        broken = Pipeline(model=pipeline.model, train=pipeline.train, val=pipeline.val, loss=planted)
        print(json.dumps({"case": planted.__name__, "variant": "", "said": said(broken, config)}))


def item(model: nn.Module, batch: Batch) -> Tensor:
    value = model(batch["x"]).mean()
    return value * value.item()


def constant(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch["x"]) * torch.ones(8, 1)).mean()


if __name__ == "__main__":
    main()
