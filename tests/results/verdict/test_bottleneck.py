"""Why a trial is not faster: each bottleneck out of a step's shares, its bounds, and what is never said."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest
from measurements import STEP_SECONDS, THROUGHPUT, measurement, record_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Bottleneck, Diagnosis, Failure, FailureKind, Measurement
from sweeper.results.verdict.bottleneck import (
    MIN_COST,
    OVERHEAD,
    BottleneckVerdict,
    launch_share,
    verdict_of,
    verdict_on,
)
from sweeper.results.verdict.signals import HELPERS_SHARE, Signals, signals_of

ROWS = TrialConfig().replace({"loader.kind": "rows"})
DEVICE = THROUGHPUT * 4
"""Samples per second of a device that is kept waiting for three quarters of its time."""

BUSY_GPU = {"gpu": True, "idle": 0.02, "issue": 0.3, "sync_places": ()}
"""A GPU that works all the time, launched well ahead."""


def judged(config: TrialConfig | None = None, **shares) -> BottleneckVerdict:
    return verdict_of(measurement(**shares), config or TrialConfig())


# -- each bottleneck ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [False, True])
def test_waiting_for_data(gpu: bool):
    found = judged(ROWS, gpu=gpu, data=0.45, device_samples_s=DEVICE, loader_samples_s=7100.0)
    assert (found.kind, found.share, found.phase) == (Bottleneck.INPUT, pytest.approx(0.45), "data")
    rates = "; the loader alone delivers 7.1k samples/s, the device alone takes 25.6k"
    assert found.why == "waiting for data takes 45% of the step" + rates


@pytest.mark.parametrize(
    ("busy", "said"),
    [(0.9, ""), (0.3, ", and the loader waits 70% of the time, for example for a disk or a network")],
)
def test_what_a_sample_costs_is_told_from_what_it_waits_for(busy: float, said: str):
    found = judged(ROWS, data=0.45, sample_cpu_s=1.9e-3, loader_busy=busy)
    cost = "; reading and decoding a sample takes 1.9 ms of CPU time"
    assert found.why == f"waiting for data takes 45% of the step{cost}{said}"


def test_a_loader_whose_processes_take_the_cores():
    """Nothing waits, and yet the arithmetic alone would be four times as fast."""
    found = judged(ROWS, data=0.05, helpers=0.8, device_samples_s=DEVICE)
    assert (found.kind, found.share) == (Bottleneck.INPUT, pytest.approx(0.75))
    lost = "70% lost to loader processes on training's cores"
    assert found.why == f"the data path takes 75% of the step: 5% waiting, {lost}"


def test_a_loader_in_the_same_process_costs_what_its_phase_takes():
    assert signals_of(measurement(data=0.05, device_samples_s=DEVICE)).input == pytest.approx(0.05)
    least, below = (
        signals_of(measurement(data=0.05, helpers=helpers, device_samples_s=DEVICE)).input
        for helpers in (HELPERS_SHARE, 0.9 * HELPERS_SHARE)
    )
    assert (least, below) == (pytest.approx(0.75), pytest.approx(0.05))


def test_what_helpers_cost_is_no_less_than_the_wait_and_no_more_than_is_there():
    slower = measurement(data=0.3, helpers=1.0, device_samples_s=0.9 * THROUGHPUT)
    assert signals_of(slower).input == pytest.approx(0.3)
    copying = measurement(data=0.1, h2d=0.5, helpers=1.0, device_samples_s=100 * THROUGHPUT)
    assert signals_of(copying).input == pytest.approx(0.49)
    # A GPU that computes faster alone was cooler for a moment; what it lacks it is idle for.
    gpu = {"gpu": True, "data": 0.05, "helpers": 1.0, "device_samples_s": DEVICE}
    assert signals_of(measurement(**gpu)).input == pytest.approx(0.75)
    assert signals_of(measurement(**gpu, idle=0.3)).input == pytest.approx(0.3)


def test_copies_to_the_device():
    found = judged(**BUSY_GPU, h2d=0.4)
    assert (found.kind, found.share, found.phase) == (Bottleneck.TRANSFER, pytest.approx(0.4), "h2d")
    assert found.why == "copies to the device take 40% of the step"


def test_a_step_that_waits_on_a_cpu():
    found = judged(blocked=0.6, fixed=0.7)
    assert (found.kind, found.share) == (Bottleneck.SYNC, pytest.approx(0.6))
    assert found.why == "60% of the step is spent waiting for something other than data"
    # A wait does not depend on the batch either, and is not counted twice.
    found = judged(blocked=0.3, fixed=0.7)
    assert (found.kind, found.share) == (Bottleneck.LAUNCH, pytest.approx(0.4))


def test_lines_that_wait_for_a_gpu():
    places = ("net.py:12", "loss.py:3")
    found = judged(gpu=True, idle=0.5, issue=0.9, sync_places=places)
    assert (found.kind, found.share) == (Bottleneck.SYNC, pytest.approx(0.5))
    assert found.why == "the step waits for the device at net.py:12, loss.py:3"
    assert found.next.startswith("at net.py:12, loss.py:3: ")
    # Where the device works all the same, it costs nothing.
    assert judged(gpu=True, idle=0.05, issue=0.5, sync_places=places).kind is Bottleneck.COMPUTE


def test_a_line_that_waits_does_not_hide_that_the_host_sets_the_pace():
    for places in ((), ("net.py:12",)):
        found = measurement(gpu=True, idle=0.5, issue=0.9, sync_places=places)
        assert launch_share(found) == pytest.approx(0.5)
        # Without the host, or with a busy device, launching is not the limit.
        assert launch_share(measurement(gpu=True, idle=0.5, issue=0.3, sync_places=places)) == 0.0
        busy = launch_share(measurement(gpu=True, idle=0.05, issue=0.9, sync_places=places))
        assert busy is not None
        assert busy < MIN_COST
    assert launch_share(measurement(fixed=0.7)) == pytest.approx(0.7)
    # Without the device's own times, what half a batch takes as well is the most that it may be.
    assert launch_share(measurement(gpu=True, fixed=0.7)) == pytest.approx(0.7)
    assert launch_share(measurement(gpu=True)) is None


def test_an_idle_gpu_that_waits_for_data_does_not_wait_for_anything_else():
    shares = {"gpu": True, "data": 0.3, "h2d": 0.25, "idle": 0.6, "issue": 0.9}
    assert judged(**shares, sync_places=("net.py:12",)).kind is Bottleneck.INPUT
    found = judged(**shares, sync_places=())
    assert (found.kind, found.share) == (Bottleneck.INPUT, pytest.approx(0.3))
    assert judged(**{**shares, "idle": 0.9}, sync_places=()).kind is Bottleneck.LAUNCH


def test_calls_and_not_numbers_on_a_cpu():
    found = judged(data=0.1, fixed=0.6)
    assert (found.kind, found.share, found.phase) == (Bottleneck.LAUNCH, pytest.approx(0.54), "compute")
    assert found.why == "60% of the arithmetic does not depend on the batch: it is call overhead"


def test_large_operations_are_slower_on_half_a_batch_without_being_overhead():
    assert judged(fixed=OVERHEAD - 0.01).kind is Bottleneck.COMPUTE
    assert judged(fixed=OVERHEAD + 0.01).kind is Bottleneck.LAUNCH


def test_evaluation_costs_what_it_adds_to_a_step():
    found = judged(fixed=0.6, evaluation_share=0.45, more={"reported_by": "torch"})
    # 45 to 55.
    assert (found.kind, found.share) == (Bottleneck.HOST, pytest.approx(0.818, abs=1e-3))
    assert found.why == "evaluation takes 45% of the time"
    assert found.next.startswith("evaluate less often")
    assert judged(fixed=0.9, evaluation_share=0.45).kind is Bottleneck.LAUNCH
    assert judged(fixed=1.0, evaluation_share=0.6).kind is Bottleneck.HOST
    assert judged(evaluation_share=1.0).kind is Bottleneck.HOST
    assert judged(evaluation_share=0.15).kind is Bottleneck.COMPUTE


def test_a_batch_that_is_prepared_in_the_loop():
    found = judged(
        data=0.4,
        preparation_s=0.3 * STEP_SECONDS,
        lines={"data": ("train.py:7",)},
        more={"reported_by": "torch"},
    )
    assert (found.kind, found.share) == (Bottleneck.INPUT, pytest.approx(0.4))
    assert found.why == "preparing the batch before the model sees it takes 30% of the step"
    assert (
        found.next == "do it in the data set or in `collate_fn`, ahead of the step (most of it at train.py:7)"
    )
    # Where the loader takes most of it, that is what is named.
    assert judged(data=0.4, preparation_s=0.1 * STEP_SECONDS).why.startswith("waiting for data takes 40%")


def test_what_a_script_does_to_its_batch_on_a_busy_gpu_is_arithmetic():
    shares = {"gpu": True, "data": 0.4, "issue": 0.3, "sync_places": (), "more": {"reported_by": "torch"}}
    busy = judged(**shares, idle=0.05, preparation_s=0.4 * STEP_SECONDS)
    assert (busy.kind, busy.share) == (Bottleneck.COMPUTE, pytest.approx(0.95))
    found = judged(**shares, idle=0.35, preparation_s=0.4 * STEP_SECONDS)
    assert (found.kind, found.share) == (Bottleneck.INPUT, pytest.approx(0.35))


def test_a_script_that_leaves_the_gpu_alone_is_judged_as_on_a_cpu():
    telemetry = {"gpu_util_pct": 0.0}
    own = {"reported_by": "torch", "observed": {"device": "cpu"}}
    assert judged(gpu=True, fixed=0.6, telemetry=telemetry, more=own).kind is Bottleneck.LAUNCH
    assert judged(gpu=True, fixed=0.6, telemetry=telemetry).kind is Bottleneck.INCONCLUSIVE


def test_a_gpu_that_waits_for_launches():
    found = judged(gpu=True, idle=0.7, issue=1.0, sync_places=())
    assert (found.kind, found.share, found.phase) == (Bottleneck.LAUNCH, pytest.approx(0.7), "compute")
    assert found.why == "the GPU waits 70% of the step for the host to launch its kernels"


def test_a_gpu_that_is_idle_for_no_known_reason():
    """Nobody waits for data, the host is ahead, and no line of the user's waits."""
    found = judged(gpu=True, idle=0.7, issue=0.2, sync_places=())
    assert (found.kind, found.share) == (Bottleneck.INCONCLUSIVE, None)
    assert found.why.startswith("the device is idle 70% of the step, for no known reason")
    # Of less than a fifth nobody asks.
    assert judged(gpu=True, idle=0.19, issue=0.2, sync_places=()).kind is Bottleneck.COMPUTE
    assert judged(gpu=True, idle=0.3, data=0.15, issue=0.2, sync_places=()).kind is Bottleneck.COMPUTE


