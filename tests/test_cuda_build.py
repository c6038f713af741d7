"""What a build of torch with CUDA shows without a GPU, of each call to CUDA that the product makes.

Each call runs in a fork of a process that has imported torch and done nothing else, beside a driver that has
no device and notes who asks for one. A call that asks nothing may be made before a fork, and where the driver
hangs; one that starts CUDA raises here. What autocast makes of an operator's arguments is seen where they
arrive: below autocast, above the kernels.

    make test TORCH=2.14.1
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import stub_nvml
import torch
from test_api_names import uses
from torch.nn import functional

HERE = Path(__file__).parent
FREE, ASKS, STARTS = "asks the driver nothing", "asks the driver and goes on", "starts CUDA"
LOG = "CUDA_STUB_LOG"

on_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="this torch is built without CUDA (make test TORCH=2.14.1 has another)"
)


@dataclass(frozen=True)
class Call:
    """A call of the product's.

    Attributes:
        does: What it does before CUDA has started; several where releases of torch differ.
        value: What it returns, as `repr` writes it.
        wrong: The same with a wrong argument, and the error that refuses it; empty if torch takes anything.
    """

    code: str
    does: str | tuple[str, ...]
    value: str | None = None
    wrong: tuple[str, str] | None = None


GPU = "torch.device('cuda', 0)"
FLAGS = "(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)"
CALLS: dict[str, tuple[Call, ...]] = {
    # -- which devices there are
    "torch.cuda.is_available": (Call("torch.cuda.is_available()", ASKS, "False"),),
    "torch.cuda.device_count": (Call("torch.cuda.device_count()", ASKS, "0"),),
    "torch.cuda.is_initialized": (Call("torch.cuda.is_initialized()", FREE, "False"),),
    "torch.cuda.init": (Call("torch.cuda.init()", STARTS),),
    "torch._C._cuda_getDeviceCount": (Call("torch._C._cuda_getDeviceCount()", ASKS, "0"),),
    # torch 2.9 lists none without a device.
    "torch.cuda.get_arch_list": (Call("torch.cuda.get_arch_list()", (FREE, ASKS)),),
    "torch.cuda.get_device_properties": (Call(f"torch.cuda.get_device_properties({GPU})", STARTS),),
    "torch.cuda.set_device": (
        Call("torch.cuda.set_device(1)", STARTS, wrong=("torch.cuda.set_device('gpu')", "RuntimeError")),
    ),
    "torch.cuda.current_device": (Call("torch.cuda.current_device()", STARTS),),
    "torch.cuda.device": (
        Call("torch.cuda.device(0)", FREE),
        Call("torch.cuda.device(0).__enter__()", STARTS),
    ),
    # -- memory
    "torch.cuda.mem_get_info": (Call("torch.cuda.mem_get_info()", STARTS),),
    "torch.cuda.memory_reserved": (Call(f"torch.cuda.memory_reserved({GPU})", FREE, "0"),),
    "torch.cuda.max_memory_reserved": (Call(f"torch.cuda.max_memory_reserved({GPU})", FREE, "0"),),
    "torch.cuda.max_memory_allocated": (Call(f"torch.cuda.max_memory_allocated({GPU})", FREE, "0"),),
    "torch.cuda.empty_cache": (Call("torch.cuda.empty_cache()", FREE),),
    "torch.cuda.set_per_process_memory_fraction": (
        Call(f"torch.cuda.set_per_process_memory_fraction(0.5, {GPU})", STARTS),
    ),
    "torch.cuda.memory._set_allocator_settings": (
        Call(
            "device._set_allocator_settings('garbage_collection_threshold:0.8,expandable_segments:True')",
            FREE,
            wrong=("device._set_allocator_settings('expandable_segments:Maybe')", "RuntimeError ValueError"),
        ),
        Call(
            "device._expand_segments(True)",
            FREE,
            wrong=("device._set_allocator_settings('no_such_option:True')", "RuntimeError ValueError"),
        ),
    ),
    # -- streams, events, graphs, waiting
    "torch.cuda.Event": (
        Call("torch.cuda.Event(enable_timing=True)", FREE, wrong=("torch.cuda.Event(timing=1)", "TypeError")),
        # One that was never recorded is done, and has no time.
        Call("torch.cuda.Event().query()", FREE, "True"),
        Call(
            "torch.cuda.Event().synchronize()",
            FREE,
            wrong=("torch.cuda.Event(True).elapsed_time(torch.cuda.Event(True))", "ValueError"),
        ),
        Call("torch.cuda.Event().record()", STARTS),
    ),
    "torch.cuda.Stream": (
        Call("torch.cuda.Stream()", STARTS, wrong=("torch.cuda.Stream(torch.device('cpu'))", "ValueError")),
        Call(f"torch.cuda.Stream({GPU})", STARTS),
    ),
    "torch.cuda.stream": (Call("torch.cuda.stream(None)", ASKS),),
    "torch.cuda.current_stream": (Call(f"torch.cuda.current_stream({GPU})", STARTS),),
    "torch.cuda.CUDAGraph": (Call("torch.cuda.CUDAGraph()", STARTS),),
    "torch.cuda.graph_pool_handle": (Call("torch.cuda.graph_pool_handle()", FREE, "(0, 1)"),),
    "torch.cuda.graph": (
        Call(
            "torch.cuda.graph(object(), pool=(0, 1), stream=object(), capture_error_mode='thread_local')",
            (ASKS, STARTS),
            wrong=("torch.cuda.graph(object(), pool=(0, 1), stream=object(), mode='global')", "TypeError"),
        ),
    ),
    # So it is asked after `is_initialized`, or about a loss on the device, alone.
    "torch.cuda.is_current_stream_capturing": (Call("torch.cuda.is_current_stream_capturing()", STARTS),),
    "torch.cuda.synchronize": (Call(f"torch.cuda.synchronize({GPU})", STARTS),),
    "torch.cuda.set_sync_debug_mode": (Call("torch.cuda.set_sync_debug_mode('warn')", STARTS),),
    "torch.cuda._sleep": (
        Call("torch.cuda._sleep(10)", STARTS, wrong=("torch.cuda._sleep('x')", "RuntimeError")),
    ),
    # -- random numbers
    "torch.cuda.default_generators": (Call("torch.cuda.default_generators", FREE, "()"),),
    "torch.cuda.get_rng_state": (Call(f"torch.cuda.get_rng_state({GPU})", STARTS),),
    # Queued until CUDA starts.
    "torch.cuda.set_rng_state": (Call(f"torch.cuda.set_rng_state(torch.get_rng_state(), {GPU})", FREE),),
    # -- precision
    "torch.amp.GradScaler": (Call("torch.amp.GradScaler('cuda').is_enabled()", ASKS, "False"),),
    "torch.cuda.amp.GradScaler": (
        Call("issubclass(torch.cuda.amp.GradScaler, torch.amp.GradScaler)", FREE, "True"),
    ),
    # Where CUDA is not available, it warns and turns itself off.
    "torch.autocast": (
        Call(
            "torch.autocast('cuda', dtype=torch.bfloat16)._enabled",
            ASKS,
            "False",
            wrong=("torch.autocast('gpu')", "RuntimeError"),
        ),
        Call("torch.is_autocast_enabled('cuda')", FREE, "False"),
        Call("torch.clear_autocast_cache()", FREE),
    ),
    "torch.backends.cuda.matmul.allow_tf32": (
        # It sets all of it; the other setting of `tf32` sets the same.
        Call(
            "(setattr(torch.backends.cuda.matmul, 'allow_tf32', True), "
            "torch.get_float32_matmul_precision())[1]",
            FREE,
            "'high'",
            wrong=("setattr(torch.backends.cuda.matmul, 'allow_tf32', 'on')", "RuntimeError"),
        ),
    ),
    "torch.backends.cudnn.allow_tf32": (
        Call(
            FLAGS,
            FREE,
            "(False, True)",
            wrong=("setattr(torch.backends.cudnn, 'allow_tf32', 'on')", "RuntimeError"),
        ),
        Call(f"(device._set_tf32(True), {FLAGS})[1]", FREE, "(True, True)"),
        Call(f"(device._set_tf32(False), {FLAGS})[1]", FREE, "(False, False)"),
        Call(
            "(device._set_tf32(True), torch.backends.cuda.matmul.fp32_precision,"
            " torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision)[1:]",
            FREE,
            "('tf32', 'tf32', 'tf32')",
            # The newer flag before the older: torch does not say which of the two holds.
            wrong=(
                "(setattr(torch.backends.cudnn.conv, 'fp32_precision', 'ieee'), "
                "torch.backends.cudnn.allow_tf32)",
                "RuntimeError",
            ),
        ),
    ),
    "torch.backends.cudnn.benchmark": (
        Call(
            "(setattr(torch.backends.cudnn, 'benchmark', True), torch.backends.cudnn.benchmark)[1]",
            FREE,
            "True",
            wrong=("setattr(torch.backends.cudnn, 'benchmark', 'on')", "RuntimeError"),
        ),
    ),
    "torch._C._set_cudnn_benchmark": (
        Call(
            "torch._C._set_cudnn_benchmark(False)",
            FREE,
            wrong=("torch._C._set_cudnn_benchmark('on')", "RuntimeError"),
        ),
    ),
    "torch.backends.cudnn.enabled": (
        Call(
            "setattr(torch.backends.cudnn, 'enabled', False)",
            FREE,
            wrong=("setattr(torch.backends.cudnn, 'enabled', 'on')", "RuntimeError"),
        ),
    ),
    "torch.set_float32_matmul_precision": (
        Call(
            "(torch.set_float32_matmul_precision('high'), torch.get_float32_matmul_precision())[1]",
            FREE,
            "'high'",
        ),
        # A wrong word is no error, but without effect.
        Call(
            "(torch.set_float32_matmul_precision('low'), torch.get_float32_matmul_precision())[1]",
            FREE,
            "'highest'",
        ),
    ),
}
"""By the name in the product, which `uses` finds."""

OTHERS: tuple[Call, ...] = (
    # The server imports these before it forks.
    Call("__import__('sweeper.launch.server')", FREE),
    Call("__import__('sweeper.trainer.measure')", FREE),
    # A trial, a doctor or a script on the CPU of a machine whose driver hangs.
    Call("device.open_device('cpu')", FREE),
    Call("device.open_device('GPU-1')", FREE),
    Call("device.apply(TrialConfig(), torch.device('cpu'))", FREE),
    Call("device.describe(torch.device('cpu')).kind", FREE, "'cpu'"),
    Call("ceilings.run(Job(uid='c', device='cpu'), SilentProgress()).values['gpus']", FREE, "[]"),
    Call("seeding.seed(torch, 3, shift=0, deterministic=True)", FREE),
    Call("torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)", FREE),
    Call("torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], capturable=True, fused=True)", FREE),
    # A CUDA build beside no GPU.
    Call("device.num_visible()", ASKS, "0"),
    Call(
        "probe.run(Job(uid='p', device='auto'), SilentProgress()).values['devices'][0]['kind']", ASKS, "'cpu'"
    ),
    Call("first_sentence(ceilings._cuda_problem())", ASKS, "'RuntimeError: No CUDA GPUs are available'"),
    Call("device.open_device('GPU-1', rank=1)", STARTS),
    Call("torch.ones(1).pin_memory()", STARTS),
    Call("torch.ones(1, device='cuda')", STARTS),
)
EVERY = [(name, call) for name, calls in CALLS.items() for call in calls] + [("", call) for call in OTHERS]
WRONG = [call.wrong for _, call in EVERY if call.wrong]

METHODS = {
    torch.cuda.Event: "record query synchronize wait elapsed_time",
    torch.cuda.Stream: "wait_stream wait_event record_event",
    torch.cuda.CUDAGraph: "replay",
    torch.Generator: "graphsafe_get_state graphsafe_set_state clone_state",
    torch.Tensor: "record_stream pin_memory is_pinned",
    torch.amp.GradScaler: "scale unscale_ step update state_dict load_state_dict _found_inf_per_device",
}
"""Of objects that the product has on a device: without one, they can only be looked for."""


# -- each call in a fork of its own ---------------------------------------------------------------------


def answer(codes: list[str]) -> Iterator[dict[str, Any]]:
    """Yields what becomes of each expression: its value or error, and whether the driver was asked."""
    from sweeper.core.config import TrialConfig
    from sweeper.core.job import Job
    from sweeper.core.progress import SilentProgress
    from sweeper.script.inside import seeding
    from sweeper.telemetry.gpu_advice import first_sentence
    from sweeper.trainer import ceilings, device, probe

    ceilings.SECONDS = 0.0
    ceilings._compilation = lambda *_: {"problem": ""}  # type: ignore[assignment]
    names = {
        "torch": torch,
        "TrialConfig": TrialConfig,
        "Job": Job,
        "SilentProgress": SilentProgress,
        "seeding": seeding,
    }
    names |= {"ceilings": ceilings, "device": device, "probe": probe, "first_sentence": first_sentence}
    for code in codes:
        ours, theirs = os.pipe()
        if not (pid := os.fork()):
            Path(os.environ[LOG]).write_text("", encoding="utf-8")
            with os.fdopen(theirs, "w") as pipe, open(os.devnull, "w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), 2)
                json.dump(_evaluated(code, names), pipe)
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            yield json.loads(pipe.read() or '{"error": "died"}')
        os.waitpid(pid, 0)


def _evaluated(code: str, names: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"error": "", "value": ""}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            told["value"] = repr(eval(code, names))
        except Exception as error:
            told.update(
                error=type(error).__name__,
                text=str(error),
                kinds=[kind.__name__ for kind in type(error).__mro__],
            )
    told["asked"] = bool(Path(os.environ[LOG]).read_text(encoding="utf-8"))
    told["initialised"] = torch.cuda.is_initialized()
    told["deprecated"] = [str(line.message) for line in said if issubclass(line.category, FutureWarning)]
    return told


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver without a device."""
    if (compiler := stub_nvml.compiler()) is None:
        pytest.skip("no C compiler for the stand-in for the driver")
    folder = tmp_path_factory.mktemp("cuda")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, *stub_nvml.FLAGS, "-o", library, HERE / "cuda_stub.c"], check=True)
    return folder


