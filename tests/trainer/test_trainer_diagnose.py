"""What the parts of a step do on their own: of small trainings on a CPU, and of a make-believe GPU."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import statistics
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from pace import undisturbed
from parts import bottlenecks
from test_trainer_graph import Fake
from torch import nn
from trainer_cuda import CUDA, FakeCuda

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Bottleneck, Diagnosis
from sweeper.core.progress import SilentProgress
from sweeper.results.verdict.bottleneck import verdict_of
from sweeper.system.process import children
from sweeper.trainer import measure, prepare
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.protocol import LoadedBatch
from sweeper.trainer.pipeline import Pipeline, Samples
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.group import Group
from sweeper.trainer.step.stepper import Stepper
from sweeper.trainer.timing import diagnose as under_test
from sweeper.trainer.timing.diagnose import diagnose
from sweeper.trainer.timing.step_timer import StepTimer

ALONE = Group.start(1, lambda *_: None)
CPU = torch.device("cpu")
ROWS = 1000


def training(
    asked: dict[str, Any] | None = None,
    *,
    width: int = 32,
    sleep: float = 0.0,
    row_sleep: float = 0.0,
    rows: int = ROWS,
) -> tuple[StepTimer, Samples]:
    """A loader and a step: `sleep` seconds of it in the loss, `row_sleep` for each row that is read."""
    config = TrialConfig().replace({"device.cpu_threads": 1, **(asked or {})})
    torch.manual_seed(0)
    tensors = {"x": torch.randn(rows, width), "y": torch.randn(rows)}

    def row(i: int) -> dict[str, torch.Tensor]:
        time.sleep(row_sleep)
        return {name: tensor[i] for name, tensor in tensors.items()}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if sleep:
            time.sleep(sleep)
        return nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])

    samples = Samples(tensors=tensors, length=rows, row=row)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    stepper = Stepper(Pipeline(model=model, train=samples, val=samples, loss=loss), config, CPU)
    loader = make_loader(samples, config.loader, config.batch_size, 0, CPU)
    loader.start()
    return StepTimer(stepper, loader, ALONE), samples


# -- trainings whose bottleneck is known ----------------------------------------------------------------


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(
        uid="k",
        pipeline=bottlenecks.__name__,
        prepared=str(tmp_path_factory.mktemp("known") / "data"),
        plan=MeasurePlan(window_seconds=0.2, repeats=1, warmup_cap_seconds=0.2),
    )
    prepare.run(job, SilentProgress())
    return job


@pytest.fixture
def no_child_is_left() -> Iterator[None]:
    before = set(children(os.getpid()))
    yield
    for pid in set(children(os.getpid())) - before:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def batch_of_arithmetic(known: Job) -> int:
    """The batch of `compute` from which on this processor does little else in a step, optimiser included."""
    config = TrialConfig().replace({"model.kind": "compute"})
    pipeline = bottlenecks.build(config, prepare.load(known))
    optimizer = torch.optim.AdamW(pipeline.model.parameters())

    def seconds(rows: int) -> float:
        batch = pipeline.train.gather(pipeline.train.tensors, torch.arange(rows))
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            optimizer.zero_grad()
            pipeline.loss(pipeline.model, batch).backward()
            optimizer.step()
            taken.append(time.perf_counter() - began)
        return min(taken)

    for rows in (1024, 2048, 4096, 8192):
        half, whole = seconds(rows // 2), seconds(rows)
        # What half of the batch does not halve; from a fifth on it would be the verdict.
        if 2 * half - whole < 0.1 * whole:
            break
    return rows


@pytest.mark.alone
@pytest.mark.usefixtures("no_child_is_left")
@pytest.mark.parametrize(
    ("kind", "asked", "bottleneck"),
    [
        ("input", {"loader.kind": "rows"}, Bottleneck.INPUT),
        pytest.param("compute", {}, Bottleneck.COMPUTE, marks=pytest.mark.slow),
        ("sync", {}, Bottleneck.SYNC),
    ],
)
@undisturbed
def test_a_bottleneck_that_is_known_is_named(known: Job, kind: str, asked: dict, bottleneck: Bottleneck):
    config = TrialConfig().replace({"model.kind": kind, "device.cpu_threads": 1, **asked})
    if kind == "compute":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        config = config.replace({"batch_size": batch_of_arithmetic(known)})
        torch.set_num_threads(threads)
    found = measure.run(dataclasses.replace(known, config=config), SilentProgress())
    verdict = verdict_of(found, config)
    if verdict.kind is not bottleneck and found.contamination:
        pytest.skip(f"this machine is busy: {', '.join(found.contamination)}")
    assert verdict.kind is bottleneck, verdict
    alone = found.diagnosis
    assert alone is not None
    # A row takes 0.1 ms to decode, an answer of the other process 4 ms.
    assert (alone.loader_samples_s < 0.5 * alone.device_samples_s) == (kind == "input")
    assert (alone.blocked_s > 3e-3) == (kind == "sync")
    assert alone.device_samples_s > 0.5 * found.throughput
    if kind == "input":
        assert alone.loader_samples_s < 1.1e4
        assert 5e-5 < alone.sample_cpu_s < 1e-3
        assert verdict.changes == {"loader.kind": "resident"}


# -- each part ------------------------------------------------------------------------------------------


@pytest.mark.alone
@undisturbed
def test_a_step_that_sleeps_is_blocked_and_one_that_computes_is_not():
    sleeping, _ = training(sleep=4e-3)
    assert 3e-3 < under_test._blocked_seconds(sleeping) < 8e-3
    computing, _ = training({"batch_size": 1000}, width=256)
    found = computing.stretch(NoClock(), 0.05, 0.1)
    assert under_test._blocked_seconds(computing) < 0.3 * found.seconds / found.steps


@undisturbed
def test_what_the_loader_waits_for_does_not_block_the_step():
    timer, samples = training({"loader.kind": "rows", "batch_size": 4}, row_sleep=1e-3)
    found = diagnose(timer, samples, 1e-3)
    assert found.blocked_s < 1e-3
    assert found.loader_samples_s < 1e3 < found.device_samples_s
    assert found.sample_cpu_s < 5e-4
    assert found.loader_busy < 0.5


def test_what_a_core_was_lacking_for_is_no_blocking(monkeypatch):
    told = iter([{1: 1.0, 2: 0.0}, {1: 9.0, 2: 0.1}])
    monkeypatch.setattr(under_test, "waits", lambda pid: next(told))
    timer, _ = training(sleep=4e-3)
    assert under_test._blocked_seconds(timer) == 0.0


@undisturbed
def test_threads_that_wait_for_cores_at_the_same_time_wait_once(monkeypatch):
    """Of a tenth of a second in which the step sleeps, and four threads want a core for a third."""
    told = itertools.cycle([dict.fromkeys(range(4), 5.0), dict.fromkeys(range(4), 5.033)])
    monkeypatch.setattr(under_test, "waits", lambda pid: next(told))
    timer, _ = training(sleep=4e-3)
    assert 1e-3 < under_test._blocked_seconds(timer) < 4e-3


@pytest.mark.alone
@undisturbed
def test_what_does_not_depend_on_the_batch_weighs_less_in_a_large_one():
    def fixed(batch_size: int) -> float:
        timer, _ = training({"batch_size": batch_size}, width=128, rows=8192)
        handed = under_test._load_alone(timer.loader, CPU).loaded
        halves = under_test._half_of(handed)
        assert (halves.size, len(halves.batch["x"])) == (batch_size // 2, batch_size // 2)
        full, half = under_test._alternate(
            *(under_test._step_on(timer.stepper, timer.loader, each) for each in (handed, halves))
        )
        if full is None:
            pytest.skip("this machine is busy")
        return 2 * half / full - 1

    # Of three: a neighbour that takes the core for a moment makes one of them mean nothing.
    small, large = (statistics.median(fixed(size) for _ in range(3)) for size in (8, 8192))
    assert small > 0.6
    assert large < 0.4


def test_the_largest_batch_that_the_loader_hands_over_is_trained_on():
    timer, _ = training({"batch_size": 600, "loader.drop_last": False})
    handed = under_test._load_alone(timer.loader, CPU).loaded
    assert (handed.size, len(handed.batch["x"])) == (600, 600)


class Ready:
    """A loader with some batches in its queues; each further one takes a while."""

    drain_steps, period_steps = 40, 1
    num_shapes = 1

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self.batch = {"x": torch.zeros(10, 1)}

    def next(self) -> LoadedBatch:
        if self.ready:
            self.ready -= 1
        else:
            time.sleep(2e-3)
        return LoadedBatch(self.batch, 10, 0)

    def to_device(self, batch):
        return batch


def test_what_was_ready_is_not_what_a_loader_can_keep_up():
    rate = under_test._load_alone(Ready(40), CPU).rate
    assert 1e3 < rate < 5e3


def test_draining_has_an_end(monkeypatch):
    monkeypatch.setattr(under_test, "DRAIN_SECONDS", 0.01)
    slow = Ready(0)
    slow.drain_steps = 10**9
    assert under_test._load_alone(slow, CPU).rate > 0


def test_a_step_on_its_own_batch_needs_no_loader(monkeypatch):
    timer, _ = training({"loader.kind": "rows"}, row_sleep=1e-4)
    handed = under_test._load_alone(timer.loader, CPU).loaded
    monkeypatch.setattr(timer.loader, "next", pytest.fail)
    before = timer.stepper.micro_steps
    step = under_test._step_on(timer.stepper, timer.loader, handed)
    step()
    assert timer.stepper.micro_steps == before + 1


def test_a_captured_step_is_replayed_and_not_halved():
    timer, samples = training({"compile.mode": "graph"})
    capture = Fake()
    timer.loader = make_loader(samples, TrialConfig().loader, 64, 0, CPU, index_only=True)
    timer.stepper.capture(timer.loader, capture)
    timer.loader.start()
    timer.warm_up(0.2)
    replayed = capture.replayed
    found = diagnose(timer, samples, 1e-3)
    assert capture.replayed > replayed + 2
    assert found.device_samples_s > 0
    assert found.loader_samples_s > 0
    assert (found.half_step_s, found.full_step_s) == (None, None)


@pytest.mark.parametrize(
    ("waited", "halves"),
    [
        ([0.0] * 12, True),
        # All turns of one of the two, or only some.
        ([0.0, 9.0, 0.0, 0.0] * 3, False),
        ([0.0, 9.0, 0.0, 9.0, *[0.0] * 8], True),
        ([None] * 12, True),
    ],
    ids=["quiet", "busy", "busy at first", "not told"],
)
def test_turns_that_waited_for_a_core_do_not_count(monkeypatch, waited: list, halves: bool):
    told = iter(waited)
    monkeypatch.setattr(under_test, "waited_seconds", lambda pid: next(told))
    monkeypatch.setattr(under_test, "PART_SECONDS", 0.006)
    taken = []
    full, half = under_test._alternate(lambda: taken.append(time.sleep(2e-3)), lambda: taken.append(None))
    assert (full is not None, half is not None) == (halves, halves)
    if halves:
        assert full >= 2e-3
        assert half < full


def test_of_shapes_that_differ_one_batch_says_nothing():
    timer, samples = training()
    timer.loader.num_shapes = 2
    found = diagnose(timer, samples, 1e-3)
    assert (found.device_samples_s, found.half_step_s, found.full_step_s) == (None, None, None)
    assert found.loader_samples_s > 0


COMPILERS = {
    "compiled": lambda model, **options: nn.Sequential(model),
    "compiled in place": lambda model, **options: model,
}


@pytest.mark.parametrize("why", [*COMPILERS, "one sample, no memory for two"])
def test_what_cannot_be_halved_is_not(monkeypatch, why: str):
    if why in COMPILERS:
        monkeypatch.setattr(torch, "compile", COMPILERS[why])
        timer, samples = training({"compile.mode": "default"})
    else:
        timer, samples = training({"batch_size": 1})
        monkeypatch.setattr(
            under_test.psutil, "virtual_memory", lambda: SimpleNamespace(available=1, total=2**34)
        )
        monkeypatch.setattr(under_test, "_fits", lambda *_: False)
    found = diagnose(timer, samples, 1e-3)
    assert (found.half_step_s, found.full_step_s) == (None, None)
    assert found.device_samples_s > 0


@undisturbed
def test_a_batch_of_one_is_compared_with_two():
    timer, samples = training({"batch_size": 1})
    sizes, train = [], timer.stepper.train_through
    timer.stepper.train_through = lambda batch, *rest: (sizes.append(len(batch["x"])), train(batch, *rest))[1]
    found = diagnose(timer, samples, 1e-3)
    assert set(sizes) == {1, 2}
    assert found.full_step_s
    # Two such samples take hardly longer than one: nearly all of a step is calls.
    assert 0.6 * found.full_step_s < found.half_step_s <= found.full_step_s * 1.2


def test_half_a_batch_of_one_is_extrapolated():
    one = under_test.LoadedBatch({}, 1, 0)
    assert under_test._half_seconds(one, 1.0, 1.2) == pytest.approx(0.9)
    assert under_test._half_seconds(one, None, None) is None
    assert under_test._half_seconds(under_test.LoadedBatch({}, 3, 0), 1.0, 1.2) == pytest.approx(0.9)
    assert under_test._half_seconds(under_test.LoadedBatch({}, 4, 0), 1.0, 0.7) == 0.7


def test_no_batch_is_halved_to_one_sample():
    # In training, batch normalisation takes no batch of one.
    timer, samples = training({"batch_size": 3})
    timer.stepper.model.insert(1, nn.BatchNorm1d(32))
    sizes, train = set(), timer.stepper.train_through
    timer.stepper.train_through = lambda batch, *rest: (sizes.add(len(batch["x"])), train(batch, *rest))[1]
    assert diagnose(timer, samples, 1e-3).device_samples_s > 0
    assert sizes == {3, 6}


def test_of_several_ranks_only_what_all_of_them_take_part_in():
    timer, samples = training()
    led = []
    timer.group = SimpleNamespace(size=2, step_followers=lambda: led.append(timer.stepper.micro_steps))
    found = diagnose(timer, samples, 1e-3)
    # No step without the others.
    assert led == list(range(timer.stepper.micro_steps))
    assert led
    assert found == Diagnosis(
        blocked_s=found.blocked_s,
        fits_device=True,
        native_bf16=found.native_bf16,
        usable_cpus=found.usable_cpus,
    )
    assert found.blocked_s is not None
    assert found.usable_cpus >= 1


@pytest.mark.parametrize(("free", "fits"), [(1.26, True), (1.24, False)])
def test_data_fits_into_four_fifths_of_what_is_free(monkeypatch, free: float, fits: bool):
    _, samples = training()
    available = round(free * samples.nbytes)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    assert under_test._fits(samples, CPU, 0.0) is fits


class Table:
    def __len__(self) -> int:
        return ROWS

    def read(self, index):
        return {"x": torch.zeros(len(index), 1)}


def test_data_of_a_source_does_not_fit_however_small():
    samples = Samples.of(Table(), torch.arange(ROWS))
    assert under_test._fits(samples, CPU, 0.0) is False


@pytest.mark.parametrize(
    ("lacks", "native"), [({"precision.amp=bf16": "no"}, False), ({"precision.amp=fp16": "no"}, True)]
)
def test_bf16_is_native_where_the_device_lacks_it_not(monkeypatch, lacks: dict, native: bool):
    monkeypatch.setattr(under_test, "lacks", lambda info: lacks)
    monkeypatch.setattr(under_test, "_blocked_seconds", lambda _: 0.0)
    timer, samples = training()
    timer.group = SimpleNamespace(size=2)
    assert diagnose(timer, samples, 1e-3).native_bf16 is native


# -- a make-believe GPU ---------------------------------------------------------------------------------

SAMPLES = Samples(tensors={"x": torch.zeros(64, 1)}, length=64)
BATCH = 64


class Gpu(FakeCuda):
    """Trains on it, from a loader whose batch takes the host 2 ms; a third of the work is any batch's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: float, device: float) -> None:
        super().__init__(monkeypatch, host, device)
        monkeypatch.setattr(under_test, "time", self.clock)
        self.whole_seconds, self.waiting = device, False

    def train(self, batch: dict[str, torch.Tensor] | None = None, *_: Any) -> None:
        size = BATCH if batch is None else len(batch["x"])
        self.device_seconds = self.whole_seconds * (1 + 2 * size / BATCH) / 3
        super().train()
        if self.waiting:
            self.wait()

    def replay(self, handed: LoadedBatch) -> None:
        self.train(handed.batch)

    def step(self, *_: Any) -> int:
        self.train()
        return BATCH

    def timer(self, **more: Any) -> StepTimer:
        config = TrialConfig().replace({"accumulate_steps": 2})
        options = {"config": config, "captured": None, "compiles": False, **more}
        stepper = SimpleNamespace(
            device=CUDA, step=self.step, train_batch=self.train, replay=self.replay, **options
        )
        batch = {"x": torch.zeros(BATCH, 1)}

        def hand() -> LoadedBatch:
            self.launch(2e-3, 0.0)
            return LoadedBatch(batch, BATCH, 0)

        loader = SimpleNamespace(
            drain_steps=1,
            period_steps=1,
            num_shapes=1,
            next=hand,
            to_device=lambda batch: batch,
            materialise=lambda batch, length: batch,
        )
        return StepTimer(stepper, loader, ALONE)


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "sync_places", lambda step: ())


