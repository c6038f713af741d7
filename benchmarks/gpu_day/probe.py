"""What torch, cuDNN and CUDA do on this GPU, asked directly; each answer is plain values.

python -m gpu_day.probe      prints a line of JSON for each question

The step asks in four processes at once, two of them with CUBLAS_WORKSPACE_CONFIG: what is the same within a
process may differ between two.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gpu_day.steps import Day, FailedError
from sweeper.telemetry.nvml.devices import describe_gpus

WORKSPACES = ("", "", ":4096:8", ":4096:8")
"""CUBLAS_WORKSPACE_CONFIG of each process."""
HALVES = (torch.bfloat16, torch.float16)
REPEATS = 4
RESERVE_SECONDS = 5.0
FORK_SECONDS = 10
"""After which a forked child that hangs is killed."""
CUDA = "cuda"


def versions() -> Any:
    """What every other answer depends on."""
    device = torch.cuda.get_device_properties(0)
    gpus = describe_gpus()
    return {
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "memory_gib": round(device.total_memory / 2**30, 1),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": gpus[0].driver if gpus else "NVML knows no GPU",
        "allow_tf32": {
            "cudnn": torch.backends.cudnn.allow_tf32,
            "matmul": torch.backends.cuda.matmul.allow_tf32,
        },
    }


def autocast() -> Any:
    """The dtype that layers return under autocast, and with weights in half precision."""
    answers = {}
    for dtype, name in itertools.product(HALVES, ("Linear", "Conv2d", "LSTM", "GRU")):
        model, x = _layer(name)
        with torch.autocast(CUDA, dtype=dtype):
            answers[f"{name}, autocast to {_name(dtype)}"] = _name(_first(model(x)).dtype)
    for dtype, name in itertools.product(HALVES, ("LSTM", "GRU")):
        model, x = _layer(name)
        exact = _first(model(x)).detach()
        try:
            half = _first(model.to(dtype)(x.to(dtype))).detach()
            answer = f"{_name(half.dtype)}, {_difference(half.float(), exact):.2g} from float32"
        except RuntimeError as error:
            answer = str(error)
        answers[f"{name}, weights in {_name(dtype)}"] = answer
    return answers


def dropout() -> Any:
    """The share of dropout's mask that differs from that in float32, from the same generator's state."""
    state = torch.cuda.get_rng_state()

    def mask(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        torch.cuda.set_rng_state(state)
        kept = nn.functional.dropout(torch.ones(2**20, device=CUDA, dtype=dtype), 0.5) != 0
        return kept.cpu(), torch.cuda.get_rng_state()

    exact, after = mask(torch.float32)
    answers: dict[str, Any] = {}
    for dtype in (torch.float32, *HALVES):
        kept, later = mask(dtype)
        answers[_name(dtype)] = float((kept != exact).float().mean())
        answers[f"{_name(dtype)}, state afterwards is the same"] = torch.equal(later, after)
    return answers


def repeats() -> Any:
    """Whether forward and backward are the same bits again, by what torch was asked for.

    The digest is to be compared between processes.
    """
    answers = {}
    for name, deterministic, benchmark in itertools.product(REPEATED, (False, True), (False, True)):
        asked = [*(["deterministic"] if deterministic else []), *(["benchmark"] if benchmark else [])]
        torch.backends.cudnn.benchmark = benchmark
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = [REPEATED[name]() for _ in range(REPEATS)]
        answers[", ".join((name, *asked))] = {
            "equal": all(torch.equal(result, results[0]) for result in results),
            "difference": max(_difference(result, results[0]) for result in results),
            "digest": hashlib.sha256(results[0].numpy().tobytes()).hexdigest()[:12],
            "warning": str(caught[0].message)[:300] if caught else "",
        }
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)
    return answers


def tf32() -> Any:
    """How far TF32 is from float32, of gradients: relative to the largest."""
    answers = {}
    before = torch.backends.cudnn.allow_tf32
    for name in ("conv", "lstm"):
        torch.backends.cudnn.allow_tf32 = False
        exact = REPEATED[name]()
        torch.backends.cudnn.allow_tf32 = True
        answers[name] = _difference(REPEATED[name](), exact)
    torch.backends.cudnn.allow_tf32 = before
    return answers


def fork() -> Any:
    """How a forked child of a process with a context ends: a status (negative: a signal), or its words."""
    gc.disable()
    stream = torch.cuda.Stream()
    here = torch.ones(2**20).pin_memory()
    with torch.cuda.stream(stream):
        there = here.to(CUDA, non_blocking=True)
    there.record_stream(stream)
    cycle: list[Any] = [here, there]
    cycle.append(cycle)
    del cycle, here, there
    answers = {"does nothing": _forked(lambda: None), "collects garbage": _forked(lambda: gc.collect())}
    answers["uses the device"] = _forked(lambda: torch.ones(1, device=CUDA).item())
    gc.enable()
    gc.collect()
    torch.cuda.synchronize()
    return answers


def pinned() -> Any:
    """Milliseconds of the ways of a batch of gathered rows to the device, and whether it is right."""
    rows, index = torch.randn(50_000, 256), torch.randint(50_000, (4096,))
    buffer = torch.empty(4096, 256).pin_memory()
    on_device, there = rows.to(CUDA), index.to(CUDA)
    torch.index_select(rows, 0, index, out=buffer)

    def straight() -> Tensor:
        return torch.index_select(rows, 0, index, out=buffer).to(CUDA, non_blocking=True)

    return {
        "equal": torch.equal(buffer, rows[index]),
        "still pinned": buffer.is_pinned(),
        "gathered": _ms(lambda: rows[index].to(CUDA)),
        "gathered, then pinned": _ms(lambda: rows[index].pin_memory().to(CUDA, non_blocking=True)),
        "gathered into pinned memory": _ms(straight),
        "gathered on the device": _ms(lambda: on_device.index_select(0, there)),
    }


QUESTIONS: Mapping[str, Callable[[], Any]] = {
    question.__name__: question for question in (versions, autocast, dropout, repeats, tf32, pinned, fork)
}
"""The last one may leave CUDA broken."""


def _conv() -> Tensor:
    return _trained(nn.Conv2d(32, 64, 3), torch.randn(32, 32, 24, 24))


def _lstm() -> Tensor:
    return _trained(nn.LSTM(32, 64, batch_first=True), torch.randn(32, 40, 32))


def _scatter() -> Tensor:
    torch.manual_seed(0)
    rows, into = torch.randn(50_000, 16).to(CUDA), torch.randint(50, (50_000,)).to(CUDA)
    return torch.zeros(50, 16, device=CUDA).index_add(0, into, rows).cpu()


REPEATED: Mapping[str, Callable[[], Tensor]] = {"conv": _conv, "lstm": _lstm, "scatter": _scatter}


def _trained(model: nn.Module, x: Tensor) -> Tensor:
    """Returns the gradients of a seeded model and its input, and its output, as one tensor on the host."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    model, x = model.to(CUDA), torch.randn(x.shape).to(CUDA).requires_grad_()
    out = _first(model(x))
    (out * torch.randn(out.shape).to(CUDA)).sum().backward()
    parts = [out.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
    return torch.cat([part.detach().cpu().flatten() for part in parts if part is not None])


def _layer(name: str) -> tuple[nn.Module, Tensor]:
    sizes, shape = ((8, 16, 3), (4, 8, 6, 6)) if name == "Conv2d" else ((8, 16), (4, 6, 8))
    layer: nn.Module = getattr(nn, name)(*sizes)
    return layer.to(CUDA), torch.randn(shape).to(CUDA)


def _first(out: Any) -> Tensor:
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _difference(tensor: Tensor, other: Tensor) -> float:
    """Returns the largest difference, relative to the largest value."""
    return float((tensor - other).abs().max() / other.abs().max())


def _forked(work: Callable[[], object]) -> int | str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(FORK_SECONDS)
        words = ""
        try:
            work()
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        os.write(writing, words.encode()[:400])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as file:
        words = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return words or status


def _ms(work: Callable[[], object], times: int = 20) -> float:
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return round(1e3 * (time.perf_counter() - began) / times, 3)


def ask() -> None:
    """Prints a line of JSON for each question; one that cannot be answered costs no other."""
    for name, question in QUESTIONS.items():
        began = time.monotonic()
        torch.manual_seed(0)
        try:
            answer = question()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        seconds = round(time.monotonic() - began, 2)
        print(json.dumps({"question": name, "answer": answer, "seconds": seconds}), flush=True)


def probe(day: Day) -> str:
    """Asks all questions in four processes, in a rehearsal in two, and says what decides most."""
    processes = []
    workspaces = WORKSPACES[::2] if day.rehearse else WORKSPACES
    with tempfile.TemporaryDirectory() as folder:
        for number, workspace in enumerate(workspaces):
            asked = {"CUBLAS_WORKSPACE_CONFIG": workspace} if workspace else {}
            with open(f"{folder}/{number}", "w", encoding="utf-8") as answers:
                command = [sys.executable, "-m", "gpu_day.probe"]
                process = subprocess.Popen(command, stdout=answers, env={**os.environ, **asked})
            processes.append(process)
        for process in processes:
            try:
                process.wait(max(0.0, day.left() - RESERVE_SECONDS))
            except subprocess.TimeoutExpired:
                process.kill()
        said: list[dict[str, Any]] = []
        for number, workspace in enumerate(workspaces):
            with open(f"{folder}/{number}", encoding="utf-8") as answers:
                rows = [json.loads(line) for line in answers if line.endswith("\n")]
            for row in rows:
                day.write("probe", process=number, workspace=workspace, **row)
            said.append({row["question"]: row["answer"] for row in rows})
    lacking = [name for name in QUESTIONS if any("error" in answers.get(name, "error") for answers in said)]
    text = f"{_decisive(said)}; not answered by all: {', '.join(lacking) or 'none'}"
    if lacking or len(said[0]) < len(QUESTIONS):
        raise FailedError(text)
    return text


def _decisive(said: list[dict[str, Any]]) -> str:
    """Returns the answers that decide most, in a line."""
    first = said[0]
    half = "LSTM, autocast to bfloat16"
    digests = [
        {name: answer["digest"] for name, answer in answers.get("repeats", {}).items() if "digest" in answer}
        for answers in said
    ]
    varying = [name for name in digests[0] if len({digest.get(name) for digest in digests}) > 1]
    return (
        f"{half}: {first.get('autocast', {}).get(half)}; dropout's mask differs in bfloat16: "
        f"{first.get('dropout', {}).get('bfloat16')}; differs between processes: {varying or 'nothing'}"
    )


if __name__ == "__main__":
    ask()