def asked(driver: Path, codes: list[str], **environment: str) -> dict[str, dict[str, Any]]:
    """Returns the answers of a process with that driver, by the expression."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, [str(driver), os.environ.get("LD_LIBRARY_PATH", "")])
            ),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
            LOG: str(driver / "log"),
            **environment,
        },
    )
    return dict(zip(codes, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="session")
def answers(driver: Path) -> dict[str, dict[str, Any]]:
    codes = [call.code for _, call in EVERY] + [code for code, _ in WRONG]
    return asked(driver, list(dict.fromkeys(codes)))


@on_cuda_build
@pytest.mark.parametrize("call", [call for _, call in EVERY], ids=[call.code for _, call in EVERY])
def test_a_call_before_cuda_has_started(answers: dict[str, dict[str, Any]], call: Call):
    told = answers[call.code]
    assert not told["initialised"]
    # torch 2.14 calls the name of 2.9 deprecated, in the log of each trial.
    assert told["deprecated"] == []
    if told["error"]:
        does = STARTS
        assert "RuntimeError" in told["kinds"], told
        assert re.search("No CUDA GPUs|no CUDA-capable device|NVIDIA", told["text"]), told
    else:
        does = ASKS if told["asked"] else FREE
    assert does in (call.does if isinstance(call.does, tuple) else (call.does,)), told
    assert call.value in (None, told["value"])


@on_cuda_build
@pytest.mark.parametrize(("code", "kinds"), WRONG, ids=[code for code, _ in WRONG])
def test_a_wrong_argument_is_refused_and_not_only_on_a_gpu(
    answers: dict[str, dict[str, Any]], code: str, kinds: str
):
    told = answers[code]
    assert told["error"] in kinds.split(), told
    assert not told["asked"]


@on_cuda_build
def test_a_driver_that_is_older_than_the_build_is_one_sentence(driver: Path):
    codes = ["first_sentence(ceilings._cuda_problem())", "device.num_visible()"]
    told = asked(driver, codes, CUDA_STUB_VERSION="11040")
    says = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"
    assert told[codes[0]]["value"] == repr(says)
    assert told[codes[1]]["value"] == "0"


def _names_in_the_product() -> set[str]:
    pattern = re.compile(r"\b_torch((?:\.\w+)+)")
    names: set[str] = set()
    for package in ("sweeper", "pipelines"):
        for path in (HERE.parent / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            names |= {name for name, _ in uses(ast.parse(text), str(path))}
            names |= {f"torch{rest}" for rest in pattern.findall(text)}
            if path.parent.name in ("inside", "changes"):
                names |= {
                    f"torch.cuda.{name}" for name in re.findall(r"(?<![\w.])(?:self\._)?cuda\.(\w+)", text)
                }
    return names


def test_every_call_of_the_product_is_here():
    own = re.compile(
        r"torch\.(cuda|backends\.(cuda|cudnn)|amp|accelerator|autocast|_C|set_float32_matmul_precision)\b"
    )
    named = {name for name in _names_in_the_product() if own.match(name)}
    called = {
        name
        for name in named
        if not (name.startswith("torch.cuda.memory.") and name not in CALLS)
        and not inspect.ismodule(_attribute(name))
    }
    # `__init__` is replaced where a pipeline is checked without a GPU; of an object, its class or a flag.
    assert {name for name in called if not any(_is_part(name, known) for known in CALLS)} == set()
    assert set(CALLS) - named == set(), "no longer called"


def _is_part(name: str, known: str) -> bool:
    return f"{name}.".startswith(f"{known}.") or known.startswith(f"{name}.")


def _attribute(name: str) -> Any:
    """Returns what has a name; None if this build of torch has it not."""
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value


@on_cuda_build
@pytest.mark.parametrize("owner", METHODS, ids=lambda owner: owner.__name__)
def test_what_the_product_does_with_objects_on_a_device_is_there(owner: type):
    assert [name for name in METHODS[owner].split() if not callable(getattr(owner, name, None))] == []


# -- what autocast makes of an operator's arguments ------------------------------------------------------


class ReachedError(Exception):
    """An operator would run now, with tensors of these types."""


class Tensor(torch.Tensor):
    """A tensor on a GPU without memory; it notes how its first operator but casts and views is called."""

    @staticmethod
    def __new__(cls, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        made: Tensor = torch.Tensor._make_wrapper_subclass(cls, size, dtype=dtype, device="cuda")
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        aten = torch.ops.aten
        if func is aten._to_copy.default:
            return cls(*args[0].shape, dtype=(kwargs or {}).get("dtype") or args[0].dtype)
        if func in (aten.view.default, aten._unsafe_view.default, aten.t.default, aten.unsqueeze.default):
            shaped = func(torch.empty(args[0].shape, device="meta"), *args[1:], **(kwargs or {}))
            return cls(*shaped.shape, dtype=args[0].dtype)
        raise ReachedError(func.overloadpacket.__name__, {tensor.dtype for tensor in _tensors(args)})


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@contextlib.contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """As `torch.autocast("cuda", dtype)`, which turns itself off without a GPU."""
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.clear_autocast_cache()


def arriving(operation: Callable[[], object], dtype: torch.dtype) -> tuple[str, set[torch.dtype]]:
    """Returns the operator that an operation comes to under autocast, and the types of its tensors."""
    with autocast(dtype), pytest.raises(ReachedError) as reached:
        operation()
    return reached.value.args[0], reached.value.args[1]


LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
IN_LOW: dict[str, Callable[[], object]] = {
    "mm": lambda: functional.linear(Tensor(4, 16), Tensor(16, 16)),
    "convolution": lambda: functional.conv2d(Tensor(2, 3, 8, 8), Tensor(4, 3, 3, 3)),
    "bmm": lambda: torch.bmm(Tensor(2, 4, 8), Tensor(2, 8, 4)),
}
"""Computed in the type of autocast, by the operator that they come to."""
IN_FLOAT: dict[str, Callable[[torch.dtype], object]] = {
    "mse_loss": lambda low: functional.mse_loss(Tensor(4, 3, dtype=low), Tensor(4, 3)),
    "sub": lambda low: functional.l1_loss(Tensor(4, 3, dtype=low), Tensor(4, 3, dtype=low)),
    "smooth_l1_loss": lambda low: functional.smooth_l1_loss(Tensor(4, 3, dtype=low), Tensor(4, 3, dtype=low)),
    "huber_loss": lambda low: functional.huber_loss(Tensor(4, 3, dtype=low), Tensor(4, 3, dtype=low)),
    "binary_cross_entropy_with_logits": lambda low: functional.binary_cross_entropy_with_logits(
        Tensor(4, 3, dtype=low), Tensor(4, 3, dtype=low)
    ),
    "exp": lambda low: torch.exp(Tensor(4, 3, dtype=low)),
    "pow": lambda low: Tensor(4, 3, dtype=low) ** 2,
    "native_layer_norm": lambda low: functional.layer_norm(Tensor(4, 3, dtype=low), (3,)),
}
"""Computed in float32, whatever arrives."""
AS_IT_IS: dict[str, Callable[[torch.dtype], object]] = {
    "native_dropout": lambda low: functional.dropout(Tensor(4, 3, dtype=low), 0.1, training=True),
    "sigmoid": lambda low: torch.sigmoid(Tensor(4, 3, dtype=low)),
    "tanh": lambda low: torch.tanh(Tensor(4, 3, dtype=low)),
    "mean": lambda low: Tensor(4, 3, dtype=low).mean(),
}
"""Computed in the type that arrives."""


@on_cuda_build
@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("name", IN_LOW)
def test_autocast_computes_products_in_its_type(name: str, precision: str):
    assert arriving(IN_LOW[name], LOW[precision]) == (name, {LOW[precision]})


@on_cuda_build
@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("name", IN_FLOAT)
def test_autocast_computes_losses_in_float32(name: str, precision: str):
    low = LOW[precision]
    assert arriving(lambda: IN_FLOAT[name](low), low) == (name, {torch.float32})


@on_cuda_build
@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("name", AS_IT_IS)
def test_autocast_leaves_the_rest_as_it_is(name: str, precision: str):
    low = LOW[precision]
    assert arriving(lambda: AS_IT_IS[name](low), low) == (name, {low})


def _rnn(dtype: torch.dtype) -> object:
    """Runs cuDNN's LSTM, whose weights are in float16: others would be copied to the device first."""
    weights = [Tensor(*size, dtype=torch.float16) for size in ((64, 16), (64, 16), (64,), (64,))]
    state = Tensor(1, 4, 16, dtype=dtype)
    return torch.ops.aten._cudnn_rnn(
        *(Tensor(4, 8, 16, dtype=dtype), weights, 4, Tensor(2176, dtype=torch.float16), state, state),
        *(2, 16, 0, 1, True, 0.0, True, False, [], None),
    )


