"""The guide's second phase: two arms pick a video for each user, and each learns from what it picked.

a user's candidates ──► scores of an arm ──► the highest ──► its click and play: reward, and loss
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from sweeper.trainer.pipeline import Batch

from .model import Recommender, label_losses

Picked = dict[str, dict[str, Tensor]]


class Arms(nn.Module):
    """Each arm's own recommender, and the weights by which it scores a video.

    Args:
        make: Returns a recommender of both labels.
        alphas: For each arm the weights of the click's probability and of log(1 + seconds) of play.
    """

    def __init__(self, make: Callable[[], Recommender], alphas: Mapping[str, tuple[float, float]]) -> None:
        super().__init__()
        self.alphas = dict(alphas)
        self.arms = nn.ModuleDict({arm: make() for arm in alphas})

    def forward(self, x: Tensor, codes: Tensor | None = None) -> Picked:
        """Picks one candidate for each user, and predicts it.

        Args:
            x: [users, candidates, features].
            codes: [users, candidates, categories], or None where x holds them written out.

        Returns:
            For each arm `click` and `play_time` [users] as predicted, and `row` [users]: which of
            users * candidates was picked.
        """
        users, candidates = x.shape[:2]
        flat, flat_codes = x.flatten(0, 1), None if codes is None else codes.flatten(0, 1)
        first = torch.arange(0, users * candidates, candidates, device=x.device)
        picked: Picked = {}
        for name, arm in self.arms.items():
            by_click, by_play = self.alphas[name]
            with torch.no_grad():
                seen = arm(flat, flat_codes, drop=False)
                score = by_click * seen["click"].float().sigmoid() + by_play * seen["play_time"].float()
                row = first + score.view(users, candidates).argmax(dim=1)
            if not torch.compiler.is_compiling():
                # In torch 2.9, weights that autocast has cast above would pass on no gradients below.
                torch.clear_autocast_cache()
            own = None if flat_codes is None else flat_codes.index_select(0, row)
            picked[name] = {**arm(flat.index_select(0, row), own), "row": row}
        return picked


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the sum over arms of the training loss on the rows that the arm picked."""
    total = torch.zeros((), device=batch["x"].device)
    for picked in model(batch["x"], batch.get("codes")).values():
        total = total + label_losses(picked, _reward(batch, picked["row"]))
    return total


def _reward(batch: Batch, row: Tensor) -> dict[str, Tensor]:
    return {name: batch[name].flatten().index_select(0, row) for name in ("click", "play_time")}


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Returns each arm's reward and their difference, per pick.

    The reward is the logged outcome of the rows an arm picks: clicks, and seconds of play. The global
    treatment effect is the sum over the users treated less that over the controls, here divided by
    how many there were: `gte_clicks`, `gte_seconds`.
    """
    sums: dict[str, Tensor] = {}
    users = 0
    for batch in batches:
        users += len(batch["x"])
        for arm, picked in model(batch["x"], batch.get("codes")).items():
            reward = _reward(batch, picked["row"])
            for name, value in (("clicks", reward["click"]), ("seconds", reward["play_time"].expm1())):
                sums[f"{arm}_{name}"] = sums.get(f"{arm}_{name}", 0) + value.double().sum()
    told = {name: float(value) / users for name, value in sums.items()}
    for name in ("clicks", "seconds"):
        told[f"gte_{name}"] = told[f"treatment_{name}"] - told[f"control_{name}"]
    return told
