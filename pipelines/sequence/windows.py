"""Windows of rows which lie once in memory: a sample is the row that its window ends on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper import Prepared, Samples, UserError
from sweeper.trainer.pipeline import Batch, take_windows


def window_ends(age: np.ndarray, meta: Mapping[str, Any], part: str, seq_length: int) -> np.ndarray:
    """Returns the last rows [windows] of the windows whose every forecast row lies in `part`.

    The past that a window reads may reach into the part before: it is known by then. So the rows to
    be forecast are the same whatever the window's length, and losses can be compared.

    Raises:
        UserError: There is none.
    """
    start, stop = meta["parts"][part]
    needed = seq_length + meta["data"]["horizon"]
    last = np.arange(start + meta["data"]["horizon"] - 1, stop)
    ends: np.ndarray = last[age[last] >= needed - 1] - meta["data"]["horizon"]
    if not len(ends):
        raise UserError(
            f"`data.seq_length` + `data.horizon` must fit into the {part} part's longest run of "
            f"{int(age[start:stop].max()) + 1} rows without a gap, but need {needed}."
        )
    return ends


def windows(prepared: Prepared, part: str, seq_length: int) -> Samples:
    """Returns the windows of `part`: rows once in memory, a sample is the row a window ends on."""
    own = {name: np.asarray(array) for name, array in prepared.arrays.items() if name != "age"}
    own["end"] = window_ends(np.asarray(prepared.arrays["age"]), prepared.meta, part, seq_length)
    sizes = {"seq_length": seq_length, "horizon": prepared.meta["data"]["horizon"]}
    return Samples(
        tensors={name: torch.from_numpy(array) for name, array in own.items()},
        length=len(own["end"]),
        gather=partial(gather, **sizes),
        row=partial(row, own, **sizes),
    )


def gather(tensors: Mapping[str, Tensor], index: Tensor, *, seq_length: int, horizon: int) -> Batch:
    """Returns the samples `index` [batch]: x [batch, seq_length, columns], y [batch, horizon, targets]."""
    end = tensors["end"].index_select(0, index)
    ahead = tensors["target" if "target" in tensors else "series"]
    return {
        "x": take_windows(tensors["series"], end - (seq_length - 1), seq_length),
        "y": take_windows(ahead, end + 1, horizon),
    }


def row(arrays: Mapping[str, np.ndarray], i: int, *, seq_length: int, horizon: int) -> dict[str, Tensor]:
    """Returns sample `i` as a `__getitem__` written by hand does: two small tensors of its own."""
    end = int(arrays["end"][i])
    ahead = arrays["target" if "target" in arrays else "series"]
    return {
        "x": torch.FloatTensor(arrays["series"][end - seq_length + 1 : end + 1]),
        "y": torch.FloatTensor(ahead[end + 1 : end + 1 + horizon]),
    }


def constant_loss(samples: Samples, horizon: int) -> float:
    """Returns the mean square of what is forecast, over all samples."""
    ahead = samples.tensors["target" if "target" in samples.tensors else "series"]
    total = nn.functional.pad(ahead.double().square().mean(dim=1).cumsum(dim=0), (1, 0))
    end = samples.tensors["end"]
    return float((total[end + 1 + horizon] - total[end + 1]).mean() / horizon)
