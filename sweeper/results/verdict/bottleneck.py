"""Names the bottleneck of a trial and the next thing to change, by one table of rules.

Each rule gives the share of a step that its cause costs; the cause with the largest share is the verdict if
that share is at least a fifth. If nothing can be won back, the verdict names what limits the device. A rule
whose signal is missing is skipped; if no rule is left, the verdict is `inconclusive`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import Bottleneck, Measurement
from sweeper.core.record import TrialRecord
from sweeper.core.workload import is_reported
from sweeper.results.formatting import figure
from sweeper.results.verdict.remedies import percent, rate, remedy_for
from sweeper.results.verdict.signals import Signals, signals_of

MIN_COST = 0.2
"""Smallest share of a step that counts as a cause; loadtune uses the same bound for waiting."""

NEAR = 0.8
"""Ratio from which two costs are about the same: repeats of a script differ by as much."""

SAME_PART = 1.1
"""Largest ratio between repeats of one part of a step: memory lies elsewhere in each run."""

SAME_STEP = 1.3
"""Largest ratio between a step that is timed and one that is taken apart."""

BUSY = 0.5
"""Smallest share of arithmetic in a step with which the device counts as the limit."""

OVERHEAD = 0.3
"""Smallest share of a CPU's arithmetic, independent of the batch, that counts as call overhead: even large
operations are up to a quarter slower per sample on half a batch."""

MOSTLY_WAITING = 0.5
"""A loader whose processes run for less than this share of the time waits for something."""

FULL = 0.9
FILLED = 0.5
BANDWIDTH = 0.6
"""NVIDIA's guidance for profiling counters: memory active above 60% is near the DRAM's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckVerdict:
    """Why a trial is not faster.

    Attributes:
        share: Share of a step that the cause takes; None if inconclusive.
        why: The numbers, in one line.
        phase: The phase of the breakdown in which the cause shows.
        next: What to change next, in one line.
        changes: The same by dotted names, if it changes the configuration.
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
        cost: Share of a step; None if its signal is missing or the rule does not apply.
        why: The numbers behind it.
        phase: The phase of the breakdown in which it shows.
        needs: The signals it needs, in words.
    """

    kind: Bottleneck
    cost: Callable[[Signals], float | None]
    why: Callable[[Signals], str]
    phase: str
    needs: str


def _input_why(s: Signals) -> str:
    if s.preparation > s.input / 2:
        return f"preparing the batch before the model sees it takes {percent(s.preparation)} of the step"
    if s.input > s.wait + 0.05:
        loader_share = percent(s.input - s.wait)
        text = (
            f"the data path takes {percent(s.input)} of the step: {percent(s.wait)} waiting,"
            f" {loader_share} lost to loader processes on training's cores"
        )
    else:
        text = f"waiting for data takes {percent(s.wait)} of the step"
    if s.loader_rate and s.device_rate:
        loader, device = rate(s.loader_rate), rate(s.device_rate)
        text += f"; the loader alone delivers {loader} samples/s, the device alone takes {device}"
    if s.sample_cpu_s:
        text += f"; reading and decoding a sample takes {figure(1e3 * s.sample_cpu_s)} ms of CPU time"
        if s.loader_busy is not None and s.loader_busy < MOSTLY_WAITING:
            waits = percent(1 - s.loader_busy)
            text += f", and the loader waits {waits} of the time, for example for a disk or a network"
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
    return f"{percent(s.blocked or 0)} of the step is spent waiting for something other than data"


def _evaluation(s: Signals) -> float:
    """Returns the evaluation time per step, as a share of the step: evaluations run between steps."""
    share = s.evaluation or 0.0
    return min(1.0, share / (1 - share)) if share < 1 else 1.0


def _launch(s: Signals) -> float | None:
    if not s.on_gpu:
        if s.fixed is None:
            return None
        # A wait does not depend on the batch either.
        return max(0.0, s.fixed * s.compute - (s.blocked or 0.0)) if s.fixed >= OVERHEAD else 0.0
    if s.idle is None or s.host_paced is None:
        return None
    # Idle time from the data path or a wait is not caused by launches.
    return max(0.0, s.idle - s.input - s.transfer) if s.host_paced and not s.sync_places else 0.0


def _launch_why(s: Signals) -> str:
    if s.on_gpu:
        return f"the GPU waits {percent(s.idle or 0)} of the step for the host to launch its kernels"
    return f"{percent(s.fixed or 0)} of the arithmetic does not depend on the batch: it is call overhead"


def _capacity(s: Signals) -> float | None:
    """Returns the cost of full memory, which matters only if a larger batch would use the device better."""
    if s.memory is None:
        return None if s.on_gpu else 0.0
    held_back = max(_launch(s) or 0.0, _small_kernels(s) or 0.0)
    return held_back if s.memory >= FULL and held_back >= MIN_COST else 0.0


def _small_kernels(s: Signals) -> float | None:
    """Returns the cost of kernels that run one after another and are too small for the device."""
    if not s.on_gpu:
        return 0.0
    if s.idle is None:
        return None
    if s.sm_active is None:
        # Without counters: time that half a batch also takes is not work on the batch.
        return None if s.fixed is None else max(0.0, s.fixed * s.compute - s.idle)
    return max(0.0, s.compute * (1 - s.sm_active) - s.idle) if s.sm_active < FILLED else 0.0