def test_without_the_devices_own_time_a_gpu_is_as_idle_as_nvml_says():
    assert signals_of(measurement(gpu=True, telemetry={"gpu_util_pct": 40.0})).idle == pytest.approx(0.6)
    known = measurement(gpu=True, idle=0.1, telemetry={"gpu_util_pct": 40.0})
    assert signals_of(known).idle == pytest.approx(0.1)
    assert judged(gpu=True, telemetry={"gpu_util_pct": 95.0}).kind is Bottleneck.COMPUTE
    assert judged(gpu=True, telemetry={"gpu_util_pct": 40.0}).kind is Bottleneck.INCONCLUSIVE
    assert judged(gpu=True).kind is Bottleneck.INCONCLUSIVE


def test_kernels_too_small_for_the_gpu():
    found = judged(**BUSY_GPU, telemetry={"gpu_sm_active_pct": 12.0})
    assert (found.kind, found.share) == (Bottleneck.LAUNCH, pytest.approx(0.88 - 0.02))
    assert found.why == "kernels too small for the device: 12% of its SMs are active"


def test_without_counters_halves_tell_whether_kernels_are_too_small():
    found = judged(**BUSY_GPU, fixed=0.6)
    assert (found.kind, found.share) == (Bottleneck.LAUNCH, pytest.approx(0.6 - 0.02))
    assert found.why == "kernels too small for the device: half a batch takes 80% of the time"
    # Where there are counters, they say.
    assert judged(**BUSY_GPU, fixed=0.6, telemetry={"gpu_sm_active_pct": 90.0}).kind is Bottleneck.COMPUTE


