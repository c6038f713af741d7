"""Checks the decoders of `pipelines.sign_language` against every path there is, and its edit distance."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipelines.sign_language.decode import beam_search, edit_distance, error_rates, greedy


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(label for label, _ in itertools.groupby(path) if label)


def by_all_paths(probs: np.ndarray) -> dict[tuple[int, ...], float]:
    total: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(probs.shape[1]), repeat=len(probs)):
        total[collapse(path)] += float(np.prod([probs[t, c] for t, c in enumerate(path)]))
    return total


def test_beam_search_finds_the_likeliest_labels_of_all() -> None:
    rng = np.random.default_rng(0)
    differs = repeats = 0
    for _ in range(60):
        probs = rng.dirichlet(np.full(int(rng.integers(2, 4)), 0.7), int(rng.integers(1, 7)))
        total = by_all_paths(probs)
        found = tuple(beam_search(probs, beam=200))
        assert total[found] == pytest.approx(max(total.values()))
        differs += found != tuple(greedy(probs))
        repeats += any(a == b for a, b in itertools.pairwise(found))
    assert differs > 5
    assert repeats > 0


def test_greedy_reads_the_likeliest_path() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        probs = rng.dirichlet(np.full(3, 0.7), 6)
        assert tuple(greedy(probs)) == collapse(tuple(probs.argmax(axis=1)))


def test_beam_search_adds_paths_up() -> None:
    # Blank is likeliest at either step, and yet 1 is: 0.4 * 0.4 + 2 * 0.4 * 0.6 = 0.64.
    probs = np.array([[0.6, 0.4], [0.6, 0.4]])
    assert beam_search(probs) == [1]
    assert greedy(probs) == []


def test_a_long_clip_does_not_underflow() -> None:
    probs = np.full((1000, 81), 0.0075)
    probs[::2, 0] = 0.4
    probs[np.arange(1, 1000, 2), np.arange(500) % 7 + 1] = 0.4
    assert beam_search(probs, beam=3) == [n % 7 + 1 for n in range(500)]


@pytest.mark.parametrize(
    ("read", "truth", "errors"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("sunday", "saturday", 3),
        ("abc", "abc", 0),
        ("bca", "abc", 2),
        ("aab", "ab", 1),
    ],
)
def test_edit_distance(read: str, truth: str, errors: int) -> None:
    assert edit_distance([*map(ord, read)], [*map(ord, truth)]) == errors


class Says(nn.Module):
    """Scores that were written down, in place of a model's."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores[None, x.long()], lengths


def test_error_rates_are_over_the_whole_set() -> None:
    certain = 20.0 * nn.functional.one_hot(
        torch.tensor([[1, 0, 2, 3, 3], [2, 2, 0, 2, 1], [1, 3, 1, 3, 1]]), 4
    )
    batches = [
        # 1 2 3 is right; of 2 2 1 only the first four steps are the clip's: 2 2.
        {
            "x": torch.tensor([0, 1]),
            "lengths": torch.tensor([5, 4]),
            "reference": torch.tensor([[1, 2, 3], [2, 2, 0]]),
        },
        # 1 3 where 1 and two unknown glosses were signed: two errors.
        {"x": torch.tensor([2]), "lengths": torch.tensor([2]), "reference": torch.tensor([[1, -1, -1]])},
    ]
    told = error_rates(Says(certain), batches)
    assert told == {"error_rate": 2 / 8, "error_rate_greedy": 2 / 8}
