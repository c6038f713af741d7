"""Every job of the trainer on a strict stand-in for CUDA, each from an uninitialised state."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import strict_cuda
import torch
import torch.distributed as dist
from strict_cuda import NAME, UUID, OnCuda, StrictCuda

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.loaders import BUILTIN
from sweeper.core.measurement import Diagnosis, FailureKind, Measurement
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.core.training import Training
from sweeper.script.changes.environment import ALLOCATOR
from sweeper.script.changes.recurrent import NAMES, NOTE
from sweeper.trainer import ceilings, measure, preflight, prepare, probe, production, quality
from sweeper.trainer import device as devices
from sweeper.trainer import trace as tracing
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.resident import BatchReader
from sweeper.trainer.pipeline import Samples
from sweeper.trainer.setup import set_up
from sweeper.trainer.step import group
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.graph import EAGER_STEPS
from sweeper.trainer.timing import gpu_time

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.usefixtures("quiet", "flags_as_they_come"),
]
HERE = str(Path(__file__).parent)
GPU = torch.device("cuda", 0)


@pytest.fixture
def flags_as_they_come() -> Iterator[None]:
    """Puts back what holds for the whole process."""
    benchmark, visible = torch.backends.cudnn.benchmark, os.environ.get("CUDA_VISIBLE_DEVICES")
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = benchmark
    devices._refused.clear()
    if visible is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


@pytest.fixture
def cuda() -> Iterator[StrictCuda]:
    with StrictCuda() as cuda:
        yield cuda


@pytest.fixture
def on_gpu(cuda: StrictCuda, make_job: Callable[..., Job]) -> Callable[..., Job]:
    def make(config: dict[str, Any] | None = None, **plan: Any) -> Job:
        asked = {"model.hidden": 16, **(config or {})}
        return dataclasses.replace(make_job(asked, **plan), device=f"GPU-{UUID}")

    return make


# -- whole jobs -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"loader.kind": "stream"},
        {"loader.kind": "rows"},
        {"loader.kind": "workers", "loader.num_workers": 1, "loader.pin_memory": True},
        {"precision.amp": "fp16"},
        {"precision.amp": "bf16", "device.memory_fraction": 0.5},
        {"optimizer.name": "sgd", "accumulate_steps": 2, "precision.tf32": True},
        {"compile.mode": "graph"},
        {"compile.mode": "graph", "loader.kind": "stream", "precision.amp": "fp16", "accumulate_steps": 2},
        {"compile.mode": "graph", "model.kind": "lstm", "compile.cudnn_benchmark": True},
    ],
    ids=lambda config: " ".join(f"{name}={value}" for name, value in config.items()) or "plain",
)
def test_a_trial(on_gpu: Callable[..., Job], config: dict[str, Any]):
    result = measure.run(on_gpu(config, diagnose=True, quality_samples=1000), SilentProgress())
    assert isinstance(result, Measurement)
    assert (result.device.kind, result.device.name, result.device.capability) == ("cuda", NAME, "8.6")
    assert result.gpu_mem_peak_gib is not None
    assert result.effective == {}
    assert result.quality is not None
    assert result.diagnosis is not None
    assert result.diagnosis.busy_s is not None
    assert (result.breakdown.graph_s > 0) == (config.get("compile.mode") == "graph")


def test_recurrent_layers_leave_bf16_and_the_trial_says_so(
    on_gpu: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
):
    for name in NAMES:
        kind = getattr(torch.nn, name)
        monkeypatch.setattr(kind, "forward", kind.forward)
    usual = torch.nn.LSTM.forward
    for amp, model, notes in (
        ("fp16", "lstm", {}),
        ("bf16", "mlp", {}),
        ("bf16", "lstm", {"precision.amp": f"bf16: {NOTE}"}),
    ):
        _, stepper, _ = set_up(on_gpu({"precision.amp": amp, "model.kind": model}), SilentProgress())
        assert stepper.refused == notes
        assert (torch.nn.LSTM.forward is usual) is not bool(notes)


def test_a_timed_step_of_data_on_the_device_waits_for_nothing(cuda: StrictCuda, on_gpu: Callable[..., Job]):
    for mode in ("eager", "graph"):
        pipeline, stepper, _ = set_up(on_gpu({"compile.mode": mode}), SilentProgress())
        loader = make_loader(
            pipeline.train, stepper.config.loader, 100, 0, stepper.device, index_only=mode == "graph"
        )
        if mode == "graph":
            stepper.capture(loader)
        loader.start()
        for _ in range(6):
            stepper.step(loader, NoClock())
        before = cuda.syncs
        for _ in range(50):
            stepper.step(loader, NoClock())
        assert cuda.syncs == before
        loader.close()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_captured_step_trains_as_an_eager_one(on_gpu: Callable[..., Job], optimizer: str, accumulate: int):
    found = []
    for mode in ("eager", "graph"):
        config = {
            "compile.mode": mode,
            "optimizer.name": optimizer,
            "optimizer.warmup_steps": 10,
            "optimizer.clip_norm": 1.0,
            "accumulate_steps": accumulate,
        }
        pipeline, stepper, _ = set_up(on_gpu(config), SilentProgress())
        loader = make_loader(
            pipeline.train, stepper.config.loader, 100, 0, stepper.device, index_only=mode == "graph"
        )
        if mode == "graph":
            stepper.capture(loader)
        loader.start()
        losses = []
        for _ in range(30):
            stepper.step(loader, NoClock())
            losses.append(stepper.last_loss.item())
        loader.close()
        assert stepper.captured is None or stepper.captured.num_graphs == accumulate
        found.append(losses)
    eager, captured = found
    assert captured == pytest.approx(eager, rel=1e-4)
    assert captured[-1] < captured[0]


def test_the_probe(cuda: StrictCuda):
    values = probe.run(Job(uid="p", device="auto"), SilentProgress()).values
    assert [each["name"] for each in values["devices"]] == [NAME]
    assert values["devices"][0]["uuid"] == f"GPU-{UUID}"


def test_the_probe_counts_as_cuda_does(cuda: StrictCuda, monkeypatch):
    # NVML lists all GPUs that are split into instances; CUDA uses one instance of one of them.
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 8)
    values = probe.run(Job(uid="p", device="auto"), SilentProgress()).values
    assert [each["name"] for each in values["devices"]] == [NAME]


@pytest.mark.parametrize("kind", BUILTIN)
def test_the_preflight_captures_a_step(on_gpu: Callable[..., Job], monkeypatch, kind: str):
    replayed: list[object] = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (replayed.append(self), replay(self))[1])
    preflight.run(on_gpu({"loader.kind": kind, "precision.amp": "bf16"}), SilentProgress())
    assert not replayed
    preflight.run(on_gpu({"loader.kind": kind, "compile.mode": "graph"}), SilentProgress())
    assert len(replayed) >= 2


def test_what_doctor_measures(cuda: StrictCuda, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 8)
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)
    monkeypatch.setattr(ceilings, "MIB", 2**12)
    monkeypatch.setattr(ceilings, "GIB", 2**22)
    monkeypatch.setattr(
        ceilings, "matmul", lambda name, size, device="cpu", wait=lambda: None: (wait(), 1e12)[1]
    )
    monkeypatch.setattr(ceilings, "_compilation", lambda job, device: {"problem": ""})
    monkeypatch.setattr(
        ceilings, "_host_tensor", lambda num_bytes, pinned: _pinned(torch.ones(num_bytes), pinned)
    )
    values = ceilings.run(Job(uid="c", device="auto", cache=str(tmp_path)), SilentProgress()).values
    assert values["torch"]["problem"] == ""
    (gpu,) = values["gpus"]
    assert (gpu["name"], gpu["problem"]) == (NAME, "")
    assert {"cuda:0.matmul_tf32", "cuda:0.copy_from_pinned", "cuda:0.small_kernels"} <= {
        each["name"] for each in values["ceilings"]
    }


def test_doctor_asks_nothing_of_cuda_where_the_driver_hangs(cuda: StrictCuda, monkeypatch):
    monkeypatch.setattr(ceilings, "_collect", lambda into, measured: "")
    monkeypatch.setattr(ceilings, "_compilation", lambda job, device: {"problem": "", "device": device.type})
    for name in ("is_available", "device_count", "init"):
        monkeypatch.setattr(torch.cuda, name, lambda: pytest.fail("asked"))
    values = ceilings.run(Job(uid="c", device="cpu"), SilentProgress()).values
    assert (values["gpus"], values["torch"]["problem"], values["torch"]["arch_list"]) == ([], "", [])
    assert values["compile"]["device"] == "cpu"


def _pinned(tensor: torch.Tensor, pinned: bool) -> torch.Tensor:
    tensor = tensor.to(torch.uint8)
    return tensor.pin_memory() if pinned else tensor


@pytest.mark.slow
def test_a_trace(on_gpu: Callable[..., Job], monkeypatch, tmp_path: Path):
    # There is no CUDA in this build's profiler.
    real = tracing.profile
    monkeypatch.setattr(tracing, "profile", lambda activities: real(activities=activities[:1]))
    job = dataclasses.replace(on_gpu(), trace=str(tmp_path / "trace.json.gz"))
    values = tracing.run(job, SilentProgress()).values
    assert values["steps"] == tracing.STEPS
    assert (tmp_path / "trace.json.gz").exists()


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_production_run_and_its_continuation(on_gpu: Callable[..., Job], tmp_path: Path, mode: str):
    plan = Training(folder=str(tmp_path), epochs=2, checkpoint_seconds=1e9)
    job = on_gpu({"compile.mode": mode, "model.dropout": 0.3})
    first = production.run(dataclasses.replace(job, training=plan), SilentProgress()).values
    more = dataclasses.replace(job, training=dataclasses.replace(plan, epochs=4))
    second = production.run(more, SilentProgress()).values
    assert (first["epochs"], second["epochs"]) == (2, 4)
    assert second["best_loss"] <= first["best_loss"]


ASKED = """
import importlib, torch
asked = []
for name in ("is_available", "device_count", "init", "current_device", "get_arch_list"):
    setattr(torch.cuda, name, lambda *_, name=name: asked.append(name))
