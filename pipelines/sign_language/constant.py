"""What the best prediction costs that is the same at every step of every clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .ctc import negative_log_likelihood

SHARES_OF_BLANK = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)


def constant_losses(
    train: Mapping[str, np.ndarray], val: Mapping[str, np.ndarray], num_glosses: int, choices: Sequence[int]
) -> dict[str, float]:
    """Returns by `step_frames` the CTC loss per gloss over `val` of glosses as often as in `train`.

    The share of the blank is the best of a few.
    """
    often = np.bincount(train["labels"][train["labels"] > 0], minlength=num_glosses + 1)[1:]
    log_often = torch.from_numpy(np.log((often + 1e-3) / (often + 1e-3).sum()))
    labels, counts, lengths = (torch.from_numpy(val[name]) for name in ("labels", "counts", "lengths"))
    # Instead of the whole vocabulary, each clip has only its own glosses, a repeated one at its first place.
    first = (labels[:, :, None] == labels[:, None, :]).int().argmax(2) + 1
    of_each = log_often[(labels - 1).clamp(min=0)]
    best: dict[str, float] = {}
    for step_frames in choices:
        steps = lengths // step_frames
        losses = []
        for blank in SHARES_OF_BLANK:
            scores = torch.cat(
                (torch.full_like(of_each[:, :1], np.log(blank)), of_each + np.log1p(-blank)), dim=1
            )
            scores = scores[:, None].expand(-1, int(steps.max()), -1)
            losses.append(float((negative_log_likelihood(scores, first, steps, counts) / counts).mean()))
        best[str(step_frames)] = min(losses)
    return best
