"""Makes up recordings of people who chew, drink, swallow and talk: PPG and IMU in an ear, at 100 Hz."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.signal import butter, sosfilt

CLASSES = ("chew", "drink", "swallow", "talk")
PEOPLE = 6
RATE = 100
NOISE = 0.6
"""Of the sensors, in units of a strong movement: with it, windows of weak movements look alike."""


@dataclass(frozen=True, slots=True)
class Person:
    """A pulse [Hz], how the sensor sits [3, 3], and how fast and strong each movement is [classes]."""

    pulse: float
    turned: np.ndarray
    tempo: np.ndarray
    strength: np.ndarray


def make_recordings(
    count: int, seconds: int, seed: int
) -> Iterator[tuple[str, np.ndarray, list[tuple[str, int, int]]]]:
    """Yields recordings as `(name, x [time, 6], [(class, first, end), ...])`, person after person.

    A recording is a row of bouts of 10 to 40 s. They differ in rhythm, amplitude and spectrum.
    """
    rng = np.random.default_rng(seed)
    people = [
        Person(
            rng.uniform(0.9, 1.5),
            np.linalg.qr(np.eye(3) + 0.4 * rng.standard_normal((3, 3)))[0],
            rng.uniform(0.8, 1.25, len(CLASSES)),
            rng.uniform(0.7, 1.3, len(CLASSES)),
        )
        for _ in range(PEOPLE)
    ]
    for number in range(count):
        time, bouts, at = seconds * RATE, [], 0
        movement = np.zeros((time, 3))
        while at < time:
            kind, end = int(rng.integers(len(CLASSES))), min(time, at + int(rng.uniform(10, 40) * RATE))
            movement[at:end] = _move(rng, CLASSES[kind], end - at, people[number % PEOPLE], kind)
            bouts.append((CLASSES[kind], at, end))
            at = end
        yield f"recording {number}", _sense(rng, movement, people[number % PEOPLE]), bouts


def _move(rng: np.random.Generator, name: str, time: int, person: Person, kind: int) -> np.ndarray:
    """Returns a bout's movement [time, 3]: up and down, forward, and trembling."""
    seconds, tempo = np.arange(time) / RATE, person.tempo[kind] * rng.uniform(0.9, 1.1)
    wander = 0.005 * np.cumsum(rng.standard_normal(time))
    phase = 2 * np.pi * (tempo * seconds + wander) + rng.uniform(0, 6)
    out = np.zeros((time, 3))
    if name == "chew":  # 1.4 bites a second, each with a hard end
        out[:, 0] = np.sin(1.4 * phase) + 0.4 * np.sin(2.8 * phase)
        out[:, 2] = 0.4 * np.maximum(np.sin(1.4 * phase), 0) ** 8 * rng.standard_normal(time)
    elif name == "drink":  # a slow tilt, with a swallow at the top of each
        out[:, 1] = 1.2 * np.sin(0.5 * phase)
        out[:, 0] = 0.9 * np.maximum(np.sin(0.5 * phase), 0) ** 12 * np.sin(2 * np.pi * 5 * seconds)
    elif name == "swallow":  # one now and then
        out[:, 0] = 1.6 * np.maximum(np.sin(0.35 * phase), 0) ** 16 * np.sin(2 * np.pi * 4 * seconds)
        out[:, 1] = 0.4 * np.maximum(np.sin(0.35 * phase), 0) ** 4
    else:  # syllables: trembling of 4 to 9 Hz that comes and goes
        band = butter(2, (4, 9), "bandpass", fs=RATE, output="sos")
        trembling = sosfilt(band, rng.standard_normal((time, 3)), axis=0) * 2.5
        out[:] = trembling * (0.6 + 0.4 * np.sin(1.1 * phase))[:, None] * (0.5, 0.3, 0.6)
    out *= person.strength[kind] * np.exp(0.3 * rng.standard_normal())
    return out


def _sense(rng: np.random.Generator, movement: np.ndarray, person: Person) -> np.ndarray:
    """Returns the sensors' view [time, 6] of a movement [time, 3]."""
    time = len(movement)
    low = butter(1, 0.3, fs=RATE, output="sos")
    drift = 3 * sosfilt(low, rng.standard_normal((time, 6)), axis=0)
    beat = 2 * np.pi * person.pulse * np.arange(time) / RATE + rng.uniform(0, 6)
    pulse = np.sin(beat) + 0.4 * np.sin(2 * beat + 1)
    ppg = pulse[:, None] * (1.0, 0.8, 0.6) + 0.5 * (movement @ person.turned)
    seen = np.concatenate((ppg, movement @ person.turned.T), axis=1)
    seen += drift + NOISE * rng.standard_normal((time, 6))
    return seen.astype(np.float32)