torch.accelerator.is_available = lambda: asked.append("accelerator")
from sweeper.trainer import preload
preload.preload()
import sweeper.worker.trial
print(asked)
"""


@pytest.mark.slow
def test_the_server_asks_nothing_of_cuda_before_it_forks():
    """The driver would be initialised, and no trial that is forked could use it."""
    run = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_tests_for_a_gpu_pass_on_the_stand_in():
    """So that on the first day with a GPU it is not they that fail."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-o", "addopts=", "-n", "0", "-m", "gpu"),
            *("-p", "strict_cuda_plugin", "-p", "no:cacheprovider", f"{HERE}/test_trainer_gpu.py"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{Path(HERE).parent}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=Path(HERE).parents[1],
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert " skipped" not in run.stdout
    assert " passed" in run.stdout


# -- several ranks ----------------------------------------------------------------------------------------


@pytest.fixture
def nccl(monkeypatch, tmp_path: Path) -> Path:
    """NCCL over gloo: a communicator ends on all ranks at once, and on none alone.

    Returns the folder in which each rank that has left leaves a file.
    """
    begin, end = dist.init_process_group, dist.destroy_process_group

    def init(backend: str, **options: Any) -> None:
        assert backend == "nccl"
        assert torch.cuda.is_initialized()
        assert torch.cuda.current_device() == options["rank"]
        begin("gloo", **options)

    def destroy() -> None:
        (tmp_path / f"left-{dist.get_rank()}").touch()
        while len(list(tmp_path.glob("left-*"))) < dist.get_world_size():
            time.sleep(0.01)
        end()

    monkeypatch.setattr(dist, "init_process_group", init)
    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    return tmp_path


def test_ranks_leave_their_group_together(nccl: Path, make_job: Callable[..., Job], monkeypatch):
    monkeypatch.setattr(group, "CLOSE_SECONDS", 20.0)
    job = make_job({"device.count": 2, "loader.drop_last": True, "model.hidden": 16})
    with StrictCuda(num_devices=2):
        result = measure.run(dataclasses.replace(job, device="GPU-1,GPU-2"), SilentProgress())
    assert isinstance(result, Measurement)
    assert sorted(each.name for each in nccl.glob("left-*")) == ["left-0", "left-1"]
    assert not dist.is_initialized()


def test_a_rank_that_does_not_leave_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(group, "CLOSE_SECONDS", 0.3)
    stuck = threading.Event()
    monkeypatch.setattr(group, "leave", stuck.wait)
    # A follower that passes over the end of its orders.
    own = group.Group.start(2, lambda follower, orders: time.sleep(60))
    began = time.monotonic()
    own.close()
    assert time.monotonic() - began < 5
    stuck.set()


def test_a_follower_of_a_process_that_has_used_cuda_says_why(cuda: StrictCuda, capfd):
    torch.cuda.init()
    own = group.Group.start(2, lambda follower, orders: torch.cuda.init())
    os.waitpid(own._pids.pop(), 0)
    own.close()
    assert "Cannot re-initialize CUDA in forked subprocess" in capfd.readouterr().err


# -- settings ---------------------------------------------------------------------------------------------


def flags() -> tuple[object, ...]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return torch.get_float32_matmul_precision(), matmul.allow_tf32, cudnn.allow_tf32


@pytest.mark.parametrize("mode", ["eager", "max-autotune"])
@pytest.mark.parametrize(
    ("tf32", "expected"),
    [
        ("default", ("highest", False, True)),
        (False, ("highest", False, False)),
        (True, ("high", True, True)),
    ],
)
def test_tf32_is_as_torch_comes_unless_it_is_asked_for(cuda: StrictCuda, tf32, expected, mode: str):
    devices.apply(TrialConfig().replace({"precision.tf32": tf32, "compile.mode": mode}), GPU)
    assert flags() == expected
    # A user's double backward or CTC loss enters this; it raises where torch's flags contradict each other.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        pass
    assert flags() == expected


def test_a_setting_that_the_device_refuses_is_told_and_no_failure(
    cuda: StrictCuda, on_gpu: Callable[..., Job]
):
    cuda.refuses["memory_fraction"] = "not with this allocator\nand more lines"
    result = measure.run(on_gpu({"device.memory_fraction": 0.5}), SilentProgress())
    assert result.effective == {"device.memory_fraction": "refused by the device: not with this allocator"}


OLD, NEW = ALLOCATOR
LARGEST = "max_split_size_mb:64"
GROW = "expandable_segments:True"


@pytest.mark.parametrize(
    ("variables", "asked", "set_to", "note"),
    [
        ({}, False, [], None),
        ({}, True, [GROW], None),
        # torch sets all options anew with each call.
        ({OLD: LARGEST}, True, [f"{LARGEST},{GROW}"], None),
        ({NEW: LARGEST}, True, [f"{LARGEST},{GROW}"], None),
        ({OLD: LARGEST}, False, [], None),
        ({OLD: f"{GROW},{LARGEST}"}, False, [], f"true: {OLD} sets it"),
        ({NEW: "expandable_segments: False"}, True, [], f"false: {NEW} sets it"),
        ({OLD: GROW}, True, [], None),
        # torch reads one of the two.
        ({OLD: LARGEST, NEW: GROW}, False, [], None),
    ],
)
def test_the_users_options_of_the_allocator_stay(
    cuda: StrictCuda, monkeypatch, variables: dict[str, str], asked: bool, set_to: list[str], note: str | None
):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    seen: list[str] = []
    monkeypatch.setattr(devices, "_set_allocator_settings", seen.append)
    config = TrialConfig().replace({"device.expandable_segments": asked, "device.cpu_threads": 1})
    devices.apply(config, GPU)
    assert seen == set_to
    assert devices.ineffective_settings(config, GPU).get("device.expandable_segments") == note


@pytest.mark.parametrize(
    ("nodes", "quota", "threads"),
    [((0, 1), 16, 8), ((1, 1), 16, 4), ((0, 1), 4, 2)],
    ids=["a node each", "one node", "a quota for both"],
)
def test_ranks_share_the_cores_of_their_node(monkeypatch, nodes: tuple[int, int], quota: int, threads: int):
    among = {0: frozenset(range(8)), 1: frozenset(range(8, 16))}
    mine, asked = set(range(16)), []
    monkeypatch.setattr(devices.numa, "nodes", lambda: among)
    monkeypatch.setattr(devices.numa, "node_of_gpu", lambda bus_id: nodes[int(bus_id.split(":")[1], 16)])
    monkeypatch.setattr(devices.numa, "bind", lambda node, among: mine.intersection_update(among[node]))
    monkeypatch.setattr(devices, "usable_cpus", lambda: min(quota, len(mine)))
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    config = TrialConfig().replace({"device.numa": "near", "device.count": 2})
    with StrictCuda(num_devices=2):
        devices.apply(config, torch.device("cuda", 1))
    assert mine == among[nodes[1]]
    assert asked == [threads]


@pytest.mark.parametrize("node", [1, 2], ids=["cores of others", "no cores"])
def test_a_gpu_whose_node_has_no_usable_core_says_so(cuda: StrictCuda, monkeypatch, node: int):
    here = frozenset(os.sched_getaffinity(0))
    monkeypatch.setattr(devices.numa, "nodes", lambda: {0: here, 1: frozenset([100_000])})
    monkeypatch.setattr(devices.numa, "node_of_gpu", lambda bus_id: node)
    config = TrialConfig().replace({"device.numa": "near", "device.cpu_threads": 1})
    devices.apply(config, GPU)
    found = devices.ineffective_settings(config, GPU)
    assert found["device.numa"] == f"without effect: this process may use no core of node {node}"
    assert os.sched_getaffinity(0) == here


def test_a_device_that_is_gone_is_no_refused_setting(cuda: StrictCuda, monkeypatch):
    def lost() -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch._C, "_cuda_init", lost)
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        devices.apply(TrialConfig(), GPU)


