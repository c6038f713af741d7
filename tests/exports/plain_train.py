"""A training script as people write them: options in, three steps of a small model."""

from __future__ import annotations

import argparse
import contextlib

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler


def parsed(arguments):
    parser = argparse.ArgumentParser()
    for name in ("--batch-size", "--accumulate-steps", "--num-workers", "--hidden-size", "--seed"):
        parser.add_argument(name, type=int, default=1)
    for name in ("--prefetch-factor", "--cpu-threads", "--warmup-steps"):
        parser.add_argument(name, type=int)
    for name in ("--lr", "--weight-decay", "--clip-norm"):
        parser.add_argument(name, type=float)
    for name in ("--pin-memory", "--persistent-workers", "--drop-last", "--tf32", "--fused"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--loader", choices=["rows", "workers", "resident", "stream"])
    parser.add_argument("--amp", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--compile", choices=["eager", "default", "reduce-overhead", "max-autotune"])
    parser.add_argument("--optimizer", choices=["adamw", "adam", "sgd"])
    parser.add_argument("--memory-format", choices=["contiguous", "channels_last"])
    return parser.parse_args(arguments)


def batches(asked, dataset):
    """Returns the DataLoader, where there is one, and an epoch of batches."""
    if asked.loader in ("resident", "stream"):
        order = torch.randperm(len(dataset)).split(asked.batch_size)
        whole = [index for index in order if len(index) == asked.batch_size or not asked.drop_last]
        return None, ([tensor[index] for tensor in dataset.tensors] for index in whole)
    common = {
        "num_workers": asked.num_workers,
        "pin_memory": asked.pin_memory,
        "prefetch_factor": asked.prefetch_factor,
        "persistent_workers": asked.persistent_workers,
    }
    if asked.loader == "rows":
        loader = DataLoader(
            dataset, batch_size=asked.batch_size, shuffle=True, drop_last=asked.drop_last, **common
        )
    else:
        sampler = BatchSampler(RandomSampler(dataset), asked.batch_size, asked.drop_last)
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, **common)
    return loader, iter(loader)


def main(arguments, dataset, model, loss_of):
    """Trains; returns the loader, the optimiser and the scaler."""
    asked = parsed(arguments)
    torch.manual_seed(asked.seed)
    if asked.cpu_threads:
        torch.set_num_threads(asked.cpu_threads)
    torch.set_float32_matmul_precision("high" if asked.tf32 else "highest")
    torch.backends.cudnn.benchmark = asked.cudnn_benchmark
    if asked.memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    step_model = model
    if asked.compile != "eager":
        mode = None if asked.compile == "default" else asked.compile
        step_model = torch.compile(model, mode=mode, dynamic=False)
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[asked.optimizer]
    more = {"momentum": 0.9} if asked.optimizer == "sgd" else {}
    optimizer = kind(
        model.parameters(), lr=asked.lr, weight_decay=asked.weight_decay, fused=asked.fused or None, **more
    )
    scaler = torch.amp.GradScaler("cpu", enabled=asked.amp == "fp16")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(asked.amp)
    loader, stream = batches(asked, dataset)
    warmup = asked.warmup_steps or 1
    peak = asked.lr
    for number, batch in enumerate(stream):
        if asked.memory_format == "channels_last":
            batch = [
                each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each
                for each in batch
            ]
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            loss = loss_of(step_model, batch)
        scaler.scale(loss / asked.accumulate_steps).backward()
        if (number + 1) % asked.accumulate_steps:
            continue
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (number // asked.accumulate_steps + 1) / warmup)
        if asked.clip_norm:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), asked.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return loader, optimizer, scaler
