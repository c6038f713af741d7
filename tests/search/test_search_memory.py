"""The memory model: what fits is known from few trials, and ignorance shows as a wide interval."""

from __future__ import annotations

import itertools
import random

import pytest

from sweeper.core.config import TrialConfig
from sweeper.search.memory import MemoryModel, PeakRecord

LIMIT = 24.0
BATCHES = [64 * 2**i for i in range(9)]


def config_of(**changes) -> TrialConfig:
    return TrialConfig().replace({name.replace("__", "."): value for name, value in changes.items()})


def peak_of(config: TrialConfig) -> float:
    """A GPU's: context and weights, and activations by hidden size, precision and compilation."""
    flat = config.flatten()
    hidden = flat.get("model.hidden_size", 64)
    assert isinstance(hidden, int)
    sample = 0.0025 * hidden / 64
    sample *= 0.5 if flat["precision.amp"] == "bf16" else 1.0
    sample *= 0.8 if flat["compile.mode"] == "default" else 1.0
    data = 3.0 if flat["loader.kind"] == "resident" else 0.0
    return 0.6 + data + 0.2 * (hidden / 64) ** 2 + sample * config.batch_size


def seen_of(*configs: TrialConfig) -> list[PeakRecord]:
    peaks = ((config, peak_of(config)) for config in configs)
    return [PeakRecord(config=config, peak_gib=peak if peak <= LIMIT else None) for config, peak in peaks]


SPACE = [
    config_of(batch_size=b, model__hidden_size=h, precision__amp=a, compile__mode=c, loader__kind=k)
    for b, h, a, c, k in itertools.product(
        BATCHES, [64, 128, 256], ["fp32", "bf16"], ["eager", "default"], ["resident", "workers"]
    )
]