# -- memory -----------------------------------------------------------------------------------------------


def test_the_copy_of_the_weights_for_the_quality_pass_is_not_on_the_device(on_gpu: Callable[..., Job]):
    _, stepper, _ = set_up(on_gpu(), SilentProgress())
    assert {value.device.type for value in stepper.initial.values()} == {"cpu"}
    assert {parameter.device.type for parameter in stepper.parameters} == {"cuda"}
    with torch.no_grad():
        stepper.parameters[0].add_(1.0)
    stepper.reset()
    name, first = next(iter(stepper.initial.items()))
    assert torch.equal(stepper.model.state_dict()[name].cpu(), first)


@pytest.mark.parametrize(("fraction", "resident"), [(0.0, True), (0.5, True), (0.1, False)])
def test_a_reader_keeps_to_the_share_of_memory(cuda: StrictCuda, fraction: float, resident: bool):
    torch.cuda.init()
    # 0.4 of what is left of the share of 3 GiB is to hold them.
    samples = Samples(tensors={"x": torch.zeros(2**20, 32)}, length=2**20)
    assert BatchReader(samples, GPU, fraction).resident is resident


def test_a_quality_pass_keeps_to_the_share_of_memory(on_gpu: Callable[..., Job], monkeypatch):
    shares = []

    class Watched(BatchReader):
        def __init__(self, *arguments: Any) -> None:
            shares.append(arguments[2])
            super().__init__(*arguments)

    monkeypatch.setattr(quality, "BatchReader", Watched)
    measure.run(on_gpu({"device.memory_fraction": 0.25}, quality_samples=500), SilentProgress())
    assert set(shares) == {0.25}