def test_a_full_device_that_is_not_busy():
    found = judged(**BUSY_GPU, memory=0.95, telemetry={"gpu_sm_active_pct": 30.0})
    assert (found.kind, found.share) == (Bottleneck.CAPACITY, pytest.approx(0.68))
    assert found.why == "95% of the device's memory is used, and the device is not busy"
    launches = judged(gpu=True, idle=0.5, issue=1.0, sync_places=(), memory=0.95)
    assert (launches.kind, launches.share) == (Bottleneck.CAPACITY, pytest.approx(0.5))
    # One that is busy is full for a good reason.
    assert judged(**BUSY_GPU, memory=0.95).kind is Bottleneck.COMPUTE


def test_pages_that_are_mapped_again_and_again():
    found = judged(faults=0.35)
    assert (found.kind, found.share, found.phase) == (Bottleneck.BANDWIDTH, pytest.approx(0.35), "compute")
    assert found.why == "the kernel maps and clears memory for 35% of the step"
    # On a GPU the host's pages are not what the step waits for.
    assert judged(**BUSY_GPU, faults=0.35).kind is Bottleneck.COMPUTE


def test_the_devices_memory_at_work():
    found = judged(**BUSY_GPU, telemetry={"gpu_sm_active_pct": 90.0, "gpu_dram_active_pct": 70.0})
    assert (found.kind, found.share) == (Bottleneck.BANDWIDTH, pytest.approx(0.7))
    assert found.why == "the device's memory is active 70% of the time"