def _small_kernels_why(s: Signals) -> str:
    if s.sm_active is None:
        half = percent((1 + (s.fixed or 0)) / 2)
        return f"kernels too small for the device: half a batch takes {half} of the time"
    return f"kernels too small for the device: {percent(s.sm_active)} of its SMs are active"


def _compute(s: Signals) -> float | None:
    """Returns the share of arithmetic; None if it is small, or on a GPU whose phases include idle gaps."""
    if s.on_gpu and (s.idle is None or s.idle - s.input - s.transfer >= MIN_COST):
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
        lambda s: f"{percent(s.memory or 0)} of the device's memory is used, and the device is not busy",
        "",
        "peak memory",
    ),
    Rule(
        Bottleneck.HOST,
        lambda s: s.rest or 0.0,
        lambda s: f"{percent(s.rest or 0)} of the time is spent between steps, in the script's own code",
        "host",
        "the breakdown",
    ),
    Rule(
        Bottleneck.HOST,
        _evaluation,
        lambda s: f"evaluation takes {percent(s.evaluation or 0)} of the time",
        "",
        "the breakdown",
    ),
    Rule(Bottleneck.LAUNCH, _launch, _launch_why, "compute", "the device's and the host's time for a step"),
    Rule(
        Bottleneck.LAUNCH,
        _small_kernels,
        _small_kernels_why,
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
"""Costs that could be won back. Of two equal costs, the first is the cause of the other."""

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
"""Bottlenecks of a busy device, in the order in which they are considered."""


def verdict_on(record: TrialRecord) -> BottleneckVerdict | None:
    """Returns why a trial is not faster; None without a measurement."""
    return verdict_of(record.measurement, record.config) if record.measurement is not None else None


def is_unexamined(record: TrialRecord, verdict: BottleneckVerdict) -> bool:
    """Returns whether a script's verdict is inconclusive because no breakdown of its steps was measured."""
    measured = record.measurement
    taken_apart = measured is not None and bool(measured.breakdown.step_s)
    return verdict.kind is Bottleneck.INCONCLUSIVE and not taken_apart


def launch_share(measurement: Measurement) -> float | None:
    """Returns the largest share of a step that launching operations may take; None if that is unknown.

    A line that waits for the device in each step hides it: the verdict is about the line then, but without
    the line, the device would still wait for the host.
    """
    if not measurement.breakdown.step_s:
        return None
    signals = dataclasses.replace(signals_of(measurement), sync_places=())
    costs = [rule.cost(signals) for rule in WASTES if rule.kind is Bottleneck.LAUNCH]
    if shares := [cost for cost in costs if cost is not None]:
        return max(shares)
    # Without the device's own times: what half a batch takes as well.
    return None if signals.fixed is None else signals.fixed * signals.compute


def verdict_of(measurement: Measurement, config: TrialConfig) -> BottleneckVerdict:
    """Returns why a trial of `config` with this measurement is not faster."""
    if is_reported(measurement) and not measurement.breakdown.step_s:
        return _from_outside(measurement)
    verdict = _verdict(measurement, config)
    # A script's steps are taken apart after they were timed.
    return _unless_unclear(verdict, measurement, config) if is_reported(measurement) else verdict


def _unless_unclear(
    verdict: BottleneckVerdict, measurement: Measurement, config: TrialConfig
) -> BottleneckVerdict:
    """Returns a script's verdict, or that it is unclear if another run might have another one.

    It might if the steps that were timed lead to another verdict, or if two causes cost about the same.
    """
    timed = as_timed(measurement)
    other = verdict if timed is None else _verdict(timed, config)
    if timed is not None and other.kind is not verdict.kind:
        steps = figure(measurement.step_ms), figure(1e3 * measurement.breakdown.step_s)
        why = (
            f"a step took {steps[0]} ms when it was timed, but {steps[1]} ms when it was taken apart: it is"
            f" {other.kind} by the former ({first_number(other.why)}),"
            f" {verdict.kind} by the latter ({first_number(verdict.why)})"
        )
    else:
        rival = _rival(verdict, measurement)
        if rival is None:
            return verdict
        why = (
            f"about equally {verdict.kind} ({first_number(verdict.why)})"
            f" and {rival[0]} ({first_number(rival[1])})"
        )
    return dataclasses.replace(verdict, kind=Bottleneck.UNCLEAR, share=None, why=why)


def first_number(why: str) -> str:
    """Returns the first of the numbers behind a verdict."""
    return why.partition(";")[0]


def as_timed(measurement: Measurement) -> Measurement | None:
    """Returns a measurement with the parts of a step as it was timed; None if they differ little.

    The arithmetic of a step always takes about the same time, so waiting takes the difference.
    """
    parts, step_s = measurement.breakdown, measurement.step_ms / 1e3
    if not step_s or 1 / SAME_STEP <= parts.step_s / step_s <= SAME_STEP:
        return None
    data_s = max(0.0, parts.data_s + step_s - parts.step_s)
    return dataclasses.replace(measurement, breakdown=dataclasses.replace(parts, data_s=data_s))


def _rival(verdict: BottleneckVerdict, measurement: Measurement) -> tuple[Bottleneck, str] | None:
    """Returns another cause or limit that might be the verdict of another run; None without one."""
    signals = signals_of(measurement)
    costs = [(rule.cost(signals) or 0.0, rule) for rule in WASTES]
    top, first = max(costs, key=lambda pair: pair[0])
    second, rule = max(
        ((cost, rule) for cost, rule in costs if rule.kind is not first.kind), key=lambda pair: pair[0]
    )
    if top >= MIN_COST and second >= NEAR * top and second >= NEAR * MIN_COST:
        return rule.kind, rule.why(signals)
    # Two halves over the whole batch: both are parts that another run would time differently.
    ratio = 1 + (signals.fixed or 0.0)
    if not signals.on_gpu and ratio / SAME_PART < 1 + OVERHEAD <= ratio * SAME_PART:
        if verdict.kind is Bottleneck.COMPUTE:
            return Bottleneck.LAUNCH, _launch_why(signals)
        if verdict.kind is Bottleneck.LAUNCH and (limit := _limit(signals)) is not None:
            return limit
    if not NEAR * MIN_COST <= top < MIN_COST / NEAR:
        return None
    if verdict.kind is not first.kind:
        return first.kind, first.why(signals)
    return _limit(signals)


def _limit(signals: Signals) -> tuple[Bottleneck, str] | None:
    return next(((rule.kind, rule.why(signals)) for rule in LIMITS if rule.cost(signals)), None)


def _verdict(measurement: Measurement, config: TrialConfig) -> BottleneckVerdict:
    signals = signals_of(measurement)
    costs = [(rule.cost(signals), rule) for rule in WASTES]
    cost, rule = max(((c, r) for c, r in costs if c is not None), key=lambda pair: pair[0])
    if cost < MIN_COST:
        limits = ((r.cost(signals), r) for r in LIMITS)
        limit = next(((c, r) for c, r in limits if c), None)
        if limit is None:
            missing = sorted({r.needs for c, r in costs if c is None})
            without = f"; not measured here: {', '.join(missing)}" if missing else ""
            idle = (signals.idle or 0.0) - signals.input - signals.transfer
            what = "no cause takes a fifth of the step"
            if idle >= MIN_COST:
                what = f"the device is idle {percent(idle)} of the step, for no known reason"
            return BottleneckVerdict(kind=Bottleneck.INCONCLUSIVE, share=None, why=what + without)
        cost, rule = limit
    remedy = remedy_for(rule.kind, signals, measurement, config)
    return BottleneckVerdict(
        kind=rule.kind,
        share=cost,
        why=rule.why(signals),
        phase=rule.phase,
        next=remedy.text,
        changes=remedy.changes,
    )


def _from_outside(measurement: Measurement) -> BottleneckVerdict:
    """Returns the verdict on a script from telemetry alone, as its steps were not broken down."""
    shares = {name: stats.mean / 100 for name, stats in measurement.telemetry.items()}
    cores = shares.get("cpu_util_pct")
    at_work = f"the CPU is at {percent(cores)}" if cores is not None else "CPU utilisation is unknown"
    busy = shares.get("gpu_util_pct")
    if busy is None:
        has_gpu = measurement.device.kind == "cuda"
        gpu = "the GPU's utilisation is not reported" if has_gpu else "there is no GPU"
        why = f"its steps were not taken apart (`sweeper watch` does this), {gpu}, and {at_work}"
        return BottleneckVerdict(kind=Bottleneck.INCONCLUSIVE, share=None, why=why)
    idle = 1 - busy
    if idle >= MIN_COST:
        why = f"the GPU is idle {percent(idle)} of the time, and {at_work}"
        if cores is not None and cores >= FULL:
            return BottleneckVerdict(
                kind=Bottleneck.INPUT,
                share=idle,
                why=why,
                next="less CPU work per sample: fewer or cheaper transforms, data decoded once",
            )
        return BottleneckVerdict(
            kind=Bottleneck.INCONCLUSIVE,
            share=None,
            why=f"{why}: it waits for data, kernel launches or a synchronisation",
            next="search the loader's workers, the batch size and compilation: each addresses one of these",
        )
    dram, active = shares.get("gpu_dram_active_pct"), shares.get("gpu_sm_active_pct")
    if dram is not None and dram >= BANDWIDTH:
        why = f"the device's memory is active {percent(dram)} of the time"
        return BottleneckVerdict(kind=Bottleneck.BANDWIDTH, share=dram, why=why)
    if active is not None and active < FILLED:
        why = f"kernels too small for the device: {percent(active)} of its SMs are active"
        return BottleneckVerdict(kind=Bottleneck.LAUNCH, share=1 - active, why=why, next="a larger batch")
    return BottleneckVerdict(
        kind=Bottleneck.COMPUTE, share=busy, why=f"the GPU is busy {percent(busy)} of the time"
    )
