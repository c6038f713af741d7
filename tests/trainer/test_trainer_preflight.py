"""The preflight job: a few steps of any loader, as many as a captured step needs, and its failures."""

from __future__ import annotations

import pytest

from sweeper.core.config import CompileConfig
from sweeper.core.loaders import BUILTIN
from sweeper.core.measurement import FailureKind, Report
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.trainer import preflight
from sweeper.trainer.step.graph import EAGER_STEPS
from sweeper.trainer.step.stepper import Stepper


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Stepper]:
    """The steppers that took a step, one for each of them."""
    taken: list[Stepper] = []
    step = Stepper.step
    monkeypatch.setattr(Stepper, "step", lambda self, *args: (taken.append(self), step(self, *args))[1])
    return taken


@pytest.mark.parametrize("kind", BUILTIN)
@pytest.mark.parametrize("amp", ["fp32", "bf16"])
def test_every_loader_takes_two_steps(make_job, steps, kind, amp):
    found = preflight.run(make_job({"loader.kind": kind, "precision.amp": amp}), SilentProgress())
    assert isinstance(found, Report)
    assert found.values == {"steps": 2}
    assert len(steps) == 2


def test_a_step_is_of_all_its_micro_batches(make_job, steps):
    preflight.run(make_job({"accumulate_steps": 3, "batch_size": 20}), SilentProgress())
    assert steps[0].updates == 2


def test_a_captured_step_is_captured():
    assert preflight.steps_of(CompileConfig(mode="graph")) > EAGER_STEPS + 1
    # Warmed up, recorded, and run twice from then on.
    assert preflight.steps_of(CompileConfig(mode="reduce-overhead")) == 4
    assert preflight.steps_of(CompileConfig(mode="default")) == 2


def test_what_cannot_run_is_a_failure_with_its_kind(make_job):
    with pytest.raises(TrialFailedError, match="graph` needs a GPU") as caught:
        preflight.run(make_job({"compile.mode": "graph"}), SilentProgress())
    assert caught.value.kind == FailureKind.UNSUPPORTED


def test_a_loss_that_is_not_finite_is_no_failure(make_job):
    assert preflight.run(make_job({"model.fault": "nan"}), SilentProgress()).values == {"steps": 2}