CLEAR = ({}, {"diagnosed": False}, {"fixed": 0.05, "blocked": 0.02}, BUSY_GPU)


@pytest.mark.parametrize("shares", CLEAR)
def test_arithmetic(shares: dict):
    found = judged(**shares, data=0.1)
    assert (found.kind, found.share, found.phase) == (Bottleneck.COMPUTE, pytest.approx(0.9), "compute")
    assert found.why == "arithmetic takes 90% of the step"


NOTHING = {"data": 0.15, "h2d": 0.15, "gap": 0.3}


def test_nothing_that_stands_out_is_inconclusive_and_names_what_is_not_told():
    found = judged(**NOTHING, fixed=0.1, blocked=0.1)
    assert (found.kind, found.share, found.next, found.changes) == (Bottleneck.INCONCLUSIVE, None, "", {})
    assert found.why.startswith("no cause takes a fifth of the step")
    bare = judged(**NOTHING, diagnosed=False).why
    assert "the device's and the host's time for a step" in bare
    assert "processor time by phase, or the places that wait for the device" in bare
    gpu = judged(**NOTHING, gpu=True, memory=0.5, idle=0.1, issue=0.3, sync_places=()).why
    assert "performance counters (GPM)" in gpu
    assert "peak memory" not in gpu


def test_of_a_cpu_nothing_is_missed_that_only_a_gpu_has():
    why = judged(**NOTHING, fixed=0.1, blocked=0.1).why
    assert "GPM" not in why
    assert "peak memory" not in why


def test_of_a_gpu_nothing_is_missed_that_only_a_cpu_has():
    everything = {"gpu_sm_active_pct": 60.0, "gpu_dram_active_pct": 20.0}
    shares = {"gpu": True, "idle": 0.1, "issue": 0.3, "sync_places": (), "memory": 0.5}
    assert "page faults" not in judged(**NOTHING, **shares, telemetry=everything).why


# -- which one it is ------------------------------------------------------------------------------------


def test_what_costs_more_wins():
    assert judged(data=0.3, h2d=0.25).kind is Bottleneck.INPUT
    assert judged(data=0.25, h2d=0.3).kind is Bottleneck.TRANSFER
    assert judged(data=0.25, faults=0.3).kind is Bottleneck.BANDWIDTH
    assert judged(data=0.25, blocked=0.3).kind is Bottleneck.SYNC
    assert judged(data=0.35, blocked=0.3, faults=0.3).kind is Bottleneck.INPUT
    # What is lost comes before what is at work, however little of it there is.
    assert judged(data=0.21).kind is Bottleneck.INPUT


def test_of_two_that_cost_the_same_the_first_of_the_table_is_named():
    assert judged(data=0.25, h2d=0.25).kind is Bottleneck.INPUT
    assert judged(h2d=0.25, blocked=0.25).kind is Bottleneck.TRANSFER


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("data", Bottleneck.INPUT),
        ("h2d", Bottleneck.TRANSFER),
        ("blocked", Bottleneck.SYNC),
        ("faults", Bottleneck.BANDWIDTH),
    ],
)
def test_a_cause_costs_a_fifth_of_the_step_at_least(name: str, kind: Bottleneck):
    assert judged(**{name: MIN_COST + 0.001}).kind is kind
    assert judged(**{name: MIN_COST - 0.001}).kind is Bottleneck.COMPUTE


