"""Made-up clips: a signer's hand moves through the trajectories of its glosses, as landmarks or drawn."""

from __future__ import annotations

from functools import partial

import numpy as np

from .clips import Clip

POINTS = 21
"""As MediaPipe marks a hand; each an x and a y, from about -1 to 1."""
KNOTS = 4
"""Hand shapes that a gloss moves through."""
MOVEMENT = 0.3
"""How far a gloss's shapes are from each other, in units of the space for a hand."""
SPEED, STYLE, NOISE = 0.25, 0.08, 0.05
"""Spread of a gloss's speed (log), of a signer's own shape in it, and of a point in a frame."""


def make_clips(count: int, glosses: int, kind: str, crop: int, seed: int) -> tuple[list[Clip], list[str]]:
    """Returns clips of 24 to 300 frames and 2 to 8 glosses each, and the glosses' names.

    A few glosses are most of what is signed (Zipf: the n-th as often as 1 / n), and most clips are short
    (log-normal, median 67 frames).

    Args:
        kind: `landmarks` [frames, 42] float32, or `frames` [frames, 3, crop, crop] uint8.
    """
    rng = np.random.default_rng(seed)
    hands = rng.uniform(-0.6, 0.6, (glosses, 1, 2 * POINTS))
    shapes = hands + MOVEMENT * rng.uniform(-1, 1, (glosses, KNOTS, 2 * POINTS))
    often = 1 / np.arange(1, glosses + 1)
    lengths = np.clip(np.exp(rng.normal(4.2, 0.5, count)), 24, 300).astype(int)
    clips = []
    for number, length in enumerate(lengths.tolist()):
        most = min(8, max(2, length // 12))
        signed = rng.choice(glosses, int(rng.integers(2, most + 1)), p=often / often.sum())
        points = _moved(shapes[signed], length, rng).astype(np.float32)
        drawn = partial(_draw, points, crop, seed + number) if kind == "frames" else points.__getitem__
        clips.append(
            Clip(name=f"clip-{number:05d}", glosses=(signed + 1).tolist(), length=length, read=drawn)
        )
    return clips, [f"gloss-{number:03d}" for number in range(glosses)]


def _moved(shapes: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Returns points [length, numbers] that pass the knots of `shapes` [glosses, KNOTS, numbers] in turn."""
    signed = len(shapes)
    knots = (shapes + STYLE * rng.standard_normal(shapes.shape)).reshape(signed * KNOTS, -1)
    speed = np.repeat(np.exp(SPEED * rng.standard_normal(signed)), KNOTS)[:-1]
    time = np.concatenate(([0.0], np.cumsum(1 / speed)))
    place = np.interp(np.linspace(0, time[-1], length), time, np.arange(len(knots)))
    before = np.minimum(place.astype(int), len(knots) - 2)
    # From knot to knot along a cosine: a hand starts and stops smoothly.
    part = (0.5 - 0.5 * np.cos(np.pi * (place - before)))[:, None]
    points: np.ndarray = knots[before] * (1 - part) + knots[before + 1] * part
    points += NOISE * rng.standard_normal(points.shape)
    return points


def _draw(points: np.ndarray, crop: int, seed: int, kept: np.ndarray) -> np.ndarray:
    """Returns images [kept, 3, crop, crop] (uint8) of the points, each finger's in its own colour."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 60, (len(kept), 3, crop, crop), dtype=np.uint8)
    dot = max(1, crop // 32)
    places = ((points[kept].reshape(len(kept), POINTS, 2) * 0.45 + 0.5) * crop).astype(int)
    places = places.clip(0, crop - dot)
    frame, point = np.indices((len(kept), POINTS))
    # 37 and 101 spread the points over the colours, so that the wrist and the fingertips differ.
    colour = np.stack(
        [80 + 37 * np.arange(POINTS) % 176, 80 + 101 * np.arange(POINTS) % 176, np.full(POINTS, 220)]
    )
    for down in range(dot):
        for right in range(dot):
            rows, columns = places[..., 1] + down, places[..., 0] + right
            images[frame, :, rows, columns] = colour.T[point]
    return images
