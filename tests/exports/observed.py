"""Trains as flags say, and as pasted lines say, and prints what was really set: JSON in, JSON out.

python observed.py < [{"flags": [...], "lines": "...", "batch": 8, "accumulate": 1}, ...]
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from unittest import mock

import plain_train
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset

STEPS = 3
MARK = "# Your `dataset`, `model` and `loss_of(model, batch)` go here."


class Seen:
    """A data set, a model and a loss that remember how they are used."""

    def __init__(self, batch: int, accumulate: int) -> None:
        # One sample more than whole steps need: it is dropped, or a batch of its own.
        count = STEPS * batch * accumulate + 1
        self.dataset = TensorDataset(torch.randn(count, 3, 4, 4), torch.randn(count, 1))
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.Flatten(), torch.nn.Linear(36, 1))
        self.sizes: list[int] = []
        self.autocast = self.is_channels_last = None
        self.compiled = "eager"
        self.clipped: list[float] = []
        self.updates = 0

    def loss_of(self, model, batch):
        x, y = batch
        self.sizes.append(len(x))
        self.autocast = str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else "none"
        self.is_channels_last = x.is_contiguous(memory_format=torch.channels_last)
        self.weights_too = model[0].weight.is_contiguous(memory_format=torch.channels_last)
        # Small, so that the scaler skips no step.
        return 1e-3 * torch.nn.functional.mse_loss(model(x).float(), y)

    def compile(self, model, mode=None, dynamic=None):
        assert dynamic is False
        self.compiled = mode or "default"
        return model

    def clip(self, parameters, most):
        self.clipped.append(most)

    def updated(self, optimizer, args, kwargs):
        self.updates += 1

    def settings(self, loader, optimizer, scaler):
        group = optimizer.param_groups[0]
        return {
            "loader": _of_loader(loader),
            "sizes": self.sizes,
            "autocast": self.autocast,
            "scaled": scaler is not None and scaler.is_enabled(),
            "compile": self.compiled,
            "optimizer": type(optimizer).__name__,
            "fused": bool(group["fused"]),
            "lr": round(float(group["lr"]), 9),
            "weight_decay": group["weight_decay"],
            "clip": self.clipped[-1] if self.clipped else 0.0,
            "updates": self.updates,
            "tf32": torch.get_float32_matmul_precision(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "threads": torch.get_num_threads(),
            "channels_last": self.is_channels_last and self.weights_too,
            "seed": torch.initial_seed(),
        }


def _of_loader(loader):
    if loader is None:
        return None
    whole = isinstance(loader.sampler, BatchSampler)
    batches = loader.sampler if whole else loader.batch_sampler
    return {
        "whole": whole,
        "batch_size": batches.batch_size,
        "drop_last": batches.drop_last,
        "shuffled": isinstance(batches.sampler, RandomSampler),
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }


def observe(case):
    found = {}
    for way in ("flags", "lines"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = False
        torch.manual_seed(12345)
        seen = Seen(case["batch"], case["accumulate"])
        counting = register_optimizer_step_post_hook(seen.updated)
        with (
            mock.patch.object(torch, "compile", seen.compile),
            mock.patch.object(torch.nn.utils, "clip_grad_norm_", seen.clip),
        ):
            if way == "flags":
                made = plain_train.main(case["flags"], seen.dataset, seen.model, seen.loss_of)
            else:
                # The machine of the tests has no GPU.
                text = case["lines"].replace('torch.device("cuda")', 'torch.device("cpu")')
                before, after = text.split(MARK)
                space = {}
                exec(compile(before, "lines", "exec"), space)
                space |= {"dataset": seen.dataset, "model": seen.model, "loss_of": seen.loss_of}
                exec(compile(after, "lines", "exec"), space)
                made = space.get("loader"), space["optimizer"], space.get("scaler")
        counting.remove()
        found[way] = seen.settings(*made)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump([observe(case) for case in json.load(sys.stdin)], sys.stdout)
