"""What the hook reports of a script's processes, put together; its steps taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.progress import TrialFailedError
from sweeper.core.script import Script
from sweeper.errors import UserError
from sweeper.script.run.output import Listener, _kind, samples_per_step
from sweeper.script.run.taken_apart import StepAnalysis, usual_seconds
from sweeper.script.run.watched import PATIENCE_STEPS, WatchedTraining

AS_IT_IS = {
    "part": "as it is",
    "steps": 10,
    "samples": 320,
    "wall": {
        "data": 0.5,
        "forward": 0.2,
        "backward": 0.2,
        "optimizer": 0.05,
        "rest": 0.05,
        "evaluation": 1.0,
    },
    "host": {"data": 0.5, "forward": 0.1, "backward": 0.1, "optimizer": 0.04, "rest": 0.05},
    "cpu": {"forward": 0.15, "backward": 0.4, "optimizer": 0.05},
    "waited": 0.01,
}


def totals(pid=1, **changes):
    return {
        "by": "hook",
        "pid": pid,
        "t": 1.0,
        "steps": 1,
        "samples": 32,
        "paused": 0.0,
        "pausing": False,
    } | changes


def taken(*messages):
    found = StepAnalysis()
    for each in messages:
        found.add(each)
    return found


def test_totals_of_processes_side_by_side_are_added():
    watched = WatchedTraining(0.0)
    for each in (
        totals(1),
        totals(2, t=1.1),
        totals(1, t=2.0, steps=3, samples=96, source="optimizer steps"),
    ):
        watched.add(each)
    assert (watched.timeline.samples, watched.trainers, watched.by) == (
        128,
        [1, 2],
        "torch (optimizer steps)",
    )
    assert sum(each.steps for each in watched.timeline.stretches) == 3


def test_without_samples_steps_are_counted_after_a_while():
    watched = WatchedTraining(0.0)
    watched.add(totals(steps=PATIENCE_STEPS - 1, samples=0))
    assert watched.timeline.samples == 0
    watched.add(totals(steps=PATIENCE_STEPS, samples=0, t=2.0))
    assert watched.timeline.samples == PATIENCE_STEPS


def test_with_the_batch_of_the_command_line_they_are_samples():
    watched = WatchedTraining(16.0)
    watched.add(totals(steps=PATIENCE_STEPS, samples=0))
    assert watched.timeline.samples == 16 * PATIENCE_STEPS


def listener(tmp_path: Path, *messages):
    found = Listener(Script(command=("true",)), TrialConfig(args={}), tmp_path)
    try:
        for each in messages:
            found._add_message(each)
        for second in range(4):
            found.read_output(1, f"{100 * second} samples/s step {second}\n".encode(), float(second))
    finally:
        found.close()
    return found


def test_torch_is_believed_before_the_output(tmp_path: Path):
    found = listener(tmp_path, totals(), totals(t=2.0, steps=9, samples=288, source="optimizer steps, x"))
    assert found.source == "torch (optimizer steps, x)"


def test_steps_of_unknown_size_are_believed_after_everything_else(tmp_path: Path):
    messages = [totals(t=float(n), steps=PATIENCE_STEPS * n, samples=0) for n in (1, 2, 3)]
    assert listener(tmp_path, *messages).source.startswith("the output")


def test_a_loss_that_is_not_finite_fails_the_trial():
    with pytest.raises(TrialFailedError, match="no longer finite"):
        WatchedTraining(0.0).add(totals(loss=None))


def test_the_breakdown_is_of_a_mean_step_without_evaluation():
    found = taken(AS_IT_IS).breakdown()
    assert (found.data_s, found.backward_s, found.host_gap_s) == pytest.approx((0.05, 0.02, 0.005))
    assert found.step_s == pytest.approx(0.1)


def test_the_parts_alone(tmp_path: Path):
    one = {"part": "one batch", "samples": 320, "wall": {"data": 9.0, "forward": 0.4, "backward": 0.6}}
    loader = {"part": "loader", "samples": 1000, "seconds": 2.0}
    halves = {"part": "halves", "full": 0.04, "half": 0.03}
    lines = {"part": "lines", "lines": {"data": [[f"{tmp_path.resolve()}/data.py", 9, 0.5]], "rest": []}}
    found = taken(AS_IT_IS, one, loader, halves, lines).diagnosis(tmp_path, on_gpu=False)
    assert (found.device_samples_s, found.loader_samples_s) == (320, 500)
    assert (found.full_step_s, found.half_step_s) == (0.04, 0.03)
    # 0.2 - 0.15 of forward, none of backward, none of the optimizer, and 0.01 without a core.
    assert found.blocked_s == pytest.approx(0.004)
    assert found.lines == {"data": ("data.py:9",)}


def test_what_changes_a_batch_belongs_to_the_data_and_its_copy_does_not(tmp_path: Path):
    prepared = AS_IT_IS | {"wall": {**AS_IT_IS["wall"], "preparation": 0.4}}
    at = {
        name: [[f"{tmp_path.resolve()}/train.py", line, share]]
        for name, line, share in (("data", 7, 0.1), ("preparation", 9, 0.4))
    }
    lines = {"part": "lines", "lines": at}
    mostly = taken(prepared | {"copy": 0.01}, lines)
    assert (mostly.breakdown().data_s, mostly.breakdown().h2d_s) == pytest.approx((0.05 + 0.03, 0.01))
    found = mostly.diagnosis(tmp_path, on_gpu=True)
    assert found.preparation_s == pytest.approx(0.03)
    assert found.lines == {"data": ("train.py:9", "train.py:7")}
    a_copy = taken(prepared | {"copy": 0.05}, lines)
    assert (a_copy.breakdown().data_s, a_copy.breakdown().h2d_s) == pytest.approx((0.05, 0.04))
    assert a_copy.diagnosis(tmp_path, on_gpu=True).lines == {"data": ("train.py:7",), "copy": ("train.py:9",)}


def test_lines_are_named_from_where_the_script_runs(tmp_path: Path):
    paths = [tmp_path / "mine" / "train.py", tmp_path / "model" / "net.py", Path("/usr/lib/other.py")]
    lines = {"part": "lines", "lines": {"forward": [[str(path.resolve()), 7, 0.3] for path in paths]}}
    found = taken(AS_IT_IS, lines).diagnosis(tmp_path / "mine", on_gpu=False).lines
    assert found == {"forward": ("train.py:7", "../model/net.py:7", "/usr/lib/other.py:7")}


def test_of_a_gpu_its_kernels_its_launches_and_the_lines_that_wait(tmp_path: Path):
    kernels = {"part": "kernels", "seconds": 0.03}
    waits = {"part": "waits", "lines": [[f"{tmp_path.resolve()}/train.py", 31]]}
    found = taken(AS_IT_IS, waits, kernels).diagnosis(tmp_path, on_gpu=True)
    assert (found.busy_s, found.issue_s) == (0.03, pytest.approx(0.024))
    assert (found.sync_places, found.blocked_s) == (("train.py:31",), None)
    # None that wait, and none that were looked for.
    none = taken(AS_IT_IS, waits | {"lines": []}).diagnosis(tmp_path, on_gpu=True)
    assert (none.sync_places, none.busy_s) == ((), None)
    assert taken(AS_IT_IS).diagnosis(tmp_path, on_gpu=True).sync_places is None
    assert taken(AS_IT_IS).diagnosis(tmp_path, on_gpu=False).issue_s is None


def test_one_batch_again_and_again_needs_neither_its_loader_nor_its_preparation(tmp_path: Path):
    wall = {"data": 9.0, "preparation": 5.0, "evaluation": 3.0, "forward": 0.4, "backward": 0.6}
    one = {"part": "one batch", "samples": 320, "wall": wall}
    assert taken(one).diagnosis(tmp_path, on_gpu=False).device_samples_s == 320


def test_what_was_not_reported_is_unknown(tmp_path: Path):
    nothing = taken()
    assert nothing.breakdown() is None
    found = nothing.diagnosis(tmp_path, on_gpu=False)
    assert (found.device_samples_s, found.blocked_s, found.lines) == (None, None, {})
    assert taken(AS_IT_IS).diagnosis(tmp_path, on_gpu=True).blocked_s is None


def printed(only: str, folder: Path, *lines: str) -> Listener:
    script = Script(command=("x",), samples_per_step="10", samples_per_epoch=100)
    listener = Listener(script, TrialConfig(), folder, only)
    for moment, line in enumerate(lines):
        listener.read_output(1, line.encode() + b"\n", float(moment))
    return listener


COUNTED, RATED = [f"step {n}" for n in range(9)], ["epoch 1 took: 2.5 s"] * 9


def test_the_speeds_of_a_sweep_come_from_one_source(tmp_path: Path):
    """At a larger batch, fewer counts are printed: what else is printed does not stand in for them."""
    first = printed("", tmp_path, *COUNTED)
    assert first.source == "the output (step)"
    again = printed(first.source, tmp_path, *COUNTED, *RATED)
    assert again.source.startswith("the output (step")
    other = printed(first.source, tmp_path, *RATED)
    assert (other.source, other.other_source()) == ("", "the output (epoch_seconds)")
    assert not other.timeline.stretches
    alone = printed("", tmp_path, *RATED)
    assert (alone.source, alone.other_source()) == ("the output (epoch_seconds)", "")
    for each in (first, again, other, alone):
        each.close()


@pytest.mark.parametrize(
    ("baseline", "trial"),
    [
        ("torch (optimizer steps, the loader's batches)", "torch (optimizer steps)"),
        ("the meter", "the meter"),
        ("MLflow (step)", "MLflow (step, samples)"),
    ],
)
def test_details_of_a_source_may_differ(baseline: str, trial: str):
    assert _kind(baseline) == _kind(trial)


@pytest.mark.parametrize("text", ["8-1", "e", "1.2.3", "", "2*", "nan"])
def test_samples_per_step_are_a_product_of_numbers(text: str):
    script = Script(command=("x",), samples_per_step=f"2*{text}")
    with pytest.raises(UserError, match="must be a product of numbers, but got"):
        samples_per_step(script, TrialConfig())
    script = Script(command=("x",), samples_per_step="2 * 1.5e1*.5")
    assert samples_per_step(script, TrialConfig()) == 15


def test_taking_steps_apart_takes_as_long_as_its_parts():
    # Five parts of a second, and one in which a batch and its half take turns.
    assert usual_seconds(0.001, on_gpu=False) == 6
    # Two more on a GPU.
    assert usual_seconds(0.001, on_gpu=True) == 8
    # Eight steps of each part, and twenty in turns, within their limits.
    assert usual_seconds(0.25, on_gpu=False) == pytest.approx(5 * 2 + 5)
    assert usual_seconds(9.0, on_gpu=False) == pytest.approx(5 * 4 + 10)


def test_a_loader_that_has_ended_at_once_has_no_speed(tmp_path: Path):
    ended = {"part": "loader", "samples": 32, "seconds": 0.0}
    assert taken(AS_IT_IS, ended).diagnosis(tmp_path, on_gpu=False).loader_samples_s is None


def test_where_torch_was_never_seen_a_reason_is_named():
    watched = WatchedTraining(0.0)
    assert "sets PYTHONPATH" in watched.doubt
    watched.programs[1] = {"torch": "2.13.0"}
    assert watched.doubt == ""
