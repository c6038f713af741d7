"""From scores to glosses: CTC's greedy and beam search, and how far what they read is from the truth."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import nn

from sweeper.trainer.pipeline import Batch

BEAM = 10
"""Prefixes that are kept at each step, as in TFNet's own evaluation."""
CLASSES = 20
"""Likeliest classes that are looked at in each step."""


def greedy(probs: np.ndarray) -> list[int]:
    """Returns the labels of the likeliest path through `probs` [steps, classes]."""
    path = probs.argmax(axis=1)
    ends = np.append(path[1:] != path[:-1], True)
    return [int(label) for label in path[ends] if label]


def beam_search(probs: np.ndarray, beam: int = BEAM) -> list[int]:
    """Returns the likeliest labels, found by prefix beam search (Hannun et al. 2014).

    Args:
        probs: Probabilities [steps, classes], blank first.
        beam: Prefixes that are kept.
    """
    # By prefix: the probability of its paths that end in blank, and of those that end in its last label.
    found: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    few = min(CLASSES, probs.shape[1])
    likely = np.argpartition(-probs, few - 1, axis=1)[:, :few]
    for each, classes in zip(probs.astype(np.float64).tolist(), likely.tolist(), strict=True):
        longer: dict[tuple[int, ...], tuple[float, float]] = {}
        for prefix, (blank, label) in found.items():
            total, last = blank + label, prefix[-1] if prefix else 0
            was = longer.get(prefix, (0.0, 0.0))
            longer[prefix] = was[0] + total * each[0], was[1] + label * each[last]
            for new in classes:
                if new:
                    grown = (*prefix, new)
                    was = longer.get(grown, (0.0, 0.0))
                    longer[grown] = was[0], was[1] + (blank if new == last else total) * each[new]
        best = heapq.nlargest(beam, longer.items(), key=lambda item: sum(item[1]))
        # Kept near 1: the product over a long clip would be below the smallest number.
        scale = 1 / max(sum(best[0][1]), 1e-300)
        found = {prefix: (blank * scale, label * scale) for prefix, (blank, label) in best}
    return list(max(found.items(), key=lambda item: sum(item[1]))[0])


def edit_distance(read: Sequence[int], truth: Sequence[int]) -> int:
    """Returns the fewest insertions, deletions and substitutions between the two (Levenshtein)."""
    row = list(range(len(truth) + 1))
    for i, a in enumerate(read, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(truth, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def error_rates(model: nn.Module, batches: Iterable[Batch]) -> Mapping[str, float]:
    """Returns the errors per gloss of the truth, over all clips, of both ways to decode.

    A gloss that training does not know is in the truth, too, and always an error.
    """
    errors = {"error_rate": 0, "error_rate_greedy": 0}
    glosses = 0
    for batch in batches:
        scores, steps = model(batch["x"], batch["lengths"])
        probs = scores[-1].float().softmax(-1).cpu().numpy()
        truths = batch["reference"].tolist()
        for clip, num_steps, padded in zip(probs, steps.tolist(), truths, strict=True):
            truth = [gloss for gloss in padded if gloss]
            glosses += len(truth)
            errors["error_rate"] += edit_distance(beam_search(clip[:num_steps]), truth)
            errors["error_rate_greedy"] += edit_distance(greedy(clip[:num_steps]), truth)
    return {name: count / max(glosses, 1) for name, count in errors.items()}