# -- captured steps -----------------------------------------------------------------------------------------


def test_a_validation_leaves_the_dropout_of_captured_steps_alone(cuda: StrictCuda, tmp_path: Path):
    job = Job(
        uid="r",
        pipeline="trainer_recurrent",
        import_paths=(HERE,),
        prepared=str(tmp_path / "prepared"),
        device=f"GPU-{UUID}",
        # The last batch of an epoch is ragged, and runs eagerly between captured ones.
        config=TrialConfig().replace(
            {"compile.mode": "graph", "batch_size": 20, "loader.drop_last": False, "device.cpu_threads": 1}
        ),
        plan=MeasurePlan(),
    )
    prepare.run(job, SilentProgress())
    plan = Training(folder=str(tmp_path / "run"), epochs=4, checkpoint_seconds=1e9)
    Path(plan.folder).mkdir()
    report = production.run(dataclasses.replace(job, training=plan), SilentProgress())
    assert report.values["epochs"] == 4


def test_a_validation_that_draws_changes_no_later_draw(cuda: StrictCuda):
    torch.cuda.init()
    torch.manual_seed(0)
    expected = torch.rand(3, device=GPU).tolist(), torch.rand(3, device=GPU).tolist()
    torch.manual_seed(0)
    first = torch.rand(3, device=GPU).tolist()
    with quality.unnoticed(types.SimpleNamespace(device=GPU)):  # type: ignore[arg-type]
        torch.rand(100, device=GPU)
    assert (first, torch.rand(3, device=GPU).tolist()) == expected


