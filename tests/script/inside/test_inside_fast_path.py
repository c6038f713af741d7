"""Wrapped functions that are suspended, and steps that are only counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sweeper.script.inside.fast_path import LOOK_SECONDS, MAX_UNSEEN, MIN_ALIKE, FastPath
from sweeper.script.inside.observer import TrainingObserver
from sweeper.script.inside.points import Points
from sweeper.script.inside.samples import Pass


def usual():
    """The function that is wrapped."""
    return "usual"


def points():
    return Points(lambda why: None)


def watched(original):
    return lambda: "watched " + original()


def others(original):
    return lambda: "others' " + original()


def test_a_function_that_is_suspended_is_the_usual_one():
    owner = SimpleNamespace(function=usual)
    wrapper = points().replace(owner, "function", watched)
    assert owner.function() == "watched usual"
    wrapper.suspend()
    assert owner.function is usual
    wrapper.resume()
    assert owner.function() == "watched usual"


def test_an_inherited_method_that_is_suspended_is_inherited_again():
    class Parent:
        def method(self) -> int:
            return 1

    class Child(Parent):
        pass

    wrapper = points().replace(Child, "method", lambda original: lambda self: 1 + original(self))
    assert Child().method() == 2
    wrapper.suspend()
    assert "method" not in vars(Child)
    wrapper.resume()
    assert Child().method() == 2


def test_what_others_wrap_while_it_is_in_place_stays():
    owner = SimpleNamespace(function=usual)
    wrapper = points().replace(owner, "function", watched)
    owner.function = others(owner.function)
    wrapper.suspend()
    wrapper.resume()
    wrapper.restore()
    assert owner.function() == "others' watched usual"


def test_what_others_wrap_while_it_is_suspended_stays():
    owner = SimpleNamespace(function=usual)
    wrapper = points().replace(owner, "function", watched)
    wrapper.suspend()
    owner.function = others(owner.function)
    wrapper.resume()
    wrapper.restore()
    assert owner.function() == "others' usual"


def test_nothing_resumes_after_a_failure():
    found, owner = points(), SimpleNamespace(function=usual)
    wrapper = found.replace(owner, "function", watched)
    found.fail(ValueError("no"))
    wrapper.resume()
    assert owner.function is usual


def on(now: float = 0.0) -> FastPath:
    """A fast path that has just been taken."""
    fast, source = (
        FastPath(),
        Pass(SimpleNamespace(read=len, counts_indices=False), SimpleNamespace(), is_training=True),
    )
    for _ in range(MIN_ALIKE + 1):
        assert not fast.is_on
        fast.step(1, source, now, is_usual=True)
    assert fast.is_on
    return fast


def looks(step_s: float, steps: int) -> list[int]:
    """At which steps of one length it looks."""
    fast, found = on(), []
    for each in range(1, steps + 1):
        fast.steps += 1
        if fast.steps >= fast.look_at:
            found.append(each)
            fast.look(each * step_s)
    assert fast.step_s == pytest.approx(step_s)
    return found


def test_long_steps_are_all_looked_at():
    assert looks(2 * LOOK_SECONDS, 50) == list(range(1, 51))


def test_of_short_steps_some_are_looked_at_and_no_batch_is_preferred():
    found = looks(LOOK_SECONDS / 100, 8000)
    assert len(found) == pytest.approx(8000 / MAX_UNSEEN, rel=0.1)
    # Of passes over eight batches, each of them.
    for batch in range(8):
        assert sum(each % 8 == batch for each in found) == pytest.approx(len(found) / 8, rel=0.2)


def test_the_latest_step_is_where_its_fellows_are_or_now():
    fast = on()
    fast.steps = 1
    fast.look(0.001)
    fast.steps = 4
    assert fast.latest_s(9.0) == pytest.approx(0.004)
    assert fast.latest_s(0.0035) == 0.0035


def test_a_forked_process_does_not_go_on_with_its_parents_steps():
    observer = TrainingObserver(torch, SimpleNamespace(send=lambda message: None))
    try:
        losses, fast = observer._losses, observer.fast
        fast.optimizer, fast.num_alike = 1, MIN_ALIKE
        observer.restart()
        fast.step(1, None, 0.0, is_usual=True)
        assert not fast.is_on
        # What is still being copied from a GPU is not freed, which would take CUDA.
        assert observer._losses is not losses
        assert losses in observer._of_parents
    finally:
        observer.points.fail(ValueError("the end of the test"))


def test_steps_that_a_cuda_graph_replays_are_not_counted(monkeypatch):
    said: list[dict] = []
    observer = TrainingObserver(torch, SimpleNamespace(send=said.append))
    parameter = torch.nn.Parameter(torch.ones(1))
    step = observer.points.guard(observer.step_ended)
    step(torch.optim.SGD([parameter], lr=0.1))
    assert "failed" not in said[-1]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    step(torch.optim.SGD([parameter], lr=0.1))
    assert "replayed from a CUDA graph" in said[-1]["failed"]