@pytest.mark.parametrize(("gap", "kind"), [(0.49, Bottleneck.COMPUTE), (0.51, Bottleneck.INCONCLUSIVE)])
def test_a_device_at_work_is_half_of_the_step_at_least(gap: float, kind: Bottleneck):
    assert judged(gap=gap).kind is kind


@pytest.mark.parametrize(("active", "kind"), [(60.0, Bottleneck.BANDWIDTH), (59.9, Bottleneck.COMPUTE)])
def test_bandwidth_is_the_limit_from_sixty_percent_on(active: float, kind: Bottleneck):
    telemetry = {"gpu_sm_active_pct": 90.0, "gpu_dram_active_pct": active}
    assert judged(**BUSY_GPU, telemetry=telemetry).kind is kind


@pytest.mark.parametrize(("active", "kind"), [(49.9, Bottleneck.LAUNCH), (50.0, Bottleneck.COMPUTE)])
def test_kernels_fill_a_device_from_one_half_on(active: float, kind: Bottleneck):
    assert judged(**BUSY_GPU, telemetry={"gpu_sm_active_pct": active}).kind is kind


@pytest.mark.parametrize(("memory", "kind"), [(0.9, Bottleneck.CAPACITY), (0.89, Bottleneck.LAUNCH)])
def test_a_device_is_full_from_nine_tenths_on(memory: float, kind: Bottleneck):
    assert judged(**BUSY_GPU, memory=memory, telemetry={"gpu_sm_active_pct": 30.0}).kind is kind


def test_a_full_device_needs_a_fifth_to_be_won_back():
    full = {"gpu": True, "issue": 1.0, "sync_places": (), "memory": 0.95}
    assert judged(**full, idle=0.21).kind is Bottleneck.CAPACITY
    assert judged(**full, idle=0.19).kind is Bottleneck.COMPUTE


# -- what is missing decides nothing --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("blocked", Bottleneck.SYNC), ("fixed", Bottleneck.LAUNCH)])
def test_without_its_figure_a_cause_on_a_cpu_is_not_named(name: str, kind: Bottleneck):
    little = {"blocked": 0.1, "fixed": 0.1}
    assert judged(**{**little, name: 0.4}).kind is kind
    del little[name]
    assert judged(**little).kind is Bottleneck.COMPUTE


GPU_FIGURES = {"idle": 0.6, "issue": 0.9, "sync_places": ("net.py:12",)}


@pytest.mark.parametrize("missing", ["idle", "sync_places"])
def test_without_its_figures_a_sync_on_a_gpu_is_not_named(missing: str):
    assert judged(gpu=True, **GPU_FIGURES).kind is Bottleneck.SYNC
    left = {name: value for name, value in GPU_FIGURES.items() if name != missing}
    assert judged(gpu=True, **left).kind is not Bottleneck.SYNC


@pytest.mark.parametrize("missing", ["idle", "issue"])
def test_without_its_figures_a_launch_on_a_gpu_is_not_named(missing: str):
    figures = {**GPU_FIGURES, "sync_places": ()}
    assert judged(gpu=True, **figures).kind is Bottleneck.LAUNCH
    left = {name: value for name, value in figures.items() if name != missing}
    assert judged(gpu=True, **left).kind is Bottleneck.INCONCLUSIVE


def test_without_counters_and_halves_kernels_are_not_called_small():
    assert judged(**BUSY_GPU).kind is Bottleneck.COMPUTE
    # Nor where it is not known how long the device works.
    for shares in ({"telemetry": {"gpu_sm_active_pct": 12.0}}, {"fixed": 0.6}):
        assert judged(gpu=True, **shares).kind is Bottleneck.INCONCLUSIVE


def test_memory_of_a_device_whose_size_is_not_known():
    found = measurement(**BUSY_GPU, memory=0.95, telemetry={"gpu_sm_active_pct": 30.0})
    unknown = dataclasses.replace(found, device=dataclasses.replace(found.device, memory_gib=0.0))
    assert verdict_of(unknown, TrialConfig()).kind is Bottleneck.LAUNCH


