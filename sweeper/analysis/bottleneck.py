"""Names the bottleneck of a trial and the next thing to change, by one table of rules.

Each rule says what share of a step its cause costs; the largest from a fifth on is the verdict. Where
nothing is lost that could be won back, the device is at work, and what limits it is named. A rule whose
signal is missing does not decide, and where that leaves nothing the verdict is `inconclusive`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sweeper.analysis.remedies import percent, rate, remedy_for
from sweeper.analysis.signals import Signals, signals_of
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import Bottleneck, Measurement
from sweeper.core.record import TrialRecord

LEAST = 0.2
"""Of a step: the least that a cause has to cost. loadtune calls a fifth of waiting input-bound, too."""

BUSY = 0.5
"""Of a step: the least arithmetic that makes the device the limit."""

FULL = 0.9
FILLED = 0.5
BANDWIDTH = 0.6
"""NVIDIA's guidance for the profiling counters: memory active above 60 % is near what DRAM gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a trial is not faster.

    Attributes:
        share: Share of a step that the cause takes; None where it is inconclusive.
        why: The numbers, in one line.
        phase: The phase of the breakdown in which the cause shows, for marking it.
        next: What to change next, in one line.
        changes: The same by dotted names, where it is a change of the configuration.
    """

    kind: Bottleneck
    share: float | None
    why: str
    phase: str = ""
    next: str = ""
    changes: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    Attributes:
        cost: Share of a step; None where its signal is missing or the rule does not apply.
        why: The numbers behind it.
        phase: Where it shows.
        needs: The signals it rests on, for a person.
    """

    kind: Bottleneck
    cost: Callable[[Signals], float | None]
    why: Callable[[Signals], str]
    phase: str
    needs: str


def _input_why(s: Signals) -> str:
    if s.input > s.wait + 0.05:
        taken = percent(s.input - s.wait)
        text = (
            f"data path {percent(s.input)} of the step: {percent(s.wait)} waiting, {taken} in cores it takes"
        )
    else:
        text = f"data wait {percent(s.wait)} of the step"
    if s.loader_rate and s.device_rate:
        loader, device = rate(s.loader_rate), rate(s.device_rate)
        text += f"; the loader alone gives {loader} samples/s, the device alone takes {device}"
    return text


def _sync(s: Signals) -> float | None:
    if not s.on_gpu:
        return s.blocked
    if s.sync_places is None or s.idle is None:
        return None
    return max(0.0, s.idle - s.input - s.transfer) if s.sync_places else 0.0


def _sync_why(s: Signals) -> str:
    if s.sync_places:
        return f"the step waits for the device at {', '.join(s.sync_places)}"
    return f"{percent(s.blocked or 0)} of the step is neither arithmetic nor data: it waits"


def _launch(s: Signals) -> float | None:
    if not s.on_gpu:
        # A wait does not depend on the batch either.
        return None if s.fixed is None else max(0.0, s.fixed * s.compute - (s.blocked or 0.0))
    if s.idle is None or s.host_paced is None:
        return None
    # What the data path or a wait leaves idle is not the launches' doing.
    return max(0.0, s.idle - s.input - s.transfer) if s.host_paced and not s.sync_places else 0.0


def _launch_why(s: Signals) -> str:
    if s.on_gpu:
        return f"the GPU waits {percent(s.idle or 0)} of the step for the host to launch its kernels"
    return f"{percent(s.fixed or 0)} of the arithmetic does not depend on the batch: calls, not numbers"


def _capacity(s: Signals) -> float | None:
    """A full device matters where a larger batch would use it better."""
    if s.memory is None:
        return None if s.on_gpu else 0.0
    held_back = max(_launch(s) or 0.0, _unfilled(s) or 0.0)
    return held_back if s.memory >= FULL and held_back >= LEAST else 0.0


def _unfilled(s: Signals) -> float | None:
    """Kernels run one after the other, and each is too small for the device."""
    if not s.on_gpu:
        return 0.0
    if s.idle is None:
        return None
    if s.sm_active is None:
        # Without counters: what half of a batch takes as well is not work of the batch.
        return None if s.fixed is None else max(0.0, s.fixed * s.compute - s.idle)
    return max(0.0, s.compute * (1 - s.sm_active) - s.idle) if s.sm_active < FILLED else 0.0


def _unfilled_why(s: Signals) -> str:
    if s.sm_active is None:
        half = percent((1 + (s.fixed or 0)) / 2)
        return f"kernels too small for the device: half a batch takes {half} of the time"
    return f"kernels too small for the device: {percent(s.sm_active)} of its SMs are active"


def _compute(s: Signals) -> float | None:
    """On a GPU the phases are of its timeline, with the gaps in it."""
    if s.on_gpu and (s.idle is None or s.idle - s.input - s.transfer >= LEAST):
        return None
    return s.compute if s.compute >= BUSY else None