def test_the_eager_steps_before_a_capture_warn_of_nothing(on_gpu: Callable[..., Job], monkeypatch):
    begin = torch.optim.Optimizer.__init__

    def warns(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._warned_capturable_if_run_uncaptured = False

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", warns)
    measure.run(on_gpu({"compile.mode": "graph"}), SilentProgress())


def test_a_capture_that_waits_for_the_device_is_unsupported_and_says_so(
    on_gpu: Callable[..., Job], monkeypatch
):
    pipeline, stepper, _ = set_up(on_gpu({"compile.mode": "graph"}), SilentProgress())
    loss = stepper.pipeline.loss
    waiting = dataclasses.replace(
        pipeline, loss=lambda model, batch: loss(model, batch) * (1 if batch["x"].sum().item() else 2)
    )
    stepper.pipeline = waiting
    loader = make_loader(waiting.train, stepper.config.loader, 100, 0, stepper.device, index_only=True)
    stepper.capture(loader)
    loader.start()
    for _ in range(EAGER_STEPS):
        stepper.step(loader, NoClock())
    with pytest.raises(TrialFailedError, match="not permitted when stream is capturing") as caught:
        stepper.step(loader, NoClock())
    assert caught.value.kind == FailureKind.UNSUPPORTED
    loader.close()


# -- the diagnosis ------------------------------------------------------------------------------------------


def test_a_step_that_waits_names_its_line_and_has_a_busy_time(on_gpu: Callable[..., Job], monkeypatch):
    monkeypatch.setattr(gpu_time, "profile", _profile_of(1e-4))
    # A warning of torch's has no frame of its own between the user's line and torch's.
    monkeypatch.setattr(gpu_time, "_WARNINGS", gpu_time._WARNINGS | {strict_cuda.__file__})
    from parts import pipelines

    real = pipelines.build

    def build(config: TrialConfig, prepared: Any) -> Any:
        found = real(config, prepared)

        def loss(model: Any, batch: Any) -> Any:
            value = found.loss(model, batch)
            float(value.detach())
            return value

        return dataclasses.replace(found, loss=loss)

    monkeypatch.setattr(pipelines, "build", build)
    result = measure.run(on_gpu(diagnose=True), SilentProgress())
    assert isinstance(result.diagnosis, Diagnosis)
    (place,) = result.diagnosis.sync_places
    assert place.startswith("test_trainer_strict_cuda.py:")


def _profile_of(seconds: float) -> Any:
    class Profile:
        def __init__(self, **_: Any) -> None:
            pass

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def events(self) -> list[Any]:
            span = types.SimpleNamespace(start=0.0, end=1e6 * seconds)
            return [types.SimpleNamespace(time_range=span, device_type=torch.autograd.DeviceType.CUDA)]

    return Profile


# -- the stand-in comes and goes whole ----------------------------------------------------------------------


def what_is_replaced() -> dict[str, Any]:
    """Returns all that code can reach of CUDA."""
    places = (torch, torch.cuda, torch.cuda.streams, torch.cuda.graphs, torch.cuda.graphs.graph, torch._C)
    places += (torch.version, torch.backends.cudnn, torch.nn.Module, torch.Tensor, torch._C._CudaStreamBase)
    names = {
        f"{place.__name__}.{name}": getattr(place, name, None) for place in places for name in dir(place)
    }
    return names | {"available": torch.cuda.is_available(), "initialised": torch.cuda.is_initialized()}


def differing(before: dict[str, Any]) -> list[str]:
    after = what_is_replaced()
    # Some are made anew whenever they are asked for.
    same = {name for name in before.keys() & after.keys() if before[name] is after[name]}
    return [
        name
        for name in sorted(before.keys() | after.keys())
        if name not in same
        if name not in before or name not in after or before[name] != after[name]
    ]


def test_it_leaves_whole():
    before = what_is_replaced()
    with StrictCuda(num_devices=2):
        torch.cuda.init()
        assert {"available", "initialised", "torch.zeros", "torch.cuda.Stream"} <= {*differing(before)}
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.CUDAGraph().capture_begin()
    assert differing(before) == []
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("patch", ["_patch_state", "_patch_c", "_patch_classes", "_patch_tensors"])
def test_it_enters_whole_or_not_at_all(monkeypatch, patch: str):
    before = what_is_replaced()
    real = getattr(StrictCuda, patch)

    def fails(self: StrictCuda) -> None:
        real(self)
        raise TypeError("immutable type")

    with monkeypatch.context() as patched:
        patched.setattr(StrictCuda, patch, fails)
        with pytest.raises(TypeError, match="immutable type"):
            StrictCuda().__enter__()
    assert differing(before) == []
    with StrictCuda():
        assert torch.cuda.is_available()
    assert differing(before) == []


# -- the stand-in is strict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: torch.cuda.Event(enable_timing="yes"), TypeError),
        (lambda: torch.cuda.Event(timing=True), TypeError),
        (lambda: torch.cuda.CUDAGraph(keep_graph="yes"), TypeError),
        (lambda: torch.cuda._sleep(0.5), RuntimeError),
        (lambda: torch.cuda.set_sync_debug_mode(3), RuntimeError),
        (lambda: torch.cuda.set_sync_debug_mode("louder"), RuntimeError),
        (lambda: torch._C._cuda_setDevice("cuda:0"), RuntimeError),
        (lambda: torch._C._cuda_exchangeDevice(True), RuntimeError),
        (lambda: torch._C._cuda_memoryStats(None), RuntimeError),
        (lambda: torch._C._cuda_getCurrentStream(0.0), RuntimeError),
        (lambda: torch._C._cuda_synchronize(0), TypeError),
    ],
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_wrong_argument_fails_as_below_torch(call: Callable[[], object], error: type[Exception]):
    with StrictCuda(), pytest.raises(error) as caught:
        call()
    if strict_cuda.HAS_TYPES:
        with pytest.raises(error) as real:
            call()
        assert type(real.value) is type(caught.value) is error


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.Stream(priority="high"),
        lambda: torch.cuda.Stream(level=1),
        lambda: torch.cuda.Event().record(1),
        lambda: torch.cuda.Event().elapsed_time(1.0),
        lambda: torch.cuda.CUDAGraph().capture_begin(pool=1),
        lambda: torch.cuda.CUDAGraph().capture_begin(capture_error_mode="local"),
        lambda: torch.cuda.CUDAGraph().debug_dump("graph.dot"),
        lambda: torch.cuda.Stream().priority,
        lambda: torch.cuda.ExternalStream(1),
    ],
)
def test_a_wrong_argument_fails_where_the_c_layer_asks_for_a_device_first(cuda: StrictCuda, call):
    with pytest.raises((TypeError, RuntimeError, AttributeError, AssertionError)):
        call()


