"""The device's time of a step and the host's, and who waits for whom: on a make-believe GPU."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType
from trainer_cuda import CUDA, FakeCuda

from sweeper.core import modules
from sweeper.script.inside.gpu import union_length
from sweeper.trainer.timing import gpu_time
from sweeper.trainer.timing.gpu_time import kernel_seconds, queued_seconds, sync_places

# -- the device and the host apart ----------------------------------------------------------------------


@pytest.mark.parametrize(("host", "device"), [(1e-3, 3e-3), (5e-3, 1e-3)], ids=["ahead", "behind"])
@pytest.mark.parametrize("steps_per_update", [1, 3])
def test_neither_shows_in_the_others_time(monkeypatch, host: float, device: float, steps_per_update: int):
    cuda = FakeCuda(monkeypatch, host, device)
    found = queued_seconds(cuda.train, CUDA, steps_per_update, max(host, device))
    assert found == (pytest.approx(device), pytest.approx(host))
    # Whole updates: every so many steps the optimizer takes one.
    assert cuda.steps % steps_per_update == 0


def test_the_hold_is_as_long_as_a_step_of_a_slow_host_needs(monkeypatch):
    cuda = FakeCuda(monkeypatch, 0.8, 0.01)
    assert queued_seconds(cuda.train, CUDA, 1, 0.8) == (pytest.approx(0.01), pytest.approx(0.8))
    # What was launched after its end does not count.
    assert cuda.steps == 2


def test_a_hold_has_an_end(monkeypatch):
    cuda = FakeCuda(monkeypatch, 3.0, 0.01)
    assert queued_seconds(cuda.train, CUDA, 1, 3.0) == (None, None)
    assert cuda.held == pytest.approx(2.0)


def test_a_step_that_waits_for_the_device_has_no_time_of_its_own(monkeypatch):
    cuda = FakeCuda(monkeypatch, 1e-3, 3e-3)

    def waits() -> None:
        cuda.train()
        cuda.wait()

    assert queued_seconds(waits, CUDA, 1, 4e-3) == (None, None)
    # Told at once, and not after more of them.
    assert cuda.steps == 1


# -- kernels under the profiler -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "since", "length"),
    [
        ([], 0.0, 0.0),
        ([(1.0, 3.0), (5.0, 6.0)], 0.0, 3.0),
        # Two streams at once are one device.
        ([(1.0, 4.0), (2.0, 3.0), (3.5, 6.0)], 0.0, 5.0),
        ([(1.0, 4.0), (5.0, 7.0)], 2.0, 4.0),
        ([(1.0, 4.0), (5.0, 7.0)], 9.0, 0.0),
    ],
)
def test_what_spans_cover(spans: list[tuple[float, float]], since: float, length: float):
    assert union_length(spans, since) == length


class Profile:
    """Saw these `(begin, end)`, in microseconds; and what is no kernel."""

    def __init__(self, kernels: list[tuple[float, float]]) -> None:
        self.kernels = kernels

    def __call__(self, **_: object) -> Profile:
        return self

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        def event(begin: float, end: float, device: DeviceType, annotation: bool) -> SimpleNamespace:
            span = SimpleNamespace(start=begin, end=end)
            return SimpleNamespace(time_range=span, device_type=device, is_user_annotation=annotation)

        kernels = [event(*each, DeviceType.CUDA, False) for each in reversed(self.kernels)]
        others = [event(0, 9e9, DeviceType.CPU, False), event(0, 9e9, DeviceType.CUDA, True)]
        return kernels + others


def test_kernels_are_those_of_the_steps_after_the_first(monkeypatch):
    cuda = FakeCuda(monkeypatch, 1e-3, 3e-3)

    def waits() -> None:
        cuda.train()
        cuda.wait()

    # Three steps of 4 ms up to the last kernel's end; of each, 3 ms. The first step comes before.
    last = 1e6
    kernels = [(last - 4e3 * i - 3e3, last - 4e3 * i) for i in range(4)]
    monkeypatch.setattr(gpu_time, "profile", Profile(kernels))
    assert kernel_seconds(waits, CUDA) == pytest.approx(3e-3)
    assert cuda.steps == 4


def test_kernels_are_those_of_whole_turns(monkeypatch):
    cuda = FakeCuda(monkeypatch, 1e-3, 3e-3)
    last = 1e6
    monkeypatch.setattr(
        gpu_time, "profile", Profile([(last - 4e3 * i - 3e3, last - 4e3 * i) for i in range(7)])
    )
    kernel_seconds(cuda.train, CUDA, 2)
    assert cuda.steps == 1 + 3 * 2


def test_a_profiler_that_sees_no_kernel_says_nothing(monkeypatch):
    cuda = FakeCuda(monkeypatch, 1e-3, 3e-3)
    monkeypatch.setattr(gpu_time, "profile", Profile([]))
    assert kernel_seconds(cuda.train, CUDA) is None


# -- lines that wait ------------------------------------------------------------------------------------

SYNC = "called a synchronizing CUDA operation (Triggered internally at Copy.cpp:1.)"
MINE = "/home/someone/project/net.py"
TORCH = str(Path(torch.__file__).parent / "optim" / "adamw.py")
OURS = str(Path(gpu_time.__file__).parent / "step.py")


def at(file: str, line: int, call: Callable[[], object], text: str = "call()") -> Callable[[], object]:
    """A function whose line `line` in `file` calls `call`, or does what `text` says."""
    scope = {"call": call, "torch": torch}
    exec(compile("\n" * (line - 1) + f"def f(): return {text}", file, "exec"), scope)
    return scope["f"]


def warning(message: str = SYNC) -> Callable[[], object]:
    """What warns from the line that calls it, and has no line of its own."""
    return functools.partial(warnings.warn, message, stacklevel=1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch, 1e-3, 1e-3)


TENSOR = at(TORCH, 3, warning())


def places(cuda: FakeCuda, *steps: list[Callable[[], object]]) -> tuple[str, ...]:
    left = iter(steps)

    def step() -> None:
        assert cuda.mode == "warn"
        for call in next(left):
            at(OURS, 5, call)()

    found = sync_places(step)
    assert cuda.mode == "default"
    return found


def test_lines_that_wait_in_every_step_are_found(cuda):
    each = [at(MINE, 12, TENSOR), at("/elsewhere/loss.py", 3, TENSOR)]
    assert places(cuda, each, each, each) == ("net.py:12", "loss.py:3")
    # Twice in a step is still one place.
    assert places(cuda, 2 * each, 2 * each, 2 * each) == ("net.py:12", "loss.py:3")


def test_the_innermost_line_of_the_users_is_named(cuda):
    # loss() of net.py:40 calls a module of torch, whose forward is the user's again.
    each = [at(MINE, 40, at(TORCH, 9, at("/home/someone/project/head.py", 7, TENSOR)))]
    assert places(cuda, each, each, each) == ("head.py:7",)


def test_a_shipped_pipelines_line_is_named_as_a_users(cuda, monkeypatch):
    monkeypatch.setattr("sweeper.core.modules._SWEEPER", Path("/opt/site-packages/sweeper"))
    monkeypatch.setattr("sweeper.core.modules.shipped_folder", lambda name: modules._SWEEPER / name)
    each = [at("/opt/site-packages/sweeper/pipelines/tabular.py", 7, TENSOR)]
    assert places(cuda, each, each, each) == ("tabular.py:7",)
    ours = [at("/opt/site-packages/sweeper/trainer/x.py", 7, TENSOR)]
    assert places(cuda, ours, ours, ours) == ()


def test_the_line_is_found_where_warnings_are_implemented_elsewhere(cuda, monkeypatch):
    # As from Python 3.14 on: the frame that warns is of `_py_warnings`.
    elsewhere = "/usr/lib/python3.14/_py_warnings.py"
    monkeypatch.setattr(gpu_time, "_WARNINGS", gpu_time._WARNINGS | {elsewhere})
    each = [at(MINE, 12, at(TORCH, 3, at(elsewhere, 9, warning())))]
    assert places(cuda, each, each, each) == ("net.py:12",)


def test_both_modules_of_warnings_are_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "_py_warnings", SimpleNamespace(__file__="/lib/_py_warnings.py"))
    assert gpu_time._files_of_warnings() == {warnings.__file__, "/lib/_py_warnings.py"}
    monkeypatch.delitem(sys.modules, "_py_warnings")
    assert gpu_time._files_of_warnings() == {warnings.__file__}


def test_a_line_that_waits_now_and_then_is_none(cuda):
    each = [at(MINE, 12, TENSOR)]
    assert places(cuda, each, [], each) == ()


def test_neither_torch_nor_this_trainer_nor_another_warning_is_the_users_line(cuda):
    others = [TENSOR, at(OURS, 9, TENSOR), at(MINE, 12, warning("`lr` is deprecated"))]
    assert places(cuda, others, others, others) == ()


def test_a_call_that_waits_for_all_of_the_device_is_found_too(cuda):
    # Of which torch does not warn.
    each = [at(MINE, 12, print, "torch.cuda.synchronize()")]
    assert places(cuda, each, each, each) == ("net.py:12",)
    assert cuda.waits == 3
    assert torch.cuda.synchronize.__name__ == "waiting"


def test_mode_and_calls_are_put_back_after_an_error(cuda):
    before, shown = torch.cuda.synchronize, warnings.showwarning

    def fails() -> None:
        raise RuntimeError("in the user's code")

    with pytest.raises(RuntimeError, match="in the user's code"):
        sync_places(fails)
    assert cuda.mode == "default"
    assert torch.cuda.synchronize is before
    assert warnings.showwarning is shown