def test_a_trial_without_a_diagnosis_has_none_of_its_signals():
    found = signals_of(measurement(data=0.1, helpers=1.0, diagnosed=False))
    assert found.input == found.wait == pytest.approx(0.1)
    of_diagnosis = ("blocked", "fixed", "idle", "host_paced", "sync_places", "device_rate", "loader_rate")
    assert [getattr(found, name) for name in of_diagnosis] == [None] * 7
    assert (found.sm_active, found.dram_active, found.memory, found.cpu) == (None,) * 4


def test_a_failure_has_no_verdict():
    assert verdict_on(record_of(Failure(kind=FailureKind.OOM, message=""))) is None
    assert verdict_on(record_of(None)) is None
    assert verdict_on(record_of(measurement(data=0.5), loader__kind="rows")).kind is Bottleneck.INPUT


# -- a script, whose steps are taken apart after they were timed ------------------------------------------

TOLD = {"reported_by": "torch"}


def timed_slower(**shares) -> Measurement:
    """A step that took four times as long when it was timed."""
    return dataclasses.replace(measurement(**shares), step_ms=4e3 * STEP_SECONDS)


def test_a_step_that_differs_between_two_runs_is_unclear_where_the_cause_does():
    found = timed_slower(data=0.05, more=TOLD)
    verdict = verdict_of(found, TrialConfig())
    assert verdict.kind is Bottleneck.UNCLEAR
    assert "input-bound by the former (waiting for data takes 76% of the step)" in verdict.why
    assert "compute-bound by the latter" in verdict.why
    # The same cause in both runs is the verdict.
    found = timed_slower(data=0.6, more=TOLD)
    assert verdict_of(found, TrialConfig()).kind is Bottleneck.INPUT
    # A pipeline is taken apart in the run that is timed.
    found = timed_slower(data=0.05)
    assert verdict_of(found, TrialConfig()).kind is Bottleneck.COMPUTE


@pytest.mark.parametrize(
    ("shares", "kinds"),
    [
        ({"data": 0.45, "fixed": 0.8}, ("input-bound", "launch-bound")),
        ({"data": 0.21}, ("input-bound", "compute-bound")),
        ({"data": 0.19}, ("compute-bound", "input-bound")),
        ({"fixed": OVERHEAD + 0.12}, ("launch-bound", "compute-bound")),
        ({"fixed": OVERHEAD - 0.11}, ("compute-bound", "launch-bound")),
    ],
)
def test_of_two_causes_that_cost_about_the_same_both_are_named(shares: dict, kinds: tuple[str, str]):
    verdict = judged(**shares, more=TOLD)
    assert verdict.kind is Bottleneck.UNCLEAR
    assert re.match(rf"about equally {kinds[0]} \(.*\) and {kinds[1]} \(", verdict.why)
    assert judged(**shares).kind is not Bottleneck.UNCLEAR


def test_a_clear_cause_of_a_script_is_named_alone():
    assert judged(data=0.5, fixed=0.4, more=TOLD).kind is Bottleneck.INPUT
    assert judged(data=0.1, more=TOLD).kind is Bottleneck.COMPUTE
    assert judged(fixed=OVERHEAD + 0.15, more=TOLD).kind is Bottleneck.LAUNCH
    assert judged(fixed=OVERHEAD - 0.13, more=TOLD).kind is Bottleneck.COMPUTE


# -- of any measurement ---------------------------------------------------------------------------------


def maybe(rng: random.Random, low: float, high: float) -> float | None:
    """Now and then nothing, or a bound itself."""
    return rng.choice([None, low, high, rng.uniform(low, high), rng.uniform(low, high)])


