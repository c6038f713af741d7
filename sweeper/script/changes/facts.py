"""Names the facts about a training by which it is decided which changes are tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Facts(TypedDict, total=False):
    """What a training uses, as its process sees it after a few steps (`inside.facts`, `inside.observer`).

    A fact that torch cannot tell has no key. Stored results may be of another version, so whoever reads facts
    takes any mapping, and has a default for each key.

    Attributes:
        device: Type of the device that has its parameters, such as `cpu` or `cuda`.
        precision: In which its layers compute: `fp32`, `bf16`, `fp16` or `fp64`, or torch's name of another.
        tf32: Whether matrix products may use TF32.
        cudnn_tf32: Whether cuDNN may.
        cudnn_search: Whether cuDNN measures its algorithms.
        convolves: Whether it has parameters of four dimensions, as convolutions of images have.
        recurs: Whether it has made recurrent layers.
        compiled: Whether torch.compile has compiled anything.
        optimizer: Class of its optimizer.
        fused: Whether the optimizer updates all parameters in one call.
        threads: Number of threads of torch's operations.
        ranks: Number of processes of a distributed training; without a key, it is not distributed.
        num_workers: Number of its loader's workers; without a key, its batches come from no DataLoader.
        pin_memory: Whether its loader pins memory.
        prefetch_factor: Number of batches that each worker reads ahead; only with workers.
        persistent_workers: Whether they outlive a pass; only with workers.
        batch: Type of a batch that has only tensors: `list`, `tuple` or `dict`; empty for any other.
        batch_size: Number of samples in a batch.
        accumulate_steps: Number of batches in a step.
        idle_workers: Number of workers that have nothing to read of a stream; without a key, none.
        repeats_rows: Whether the workers of a stream have given a batch twice.
        padding_share: Share of the first batches that pads their rows; without a key, next to none.
        collector_share: Share of its time in which Python looks for garbage; without a key, next to none.
        places: The `file:line` of the script that makes its `loader`, that makes its `optimizer`, and that
            writes its first `checkpoint`.
    """

    device: str
    precision: str
    tf32: bool
    cudnn_tf32: bool
    cudnn_search: bool
    convolves: bool
    recurs: bool
    compiled: bool
    optimizer: str
    fused: bool
    threads: int
    ranks: int
    num_workers: int
    pin_memory: bool
    prefetch_factor: int
    persistent_workers: bool
    batch: str
    batch_size: int
    accumulate_steps: int
    idle_workers: int
    repeats_rows: bool
    padding_share: float
    collector_share: float
    places: dict[str, str]


def is_on_cpu(facts: Mapping[str, Any]) -> bool:
    """Returns whether a training computes on the CPU."""
    return bool(facts.get("device", "cpu") == "cpu")


def is_on_gpu(facts: Mapping[str, Any]) -> bool:
    """Returns whether a training computes on a GPU (`cuda`)."""
    return bool(facts.get("device", "cpu") == "cuda")


def is_in_float32(facts: Mapping[str, Any]) -> bool:
    """Returns whether a training computes in float32 alone, as far as that is known."""
    return bool(facts.get("precision", "fp32") == "fp32")


def may_convolve(facts: Mapping[str, Any]) -> bool:
    """Returns whether a training has convolutions of images, or may have them."""
    return bool(facts.get("convolves", True))


def has_loader(facts: Mapping[str, Any]) -> bool:
    """Returns whether the batches of a training come from a DataLoader."""
    return facts.get("num_workers") is not None


def num_threads(facts: Mapping[str, Any]) -> int:
    """Returns the number of threads of a training's operations; 1 if that is not known."""
    return facts.get("threads") or 1