def test_thirty_trials_tell_factors_apart_and_what_fits():
    drawn = random.Random(0).sample(SPACE, 30)
    model = MemoryModel(seen_of(*drawn), LIMIT)
    near = [config for config in SPACE if config not in drawn and LIMIT / 4 < peak_of(config) < LIMIT * 4]
    assert len(near) > 20
    found = {config.key(): model.predict(config) for config in near}
    errors = sorted(abs(found[c.key()].gib / peak_of(c) - 1) for c in near)  # type: ignore[union-attr]
    assert errors[len(errors) // 2] < 0.05
    inside = [found[c.key()].low <= peak_of(c) <= found[c.key()].high for c in near]  # type: ignore[union-attr]
    assert sum(inside) >= 0.7 * len(inside)
    wrong = [c for c in near if model.fits(c) != (peak_of(c) <= LIMIT) and abs(peak_of(c) / LIMIT - 1) > 0.15]
    assert wrong == []


def test_too_few_peaks_predict_nothing_and_forbid_nothing():
    model = MemoryModel(seen_of(config_of(batch_size=64), config_of(batch_size=128)), LIMIT)
    assert model.predict(config_of(batch_size=4096)) is None
    assert model.fits(config_of(batch_size=1_000_000))
    assert MemoryModel([], LIMIT).fits(config_of())


def test_peaks_rise_with_the_batch_even_where_noise_says_otherwise():
    peaks = {64: 2.00, 128: 1.97, 256: 1.99}
    model = MemoryModel(
        [PeakRecord(config=config_of(batch_size=b), peak_gib=p) for b, p in peaks.items()], LIMIT
    )
    predictions = [model.predict(config_of(batch_size=b)) for b in BATCHES]
    middles = [found.gib for found in predictions if found is not None]
    assert middles == sorted(middles)
    assert len(middles) == len(BATCHES)
    first, last = predictions[0], predictions[-1]
    assert first is not None
    assert last is not None
    # Of the slope nothing is known yet.
    assert first.high / first.low < 1.6
    assert last.high / last.low > 3


def test_what_is_usual_is_expected_before_it_is_seen():
    sixteen_bit = config_of(batch_size=64, precision__amp="bf16")
    halved = MemoryModel(seen_of(*(config_of(batch_size=b) for b in BATCHES[:7]), sixteen_bit), LIMIT)
    full = halved.predict(config_of(batch_size=8192))
    half = halved.predict(config_of(batch_size=8192, precision__amp="bf16"))
    assert full is not None
    assert half is not None
    assert half.gib < 0.75 * full.gib
    near = [config_of(batch_size=b, model__hidden_size=h) for b, h in ((1024, 64), (2048, 65), (4096, 64))]
    wider = MemoryModel([PeakRecord(config=c, peak_gib=c.batch_size / 512) for c in near], LIMIT)
    small, large = (wider.predict(config_of(batch_size=2048, model__hidden_size=h)) for h in (64, 512))
    assert small is not None
    assert large is not None
    assert large.gib > 1.8 * small.gib


def test_a_trial_that_did_not_fit_raises_what_is_expected():
    small = [config_of(batch_size=b) for b in (64, 128, 256)]
    peaks = [PeakRecord(config=config, peak_gib=2.0) for config in small]
    beyond = PeakRecord(config=config_of(batch_size=4096), peak_gib=None)
    asked = config_of(batch_size=4096, optimizer__fused=False)
    before, after = (MemoryModel(seen, LIMIT).predict(asked) for seen in (peaks, [*peaks, beyond]))
    assert before is not None
    assert after is not None
    assert before.gib < LIMIT / 4
    assert after.gib > LIMIT * 0.9


def test_a_value_never_seen_widens_the_interval():
    model = MemoryModel(
        seen_of(*(config_of(batch_size=b, model__hidden_size=64) for b in BATCHES[:6])), LIMIT
    )
    known = model.predict(config_of(batch_size=1024, model__hidden_size=64))
    other = model.predict(config_of(batch_size=1024, model__hidden_size=128))
    assert known is not None
    assert other is not None
    assert known.high / known.low < 1.2
    assert other.high / other.low > 4
    mixed = MemoryModel(seen_of(*random.Random(1).sample(SPACE, 20)), LIMIT)
    number = mixed.predict(config_of(batch_size=8192, model__hidden_size=128))
    text = mixed.predict(config_of(batch_size=8192, model__hidden_size="wide"))
    assert number is not None
    assert text is not None
    assert 0.5 < text.gib / number.gib < 2
    assert text.high / text.low > 4


@pytest.mark.parametrize("name", ["seed", "accumulate_steps", "optimizer.lr_batch_size"])
def test_what_takes_no_memory_does_not_matter(name):
    seen = seen_of(*(config_of(batch_size=b) for b in BATCHES[:6]))
    model = MemoryModel(seen, LIMIT)
    assert model.predict(config_of(batch_size=1024).replace({name: 7})) == model.predict(
        config_of(batch_size=1024)
    )


def test_order_decides_where_something_larger_fitted_or_smaller_did_not():
    def entry(peak: float | None, **changes: object) -> PeakRecord:
        return PeakRecord(config=config_of(**changes), peak_gib=peak)

    # Against every expectation: enough of them to have a model say otherwise.
    base = [entry(0.5, batch_size=b, model__hidden_size=64) for b in (64, 128, 256, 512, 1024)]
    model = MemoryModel([*base, entry(None, batch_size=128, model__hidden_size=128)], LIMIT)
    assert not model.fits(config_of(batch_size=128, model__hidden_size=256))
    assert not model.fits(config_of(batch_size=256, model__hidden_size=128))
    # One that fitted and one that did not contradict each other: what has been seen to run may run.
    model = MemoryModel([*base, entry(None, batch_size=4096), entry(20.0, batch_size=8192)], LIMIT)
    assert model.fits(config_of(batch_size=8192))
    assert not model.fits(config_of(batch_size=8193))
    assert not model.fits(config_of(batch_size=8192), headroom=0.3)


def test_headroom_is_left_free():
    model = MemoryModel(seen_of(*(config_of(batch_size=b) for b in BATCHES[:7])), LIMIT)
    asked = config_of(batch_size=7000)
    assert 0.8 * LIMIT < peak_of(asked) < LIMIT
    assert model.fits(asked)
    assert not model.fits(asked, headroom=0.3)


def test_recomputed_activations_are_expected_to_need_less_before_any_trial():
    seen = [
        PeakRecord(config=TrialConfig(batch_size=size), peak_gib=1.0 + size / 1000)
        for size in (250, 1000, 4000, 8000)
    ]
    model = MemoryModel(seen, 12.0)
    stored, lean = (
        model.predict(TrialConfig(batch_size=8000, activation_checkpointing=each)) for each in (False, True)
    )
    assert stored is not None
    assert lean is not None
    # Only what is stored per sample shrinks.
    assert 0.5 * stored.gib < lean.gib < 0.8 * stored.gib