def test_streams_and_events_are_of_the_builds_own_types(cuda: StrictCuda):
    stream, event, graph = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.CUDAGraph()
    for made, of in ((stream, torch._C._CudaStreamBase), (event, torch._C._CudaEventBase)):
        assert isinstance(made, of)
    assert isinstance(graph, torch._C._CUDAGraph)
    assert (isinstance(stream, torch.Stream), isinstance(event, torch.Event)) == (strict_cuda.HAS_TYPES,) * 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != stream
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream


@pytest.mark.parametrize(
    ("own", "real"),
    [
        (strict_cuda._Stream, (torch.cuda.Stream, torch.Stream)),
        (strict_cuda._Event, (torch.cuda.Event, torch.Event)),
        (strict_cuda._Graph, (torch.cuda.CUDAGraph,)),
    ],
)
def test_it_has_nothing_that_this_version_of_torch_has_not(own: type, real: tuple[type, ...]):
    has = {name for kind in real for name in dir(kind)}
    # Of the C classes alone.
    has |= {"cuda_stream", "cuda_event"}
    assert {name for name in vars(own) if not name.startswith("_")} <= has


def test_what_needs_cuda_to_be_initialised_raises_before_it_is(cuda: StrictCuda):
    with pytest.raises(RuntimeError, match="Invalid device argument 0: did you call init"):
        torch.cuda.reset_peak_memory_stats(GPU)
    assert torch.cuda.max_memory_reserved(GPU) == 0
    assert not torch.cuda.is_initialized()
    torch.cuda.synchronize()
    assert torch.cuda.is_initialized()
    torch.cuda.reset_peak_memory_stats(GPU)