@on_cuda_build
@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_cudnns_rnn_computes_in_float16_whatever_the_type_of_autocast(precision: str, given: torch.dtype):
    """So `bf16` of an LSTM or GRU would be fp16 without a GradScaler."""
    assert arriving(lambda: _rnn(given), LOW[precision]) == ("_cudnn_rnn", {torch.float16})


@on_cuda_build
def test_cells_of_an_rnn_compute_in_the_type_of_autocast():
    state, weights = Tensor(4, 16), (Tensor(64, 16), Tensor(64, 16), Tensor(64), Tensor(64))
    cell = torch._VF.lstm_cell  # type: ignore[attr-defined]
    assert arriving(lambda: cell(state, (state, state), *weights), torch.bfloat16) == ("mm", {torch.bfloat16})


@on_cuda_build
def test_binary_cross_entropy_is_refused_by_autocast_on_a_gpu_and_not_on_a_cpu():
    with autocast(torch.bfloat16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(Tensor(4), Tensor(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.binary_cross_entropy(torch.full((4,), 0.5), torch.ones(4)).dtype == torch.float32


@on_cuda_build
@pytest.mark.parametrize(
    ("operator", "has"),
    [
        ("_cudnn_rnn", True),
        ("lstm.input", False),
        ("gru.input", False),
        ("softmax.int", True),
        ("log_softmax.int", True),
        ("nll_loss", True),
        ("sum", True),
        ("scaled_dot_product_attention", True),
        ("dropout", False),
        ("native_dropout", False),
        ("batch_norm", False),
        ("embedding", False),
        ("cross_entropy_loss", False),
    ],
)
def test_which_operators_have_a_policy(operator: str, has: bool):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", "AutocastCUDA") is has


if __name__ == "__main__":
    # Later lines are the answers': what is imported may print.
    print("\n" + json.dumps(list(answer(json.load(sys.stdin)))))
