"""What a change of the best brings, as the search's trials show it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.core.config import TrialConfig
from sweeper.sweep.phases.ladder import gain

USUAL = {"a": "original", "b": "original", "c": "original"}
ALL = {"a": "on", "b": "on", "c": "on"}


@dataclass
class Record:
    config: TrialConfig
    measurement: Any


def trial(speed: float, **changed: str) -> Record:
    return Record(TrialConfig(args={**USUAL, **changed}), SimpleNamespace(throughput=speed))


def of(name: str, records: list[Record]) -> float | None:
    usual = TrialConfig(args=USUAL).flatten()
    return gain(name, ALL, usual, records)


def test_one_noisy_pair_does_not_decide() -> None:
    # Alone it seems to cost 10%, and with the others it gains 20 and 25%.
    records = [
        trial(10, a="on"),
        trial(9, a="on", b="on"),
        trial(10, a="on", c="on"),
        trial(12, a="on", b="on", c="on"),
        trial(8, b="on", c="on"),
        trial(6.4, c="on"),
    ]
    assert of("b", records) > 0.05


def test_what_brings_nothing_has_no_gain() -> None:
    records = [trial(10, a="on"), trial(10, a="on", b="on"), trial(20), trial(20, b="on")]
    assert of("b", records) == pytest.approx(0)


def test_trials_with_other_changes_do_not_count() -> None:
    records = [trial(10), trial(5, b="on"), trial(10, d="on"), trial(50, d="on", b="on")]
    assert of("b", records) < 0


def test_without_pairs_there_is_no_gain() -> None:
    assert of("b", [trial(10, a="on")]) is None