def any_measurement(rng: random.Random) -> Measurement:
    gpu = rng.random() < 0.5
    cuts = sorted(rng.random() for _ in range(3))
    base = measurement(
        gpu=gpu,
        data=cuts[0],
        h2d=cuts[1] - cuts[0],
        gap=cuts[2] - cuts[1],
        helpers=rng.choice([0.0, rng.uniform(0, 4)]),
        # Of several threads that map pages at once there is more than the step has time.
        faults=rng.choice([0.0, rng.uniform(0, 1), rng.uniform(0, 3)]),
        memory=maybe(rng, 0.0, 1.0) if gpu else None,
        telemetry={
            name: rng.uniform(0, 100)
            for name in ("cpu_util_pct", "gpu_sm_active_pct", "gpu_dram_active_pct", "gpu_util_pct")
            if rng.random() < 0.5
        },
    )
    step = maybe(rng, 1e-9, 3 * STEP_SECONDS)
    diagnosis = Diagnosis(
        device_samples_s=maybe(rng, 1.0, 100 * THROUGHPUT),
        loader_samples_s=maybe(rng, 1.0, 100 * THROUGHPUT),
        half_step_s=maybe(rng, 1e-9, 2 * (step or 1.0)),
        full_step_s=step,
        blocked_s=maybe(rng, 0.0, 2 * STEP_SECONDS),
        busy_s=maybe(rng, 0.0, 2 * STEP_SECONDS),
        issue_s=maybe(rng, 0.0, 2 * STEP_SECONDS),
        sync_places=rng.choice([None, (), ("net.py:12",)]),
        fits_device=rng.choice([None, False, True]),
        native_bf16=rng.choice([None, False, True]),
        usable_cpus=rng.choice([1, 2, 64]),
    )
    return dataclasses.replace(
        base,
        diagnosis=rng.choice([None, diagnosis, diagnosis, diagnosis]),
        reported_by=rng.choice(["", "", "torch"]),
    )


@pytest.fixture(scope="module")
def anything() -> list[Measurement]:
    rng = random.Random(0)
    return [any_measurement(rng) for _ in range(2000)]


def test_shares_are_shares(anything: list[Measurement]):
    not_shares = {"step_s", "device_rate", "loader_rate"}
    odd = set()
    for found in anything:
        signals = signals_of(found)
        for each in dataclasses.fields(Signals):
            value = getattr(signals, each.name)
            if isinstance(value, float) and each.name not in not_shares and not 0 <= value <= 1 + 1e-9:
                odd.add(each.name)
    assert odd == set()


ODD = re.compile(r"nan|inf\b|None|\d(e|E)|-\d")
"""What no number for a person looks like."""


def test_of_anything_there_is_a_verdict_that_can_be_printed(anything: list[Measurement]):
    configs = [TrialConfig().replace({"loader.kind": kind}) for kind in ("rows", "workers", "stream")]
    kinds = set()
    for number, found in enumerate(anything):
        verdict = verdict_of(found, configs[number % 3])
        kinds.add(verdict.kind)
        no_share = (Bottleneck.INCONCLUSIVE, Bottleneck.UNCLEAR)
        assert (verdict.share is None) == (verdict.kind in no_share)
        assert verdict.share is None or verdict.share >= MIN_COST
        assert verdict.why
        assert bool(verdict.next) == (verdict.kind is not Bottleneck.INCONCLUSIVE)
        assert not ODD.search(f"{verdict.why} {verdict.next}"), verdict
    assert kinds == set(Bottleneck)


def test_no_verdict_takes_more_than_the_step(anything: list[Measurement]):
    shares = [verdict_of(found, TrialConfig()).share or 0.0 for found in anything]
    assert max(shares) <= 1 + 1e-9


def test_the_parts_of_a_step_as_signals():
    found = signals_of(
        measurement(
            data=0.1,
            h2d=0.2,
            gap=0.1,
            fixed=0.25,
            blocked=0.05,
            faults=0.3,
            telemetry={"cpu_util_pct": 80.0},
            device_samples_s=9.0,
        )
    )
    assert found.step_s == pytest.approx(STEP_SECONDS)
    assert [found.wait, found.transfer, found.compute] == pytest.approx([0.1, 0.2, 0.6])
    assert [found.fixed, found.blocked, found.faults, found.cpu] == pytest.approx(
        [0.25, 0.05, 0.3, 0.8], rel=1e-3
    )
    assert (found.on_gpu, found.device_rate, found.memory) == (False, 9.0, None)
    gpu = signals_of(measurement(gpu=True, memory=0.5, idle=0.4, issue=0.7, faults=0.3))
    assert (gpu.on_gpu, gpu.memory, gpu.idle, gpu.host_paced) == (True, 0.5, pytest.approx(0.4), True)
    assert gpu.faults is None