@pytest.mark.usefixtures("no_places")
@pytest.mark.parametrize(("host", "device"), [(1e-3, 3e-3), (5e-3, 1e-3)], ids=["ahead", "behind"])
def test_the_devices_time_and_the_hosts_are_told_apart(monkeypatch, host: float, device: float):
    cuda = Gpu(monkeypatch, host, device)
    found = diagnose(cuda.timer(), SAMPLES, 1e-3)
    assert (found.issue_s, found.busy_s) == (pytest.approx(host), pytest.approx(device))
    assert found.device_samples_s == pytest.approx(BATCH / max(host, device), rel=0.1)
    assert found.loader_samples_s == pytest.approx(BATCH / 2e-3)
    # Half of a batch is two thirds of the work, and that is the device's alone.
    assert (found.full_step_s, found.half_step_s) == (found.busy_s, pytest.approx(2 / 3 * device))
    assert (found.blocked_s, found.sync_places) == (None, ())
    assert (found.fits_device, found.native_bf16) == (True, True)


@pytest.mark.usefixtures("no_places")
def test_half_a_batch_has_been_trained_on_before_it_is_timed(monkeypatch):
    # As where cuDNN tries its algorithms for each new size: the host waits for them.
    cuda = Gpu(monkeypatch, 1e-3, 3e-3)
    seen, train = set(), cuda.train

    def tries_first(batch: dict[str, torch.Tensor] | None = None, *rest: Any) -> None:
        train(batch, *rest)
        if batch is not None and len(batch["x"]) not in seen:
            seen.add(len(batch["x"]))
            cuda.wait()

    monkeypatch.setattr(cuda, "train", tries_first)
    found = diagnose(cuda.timer(), SAMPLES, 1e-3)
    assert seen == {BATCH, BATCH // 2}
    assert (found.full_step_s, found.half_step_s) == (pytest.approx(3e-3), pytest.approx(2e-3))


@pytest.mark.usefixtures("no_places")
def test_a_compiled_or_captured_step_is_not_halved_on_a_gpu_either(monkeypatch):
    for kind in ({"compiles": True}, {"captured": object()}):
        cuda = Gpu(monkeypatch, 1e-3, 3e-3)
        found = diagnose(cuda.timer(**kind), SAMPLES, 1e-3)
        assert found.busy_s == pytest.approx(3e-3)
        assert found.half_step_s is None


def test_a_captured_step_is_not_looked_at_for_waits(monkeypatch):
    monkeypatch.setattr(under_test, "sync_places", pytest.fail)
    cuda = Gpu(monkeypatch, 1e-3, 3e-3)
    assert diagnose(cuda.timer(captured=object()), SAMPLES, 1e-3).sync_places == ()


def test_of_a_step_that_waits_for_the_device_the_profiler_says_how_long_it_works(monkeypatch):
    cuda = Gpu(monkeypatch, 1e-3, 3e-3)
    cuda.waiting = True
    asked = []
    monkeypatch.setattr(under_test, "sync_places", lambda step: asked.append(step()) or ("net.py:12",))
    monkeypatch.setattr(under_test, "kernel_seconds", lambda step, device, steps_per_update: 2.5e-3)
    found = diagnose(cuda.timer(), SAMPLES, 1e-3)
    assert (found.busy_s, found.issue_s, found.sync_places) == (2.5e-3, None, ("net.py:12",))
    # Asked of the trial's own steps, its loader and all.
    assert asked == [BATCH]


@pytest.mark.usefixtures("no_places")
@pytest.mark.parametrize(("kernels", "paced_by_host"), [(1e-3, True), (5e-3, False)])
def test_of_a_step_that_fills_the_launch_queue_the_profiler_says_who_sets_the_pace(
    monkeypatch, kernels: float, paced_by_host: bool
):
    cuda = Gpu(monkeypatch, 4e-3, kernels)
    # Less than a turn of two steps fits into it behind the hold, so that the host waits for the hold's end.
    cuda.queue_seconds = 4.5e-3
    asked = []
    monkeypatch.setattr(
        under_test,
        "kernel_seconds",
        lambda step, device, steps_per_update: asked.append(steps_per_update) or kernels,
    )
    found = diagnose(cuda.timer(), SAMPLES, 4e-3)
    # Of whole updates: the optimizer steps after two.
    assert (found.busy_s, asked) == (kernels, [2])
    alone = BATCH / found.device_samples_s
    assert found.issue_s == pytest.approx(alone)
    # Where the device sets the pace, it is hardly ever idle.
    assert (1 - found.busy_s / found.issue_s > 0.5) == paced_by_host
    assert paced_by_host or 1 - found.busy_s / found.issue_s < 0.05


@pytest.mark.usefixtures("no_places")
def test_what_not_even_the_profiler_sees_is_not_known(monkeypatch):
    cuda = Gpu(monkeypatch, 1e-3, 3e-3)
    cuda.waiting = True
    monkeypatch.setattr(under_test, "kernel_seconds", lambda step, device, steps_per_update: None)
    found = diagnose(cuda.timer(), SAMPLES, 1e-3)
    assert (found.busy_s, found.issue_s, found.full_step_s, found.half_step_s) == (None,) * 4


@pytest.mark.parametrize(
    ("free", "total", "fraction", "reserved", "fits"),
    [
        (101, 200, 0.0, 0, True),
        (99, 200, 0.0, 0, False),
        (199, 124, 0.0, 0, False),
        (199, 126, 0.0, 0, True),
        # Beside what the trial has already of what it may take.
        (199, 200, 0.75, 49, True),
        (199, 200, 0.75, 51, False),
    ],
)
def test_data_fits_beside_what_is_on_the_device(
    monkeypatch, free: int, total: int, fraction: float, reserved: int, fits: bool
):
    samples = SimpleNamespace(on_host=False, nbytes=100)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    assert under_test._fits(samples, CUDA, fraction) is fits