def test_host_and_device_do_not_mix(cuda: StrictCuda):
    there = torch.zeros(3, device=GPU)
    assert isinstance(there + 1, OnCuda)
    assert isinstance(there + torch.tensor(1.0), OnCuda)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        _ = there + torch.ones(3)
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        there.numpy()
    assert not isinstance(there.cpu(), OnCuda)


def test_waits_are_counted_and_an_error_where_that_is_asked(cuda: StrictCuda):
    there = torch.zeros(3, device=GPU)
    before = cuda.syncs
    there.sum().item()
    torch.ones(3).to(GPU)
    torch.ones(3).pin_memory().to(GPU, non_blocking=True)
    assert cuda.syncs == before + 2
    with pytest.warns(UserWarning, match="prototype feature"):
        torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        bool(there.sum() > 0)
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="synchronizing CUDA operation"):
        there.tolist()
    torch.cuda.set_sync_debug_mode("default")


def test_a_stream_that_does_not_wait_for_another_reads_too_early(cuda: StrictCuda):
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        there = torch.ones(3, device=GPU)
    with pytest.raises(AssertionError, match="may still be writing"):
        _ = there + 1
    torch.cuda.current_stream().wait_stream(aside)
    _ = there + 1


def test_a_capture_runs_nothing_and_a_replay_everything(cuda: StrictCuda):
    total, aside = torch.zeros(3, device=GPU), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        total += 2
    assert total.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert total.tolist() == [4, 4, 4]


@pytest.mark.parametrize(("mode", "holds"), [("global", False), ("thread_local", True)])
def test_another_threads_pinned_memory_breaks_a_global_capture(cuda: StrictCuda, mode: str, holds: bool):
    torch.cuda.init()
    graph, total = torch.cuda.CUDAGraph(), torch.zeros(3, device=GPU)

    def capture() -> None:
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode=mode):
            thread = threading.Thread(target=torch.ones(3).pin_memory)
            thread.start()
            thread.join()
            total.add_(1)

    if holds:
        capture()
    else:
        with pytest.raises(RuntimeError, match="previous error during capture"):
            capture()


def test_events_are_in_order_and_timed_only_where_asked(cuda: StrictCuda):
    torch.cuda.init()
    first, second, plain = (torch.cuda.Event(enable_timing=timed) for timed in (True, True, False))
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(second)
    first.record()
    torch.cuda._sleep(int(2e9 * 0.05))
    second.record()
    plain.record()
    assert not second.query()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(second)
    second.synchronize()
    assert first.elapsed_time(second) == pytest.approx(50, rel=0.5)
    with pytest.raises(ValueError, match="enable_timing=True"):
        first.elapsed_time(plain)
