"""Computes the gain of each rung of the ladder: each change alone, and in the stack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sweeper.analysis.confirmation import changes
from sweeper.core.config import TrialConfig
from sweeper.core.record import BASELINE, SearchResult
from sweeper.race.log import Round
from sweeper.race.tally import Tally
from sweeper.search.halves import Effect, Halves, halves_of
from sweeper.sweep.store.load import LoadedSweep
from sweeper.tuning.gains import ChangeGain, Interval

ONCE = (0.0, math.inf)
"""Interval of a ratio that no round repeated: the search measured both configurations only once."""


def gains_of(sweep: LoadedSweep) -> list[ChangeGain]:
    """Returns the gain of each change of a tune."""
    configs = {record.number: record.config for record in sweep.summary.records}
    searched = {e.number: e.measurement.throughput for e in sweep.summary.records if e.measurement}
    effects: Mapping[str, Effect] = {}
    if halves := search_of(sweep):
        alone = {group[0] for group in halves.together() if len(group) == 1}
        # The gain of changes that no trial tells apart is known only for all of them together.
        effects = {name: effect for name, effect in halves.known().effects.items() if name in alone}
    return ladder(sweep.rounds, configs, sweep.confirmation.winner, searched, effects)


def search_of(sweep: LoadedSweep) -> Halves | None:
    """Returns the search among the changes of a tune, with its trials; None for another search."""
    if not Halves.suits(sweep.spec):
        return None
    results = [
        SearchResult(params=params, values=(each.measurement.throughput,), constraints={})
        for each in sweep.summary.records
        if each.measurement and (params := sweep.spec.params_of(each.config)) is not None
    ]
    return halves_of(sweep.spec, results)


def largest_gain(sweep: LoadedSweep, halves: Halves) -> float:
    """Returns the gain that the measurements of a tune still allow, as a ratio to the baseline.

    Rounds say more than the search.
    """
    highs = {ratio.trial: ratio.high for ratio in sweep.confirmation.ratios if ratio.has_interval}
    records = [record for record in sweep.summary.records if record.number in highs]
    confirmed = [params for record in records if (params := sweep.spec.params_of(record.config)) is not None]
    return max([math.exp(halves.largest_gain(confirmed)), *highs.values()])


def ladder(
    rounds: Sequence[Round],
    configs: Mapping[int, TrialConfig],
    winner: int | None,
    searched: Mapping[int, float] | None = None,
    effects: Mapping[str, Effect] | None = None,
) -> list[ChangeGain]:
    """Returns a rung for each change: those of the configuration with the most changes, then the others.

    Args:
        rounds: The rounds of the race.
        searched: Samples per second by trial number from the search, which measured each trial once.
        effects: Effects of the changes, estimated from all trials of the search.
    """
    usual = configs[BASELINE].flatten()
    confirmed = {number for one in rounds for number in one.speeds}
    if len(confirmed) < 2:
        return []
    tried = {number: changes(config, usual) for number, config in configs.items()}
    best = max(confirmed, key=lambda number: len(tried[number]))
    kept = tried[winner] if winner is not None else {}
    measured = rounds, searched or {}
    known = effects or {}
    rest = {name: value for each in tried.values() for name, value in each.items() if name in known}
    return list(_rungs(measured, tried, {**tried[best], **rest, **tried[best]}, best, kept, known))


def _rungs(
    measured: tuple[Sequence[Round], Mapping[int, float]],
    tried: Mapping[int, Mapping[str, object]],
    named: Mapping[str, object],
    best: int,
    kept: Mapping[str, object],
    effects: Mapping[str, Effect],
) -> Iterator[ChangeGain]:
    for name, value in named.items():
        without = {key: each for key, each in tried[best].items() if key != name}
        of = next((n for n, each in tried.items() if each == {name: value}), None)
        rest = next((n for n, each in tried.items() if each == without and n != best), None)
        stacked = _ratio(measured, best, rest) if rest is not None else None
        if (stacked is None or stacked[1:] == ONCE) and name in effects:
            found = effects[name]
            stacked = math.exp(found.mean), math.exp(found.low), math.exp(found.high)
        yield ChangeGain(
            name=name,
            value=str(value),
            alone=_ratio(measured, of, BASELINE) if of is not None else None,
            stacked=stacked,
            is_kept=name in kept,
        )


def _ratio(measured: tuple[Sequence[Round], Mapping[int, float]], number: int, to: int) -> Interval | None:
    rounds, searched = measured
    tally = Tally.of(rounds, number, to)
    if tally.logs:
        low, high = tally.interval()
        return math.exp(tally.mean), math.exp(low), math.exp(high)
    if number in searched and to in searched:
        return searched[number] / searched[to], *ONCE
    return None
