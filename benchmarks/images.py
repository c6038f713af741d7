"""A small CNN on synthetic images which are cropped, flipped and brightened, each by its own number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

SIDE, PADDED, CLASSES = 16, 20, 10
NUM_VAL = 512


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns `images` [count, 3, 20, 20] (uint8) and `labels` [count], a pattern each under noise."""
    count = int(data.get("images", 4096)) + NUM_VAL
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    patterns = rng.integers(0, 256, (CLASSES, 3, PADDED, PADDED))
    noise = rng.integers(0, 256, (count, 3, PADDED, PADDED))
    images = ((patterns[labels] + noise) // 2).astype(np.uint8)
    return Prepared(arrays={"images": images, "labels": labels}, synthetic=True)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns two convolutions and a linear layer, with cross entropy."""
    images, labels = (np.asarray(prepared.arrays[name]) for name in ("images", "labels"))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    return Pipeline(
        model=model,
        train=_samples(images[:-NUM_VAL], labels[:-NUM_VAL]),
        val=_samples(images[-NUM_VAL:], labels[-NUM_VAL:]),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
    )


def _samples(images: np.ndarray, labels: np.ndarray) -> Samples:
    def row(i: int) -> Mapping[str, Any]:
        top, left, gain = i % 5, i // 5 % 5, 0.8 + i % 41 / 100
        image = images[i, :, top : top + SIDE, left : left + SIDE].astype(np.float32)
        image = image[:, :, ::-1] if i % 2 else image
        image = np.clip(image * gain, 0, 255)
        mean, sd = image.mean(axis=(1, 2), keepdims=True), image.std(axis=(1, 2), keepdims=True)
        return {"x": np.ascontiguousarray((image - mean) / (sd + 1e-3)), "y": labels[i]}

    return Samples(
        tensors={"images": torch.from_numpy(images), "labels": torch.from_numpy(labels)},
        length=len(labels),
        gather=_augmented,
        row=row,
    )


def _augmented(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
    """What `row` does, for a batch at once."""
    images, at = tensors["images"], torch.arange(SIDE, device=index.device)
    rows = (index % 5).unsqueeze(1) + at
    columns = (index // 5 % 5).unsqueeze(1) + torch.where((index % 2 == 1).unsqueeze(1), SIDE - 1 - at, at)
    flat = (rows.unsqueeze(2) * PADDED + columns.unsqueeze(1)).flatten(1)
    picked = images.index_select(0, index).flatten(2).gather(2, flat.unsqueeze(1).expand(-1, 3, -1)).float()
    picked = (picked * (0.8 + index % 41 / 100).view(-1, 1, 1)).clamp(0, 255)
    sd, mean = torch.std_mean(picked, dim=2, keepdim=True, correction=0)
    x = ((picked - mean) / (sd + 1e-3)).unflatten(2, (SIDE, SIDE))
    return {"x": x, "y": tensors["labels"].index_select(0, index)}
