"""A pipeline for benchmarks: convolutions, a BiLSTM and CTC on synthetic clips of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

CLIPS, CHANNELS, LABELS, STRIDE = 2_000, 32, 40, 4


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns clips end to end, of 24 to 300 frames (most of them short), and their labels."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(4.2, 0.5, CLIPS)), 24, 300).astype(np.int64)
    counts = np.maximum(1, lengths // 16)
    return Prepared(
        arrays={
            "frames": rng.standard_normal((int(lengths.sum()), CHANNELS)).astype(np.float32),
            "lengths": lengths,
            "labels": rng.integers(1, LABELS, (CLIPS, int(counts.max()))),
            "counts": counts,
        },
        synthetic=True,
    )


class Ctc(nn.Module):
    """Frames through two strided convolutions and a bidirectional LSTM to labels a step."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(CHANNELS, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(64, 64, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.recurrent = nn.LSTM(64, 64, bidirectional=True)
        self.head = nn.Linear(128, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        """Returns scores [steps, batch, labels] from frames [batch, frames, channels]."""
        steps = self.convolutions(x.transpose(1, 2)).permute(2, 0, 1)
        scores: Tensor = self.head(self.recurrent(steps)[0])
        return scores


def take_clips(tensors: Mapping[str, Tensor], index: Tensor, *, length: int) -> Batch:
    """Returns the clips `index`, padded to `length` frames."""
    lengths, start = tensors["lengths"].index_select(0, index), tensors["start"].index_select(0, index)
    at = torch.arange(length, device=index.device)
    inside = at < lengths[:, None]
    frame = torch.where(inside, start[:, None] + at, 0)
    frames = tensors["frames"].index_select(0, frame.view(-1)).view(len(index), length, -1)
    return {
        "x": frames * inside.unsqueeze(-1),
        "steps": (lengths + STRIDE - 1) // STRIDE,
        "labels": tensors["labels"].index_select(0, index),
        "counts": tensors["counts"].index_select(0, index),
    }


def ctc_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the mean CTC loss."""
    scores = model(batch["x"]).float().log_softmax(-1)
    if scores.is_cuda:
        # torch's own copies the lengths to the host, which a captured step cannot.
        from pipelines.sign_language.ctc import ctc_loss as capturable

        return capturable(scores.transpose(0, 1)[None], batch["labels"], batch["steps"], batch["counts"])
    return nn.functional.ctc_loss(
        scores, batch["labels"], batch["steps"], batch["counts"], zero_infinity=True
    )


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the model on clips whose lengths differ."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in prepared.arrays.items()}
    lengths = tensors["lengths"]
    tensors["start"] = lengths.cumsum(0) - lengths
    samples = Samples(tensors=tensors, length=CLIPS, gather=take_clips, lengths=lengths)
    return Pipeline(model=Ctc(), train=samples, val=samples, loss=ctc_loss)