WASTES: tuple[Rule, ...] = (
    Rule(Bottleneck.INPUT, lambda s: s.input, _input_why, "data", "the breakdown"),
    Rule(
        Bottleneck.TRANSFER,
        lambda s: s.transfer,
        lambda s: f"copies to the device take {percent(s.transfer)} of the step",
        "h2d",
        "the breakdown",
    ),
    Rule(
        Bottleneck.SYNC,
        _sync,
        _sync_why,
        "",
        "processor time by phase, or the places that wait for the device",
    ),
    Rule(
        Bottleneck.CAPACITY,
        _capacity,
        lambda s: f"{percent(s.memory or 0)} of the device's memory is taken, and it is not busy",
        "",
        "the peak of memory",
    ),
    Rule(
        Bottleneck.LAUNCH, _launch, _launch_why, "compute", "the device's and the host's own time of a step"
    ),
    Rule(
        Bottleneck.LAUNCH,
        _unfilled,
        _unfilled_why,
        "compute",
        "performance counters (GPM), or half a batch",
    ),
    Rule(
        Bottleneck.BANDWIDTH,
        lambda s: 0.0 if s.on_gpu else s.faults,
        lambda s: f"the kernel maps and clears memory for {percent(s.faults or 0)} of the step",
        "compute",
        "page faults",
    ),
)
"""What could be won back. Of two that cost the same, the first is the cause of the other."""

LIMITS: tuple[Rule, ...] = (
    Rule(
        Bottleneck.BANDWIDTH,
        lambda s: None if s.dram_active is None else (s.dram_active if s.dram_active >= BANDWIDTH else 0.0),
        lambda s: f"the device's memory is active {percent(s.dram_active or 0)} of the time",
        "compute",
        "performance counters (GPM)",
    ),
    Rule(
        Bottleneck.COMPUTE,
        _compute,
        lambda s: f"arithmetic takes {percent(s.compute)} of the step",
        "compute",
        "the breakdown",
    ),
)
"""What limits a device that is at work, in order."""


def verdict_on(record: TrialRecord) -> Verdict | None:
    """Returns why a trial is not faster; None where there is no measurement."""
    return verdict_of(record.measurement, record.config) if record.measurement is not None else None


def verdict_of(found: Measurement, config: TrialConfig) -> Verdict:
    """Returns why a trial of `config` that measured `found` is not faster."""
    if found.reported_by:
        return _from_outside(found)
    signals = signals_of(found)
    costs = [(rule.cost(signals), rule) for rule in WASTES]
    cost, rule = max(((c, r) for c, r in costs if c is not None), key=lambda pair: pair[0])
    if cost < LEAST:
        limits = ((each.cost(signals), each) for each in LIMITS)
        limit = next(((c, r) for c, r in limits if c), None)
        if limit is None:
            missing = sorted({each.needs for c, each in costs if c is None})
            without = f"; not told here: {', '.join(missing)}" if missing else ""
            idle = (signals.idle or 0.0) - signals.input - signals.transfer
            what = "no cause takes a fifth of the step"
            if idle >= LEAST:
                what = f"the device is idle {percent(idle)} of the step, and nothing here explains it"
            return Verdict(kind=Bottleneck.INCONCLUSIVE, share=None, why=what + without)
        cost, rule = limit
    remedy = remedy_for(rule.kind, signals, found, config)
    return Verdict(
        kind=rule.kind,
        share=cost,
        why=rule.why(signals),
        phase=rule.phase,
        next=remedy.text,
        changes=remedy.changes,
    )


def _from_outside(found: Measurement) -> Verdict:
    """The verdict on a script, whose steps cannot be taken apart: by the telemetry beside it alone."""
    shares = {name: stats.mean / 100 for name, stats in found.telemetry.items()}
    cores = shares.get("cpu_util_pct")
    at_work = f"the cores are at {percent(cores)}" if cores is not None else "the cores are not known"
    busy = shares.get("gpu_util_pct")
    if busy is None:
        why = f"a script's steps are not taken apart, and there is no GPU to look at; {at_work}"
        return Verdict(kind=Bottleneck.INCONCLUSIVE, share=None, why=why)
    idle = 1 - busy
    if idle >= LEAST:
        why = f"the GPU is idle {percent(idle)} of the time, and {at_work}"
        if cores is not None and cores >= FULL:
            return Verdict(
                kind=Bottleneck.INPUT,
                share=idle,
                why=why,
                next="less work for the processor a sample: fewer or cheaper transforms, data decoded once",
            )
        return Verdict(
            kind=Bottleneck.INCONCLUSIVE,
            share=None,
            why=f"{why}: it waits for data, for the host's launches, or in a synchronisation",
            next="search the loader's workers, the batch size and compilation, which help against one each",
        )
    dram, active = shares.get("gpu_dram_active_pct"), shares.get("gpu_sm_active_pct")
    if dram is not None and dram >= BANDWIDTH:
        why = f"the device's memory is active {percent(dram)} of the time"
        return Verdict(kind=Bottleneck.BANDWIDTH, share=dram, why=why)
    if active is not None and active < FILLED:
        why = f"kernels too small for the device: {percent(active)} of its SMs are active"
        return Verdict(kind=Bottleneck.LAUNCH, share=1 - active, why=why, next="a larger batch")
    return Verdict(kind=Bottleneck.COMPUTE, share=busy, why=f"the GPU is at work {percent(busy)} of the time")
