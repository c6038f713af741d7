"""Stretches of training, from counts and from speeds; what is a pause; losses after so many samples."""

from __future__ import annotations

import pytest

from sweeper.core.progress import TrialFailedError
from sweeper.script.run.events import EventStream, Sizes
from sweeper.script.run.result import run_parts
from sweeper.script.run.timeline import Timeline


def test_counts_make_stretches_less_their_pauses():
    timeline = Timeline()
    for moment, samples, steps, paused in [(1.0, 0, 0, 0.0), (2.0, 100, 10, 0.0), (5.0, 200, 20, 2.0)]:
        timeline.count(moment, samples, steps, paused)
    assert [(each.seconds, each.samples, each.paused_seconds) for each in timeline.stretches] == [
        (1.0, 100, 0.0),
        (1.0, 100, 2.0),
    ]
    assert [each.start_s for each in timeline.stretches] == [1.0, 2.0]


def test_a_telling_without_progress_belongs_to_the_next_stretch():
    timeline = Timeline()
    for moment, samples in [(1.0, 10), (2.0, 10), (3.0, 20)]:
        timeline.count(moment, samples, 0)
    assert [(each.seconds, each.samples) for each in timeline.stretches] == [(2.0, 10)]


def test_lines_that_come_together_are_one_telling():
    timeline = Timeline()
    for moment, samples, steps in [(1.0, 10, 1), (1.0, 20, 2), (2.0, 30, 3), (2.0, 50, 5), (3.0, 60, 6)]:
        timeline.count(moment, samples, steps)
    assert [(e.seconds, e.samples, e.steps) for e in timeline.stretches] == [(1.0, 30, 3), (1.0, 10, 1)]


def test_a_speed_holds_for_the_time_since_the_last():
    timeline = Timeline()
    for moment, speed in [(1.0, 50.0), (2.0, 100.0), (4.0, 200.0)]:
        timeline.rate(moment, speed, 10.0)
    assert [(e.seconds, e.samples, e.steps) for e in timeline.stretches] == [(1.0, 100, 10), (2.0, 400, 40)]


def test_training_is_steady_once_its_blocks_agree():
    timeline = Timeline()
    timeline.count(0.0, 0, 0)
    moment = 5.0
    timeline.count(moment, 10, 1)
    for i in range(2, 40):
        assert not timeline.is_steady() or i > 4
        moment += 0.1
        timeline.count(moment, 10 * i, i)
    assert timeline.is_steady()


def test_the_loss_is_the_mean_over_the_last_tenth():
    timeline = Timeline()
    for samples, loss in [(100, 9.0), (850, 5.0), (950, 2.0), (1000, 1.0), (1100, 0.0)]:
        timeline.add_loss("loss", loss, samples)
    assert timeline.loss_at(1000) == 1.5
    assert timeline.loss_at(500) == 9.0
    assert timeline.loss_at(50) is None


def test_a_validation_loss_is_the_first_from_there_on():
    timeline = Timeline()
    assert timeline.val_loss_at(1) is None
    for samples, loss in [(100, 3.0), (200, 2.0)]:
        timeline.add_loss("val_loss", loss, samples)
    assert [timeline.val_loss_at(n) for n in (50, 150, 250)] == [3.0, 2.0, 2.0]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_trial(value):
    with pytest.raises(TrialFailedError, match="no longer finite"):
        Timeline().add_loss("loss", value, 1)


def told(*lines, **sizes) -> EventStream:
    source = EventStream(Sizes(**{"per_step": 10, **sizes}))
    for moment, found, *val in lines:
        source.add(found, moment, is_evaluation=bool(val))
    return source


def test_a_counter_that_begins_again_is_a_new_epoch():
    source = told(
        (0, {"step": 0, "steps": 100}),
        (1, {"step": 90, "steps": 100}),
        (2, {"step": 40, "steps": 100}),
        (3, {"step": 90, "steps": 100}),
    )
    assert [each.samples for each in source.counted.stretches] == [900, 500, 500]


