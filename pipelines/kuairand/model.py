"""One MLP a label over numbers and categories: clicks and play time of the rows of a log."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sweeper.trainer.pipeline import Batch

LABELS = ("click", "play_time")
Predictions = dict[str, Tensor]


class OneHotLinear(nn.Module):
    """A linear layer over numbers and one-hot categories, in whichever form the categories come.

    Written out, each category is a row of zeros with a single one, and the product with it reads one
    row of the weights: looked up by code, that row is all that is read, and the result is the same.
    Both forms have the same parameters, initialised as Xavier does for the whole matrix.
    """

    def __init__(self, num_numeric: int, num_codes: int, width: int) -> None:
        super().__init__()
        self.numeric = nn.Linear(num_numeric, width)
        self.table = nn.Parameter(torch.empty(num_codes, width))
        bound = math.sqrt(6 / (num_numeric + num_codes + width))
        nn.init.uniform_(self.numeric.weight, -bound, bound)
        nn.init.zeros_(self.numeric.bias)
        nn.init.uniform_(self.table, -bound, bound)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        """Returns [batch, width] of numbers x [batch, numeric] and `codes` [batch, categories].

        Without codes x is [batch, numeric + num_codes]: the categories follow, written out.
        """
        if codes is not None:
            looked_up = functional.embedding_bag(codes, self.table, mode="sum")
            result: Tensor = self.numeric(x) + looked_up
            return result
        x, one_hot = x.tensor_split((self.numeric.in_features,), dim=1)
        result = self.numeric(x) + one_hot @ self.table
        return result


class EmbeddedLinear(nn.Module):
    """A linear layer over numbers and an embedding of each category."""

    def __init__(self, num_numeric: int, num_codes: int, width: int, categories: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_codes, dim)
        self.linear = _linear(num_numeric + categories * dim, width)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        """Returns [batch, width] of numbers x [batch, numeric] and `codes` [batch, categories]."""
        result: Tensor = self.linear(torch.cat((x, self.embedding(codes).flatten(1)), dim=1))
        return result


def _linear(width: int, out: int) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Mlp(nn.Module):
    """`first`, then three layers of half the width each, then one number."""

    def __init__(self, first: nn.Module, width: int, dropout: float) -> None:
        super().__init__()
        widths = [width // 2**i for i in range(4)]
        self.first, self.dropout = first, dropout
        self.layers = nn.ModuleList(_linear(a, b) for a, b in itertools.pairwise(widths))
        self.head = _linear(widths[-1], 1)

    def forward(self, x: Tensor, codes: Tensor | None, *, drop: bool) -> Tensor:
        """Returns one number a row, shape [batch]; `drop` leaves out units at random."""
        x = self._activated(self.first(x, codes), drop)
        for layer in self.layers:
            x = self._activated(layer(x), drop)
        result: Tensor = self.head(x).squeeze(1)
        return result

    def _activated(self, x: Tensor, drop: bool) -> Tensor:
        return functional.dropout(functional.relu(x), self.dropout, drop)


class Recommender(nn.Module):
    """An MLP for each label: the logit of a click, and log(1 + seconds) of play.

    Args:
        sizes: Numeric features, codes of all categories together, and categories.
        hidden_size: Width of the first layer for clicks; for play time it is twice that.
    """

    def __init__(
        self,
        sizes: tuple[int, int, int],
        *,
        labels: str,
        encoding: str,
        hidden_size: int,
        embedding_dim: int,
        click_dropout: float,
        play_time_dropout: float,
    ) -> None:
        super().__init__()
        numeric, codes, categories = sizes

        def mlp(width: int, dropout: float) -> Mlp:
            if encoding == "onehot":
                return Mlp(OneHotLinear(numeric, codes, width), width, dropout)
            return Mlp(EmbeddedLinear(numeric, codes, width, categories, embedding_dim), width, dropout)

        made = {"click": (hidden_size, click_dropout), "play_time": (2 * hidden_size, play_time_dropout)}
        self.labels = nn.ModuleDict(
            {label: mlp(*made[label]) for label in LABELS if labels in ("both", label)}
        )

    def forward(self, x: Tensor, codes: Tensor | None = None, *, drop: bool | None = None) -> Predictions:
        """Returns each label's predictions [batch]; `drop` is as in training, if it is not said."""
        drop = self.training if drop is None else drop
        return {label: mlp(x, codes, drop=drop) for label, mlp in self.labels.items()}


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the sum of the labels' losses."""
    return label_losses(model(batch["x"], batch.get("codes")), batch)


def label_losses(predicted: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> Tensor:
    """Returns the sum of the losses of `click` and `play_time` [batch], those that were predicted.

    Clicks have cross entropy. Play time has the absolute error of log(1 + seconds), which the network
    predicts as it is. The guide's LogMAE is |log p - log t| of plain times, p cut off below: a play of
    0 s makes it infinite or some constant of one's choosing, no gradient passes where p is cut off, and
    in float16 the cut-off itself is 0.
    """
    total = torch.zeros((), device=actual["click"].device)
    if "click" in predicted:
        logit = predicted["click"].float()
        total = total + functional.binary_cross_entropy_with_logits(logit, actual["click"])
    if "play_time" in predicted:
        total = total + functional.l1_loss(predicted["play_time"].float(), actual["play_time"])
    return total


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Returns `click_accuracy`, `click_auc` and `play_mae_seconds`, of the labels that are predicted.

    The AUC is left out where all or none clicked.
    """
    told: dict[str, list[Tensor]] = {}
    for batch in batches:
        predicted = model(batch["x"], batch.get("codes"))
        for label, value in predicted.items():
            told.setdefault(label, []).append(value.float())
            told.setdefault(f"actual_{label}", []).append(batch[label])
    columns = {name: torch.cat(parts).double().cpu().numpy() for name, parts in told.items()}
    metrics = {}
    if "click" in columns:
        clicked, logit = columns["actual_click"] > 0.5, columns["click"]
        metrics["click_accuracy"] = float(((logit > 0) == clicked).mean())
        if 0 < clicked.sum() < len(clicked):
            metrics["click_auc"] = auc(logit, clicked)
    if "play_time" in columns:
        seconds = np.expm1(columns["play_time"].clip(min=0))
        metrics["play_mae_seconds"] = float(np.abs(seconds - np.expm1(columns["actual_play_time"])).mean())
    return metrics


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Returns the share of pairs in the right order, ties half: exact, by mean ranks (Mann-Whitney U)."""
    _, value, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = counts.cumsum() - (counts - 1) / 2
    positives = int(positive.sum())
    above = rank[value][positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(score) - positives)))