def test_a_validation_between_counts_is_no_training():
    source = told(
        (0, {"step": 10}),
        (1, {"step": 20}),
        (2, {"step": 1}, "val"),
        (3, {"val_loss": 0.5}),
        (4, {"step": 30}),
    )
    assert [(e.seconds, e.paused_seconds) for e in source.counted.stretches] == [(1, 0), (1, 2)]
    assert source.counted.val_losses == [(200, 0.5)]


def test_counts_are_believed_before_speeds():
    source = told(*((i, {"step": 10 * i, "steps_per_s": 99.0}) for i in range(5)))
    assert source.timeline is source.counted
    assert source.by == "step"
    assert told(*((i, {"steps_per_s": 99.0}) for i in range(5))).by == "steps_per_s"


@pytest.mark.parametrize(
    ("found", "samples_per_second"),
    [
        ({"ms_per_step": 20.0}, 500),
        ({"s_per_step": 0.5}, 20),
        ({"steps_per_s": 3.0}, 30),
        ({"samples_per_s": 7.0}, 7),
        ({"tokens_per_s": 640.0}, 10),
        ({"epoch_seconds": 2.0}, 250),
    ],
)
def test_every_unit_becomes_samples_per_second(found, samples_per_second: float):
    source = told(*((i, found) for i in range(3)), per_epoch=500, tokens=64)
    assert [e.samples / e.seconds for e in source.rated.stretches] == pytest.approx([samples_per_second] * 2)


def test_steps_without_a_size_count_for_nothing():
    assert told((0, {"step": 1}), (1, {"step": 2}), per_step=0).timeline.stretches == []


@pytest.mark.parametrize(
    ("printed", "moments", "expected"),
    [
        # `4s - loss 0.3`: any time from 3.5 to 5, which the arrival of the lines tells.
        (4.0, [4.6, 9.2, 13.8], 100 / 4.6),
        (0.0, [0.4, 0.8, 1.2], 100 / 0.4),
        # An evaluation between the lines is no training.
        (4.0, [10.0, 20.0, 30.0], 100 / 4.0),
        (4.63, [4.6, 9.2, 13.8], 100 / 4.63),
        (90.0, [90.4, 180.8, 271.2], 100 / 90.0),
    ],
)
def test_whole_seconds_are_a_range(printed: float, moments: list[float], expected: float):
    events = EventStream(Sizes(per_epoch=100))
    for moment in moments:
        events.add({"epoch_seconds": printed}, moment)
    last = events.rated.stretches[-1]
    assert last.samples / last.seconds == pytest.approx(expected)


def test_recorded_steps_are_no_part_of_what_a_run_takes():
    timeline = Timeline()
    # The first stretch is recorded: its steps take ten times as long.
    for moment, steps, paused in [(1.0, 0, 0.0), (11.0, 10, 0.0), (14.0, 30, 1.0)]:
        timeline.count(moment, 10 * steps, steps, paused)
    names = ("pass_s", "passes", "save_s", "saves", "paused_save_s")
    earlier = dict.fromkeys(names, 1.0) | {"paused_save_s": 0.0, "batches": 50}
    between = {"pass_s": 1.5, "passes": 2.0, "save_s": 1.0, "saves": 1.0, "paused_save_s": 0.0, "batches": 50}
    found = run_parts(timeline, between, 0.5, (1, earlier))
    assert found is not None
    assert (found.startup_s, found.num_steps, found.num_passes, found.num_checkpoints) == (0.5, 20, 1, 0)
    assert (found.steps_s, found.pass_starts_s, found.evaluations_s) == (1.5, 0.5, 1.0)
    assert found.pass_batches == 50
    assert timeline.paused_share == pytest.approx(1 / 13)
    assert run_parts(timeline, between, 0.5, (2, earlier)) is None
