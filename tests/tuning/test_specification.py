"""The sweep underneath a tune, and what is tried of it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from measurements import measurement

from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import UserError
from sweeper.race.log import Turned
from sweeper.schema import load
from sweeper.script.changes.change import DRAWS
from sweeper.script.run.warm import WarmProcess
from sweeper.tuning.lives import cut_off_outcome
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.race import changes_of
from sweeper.tuning.specification import specification
from sweeper.tuning.tune import removed_after_use

OPTIONS = TuneOptions(command=("python", "train.py", "--lr={1}"), name="tune-train")
OWN = """
class Mine:
    name, choices, kind, why = "mine", ("on",), "exact", "planted"
    def apply(self, torch, value, report):
        report(True)

CHANGES = [Mine()]
"""


def warm(**facts: object) -> Measurement:
    return dataclasses.replace(measurement(), observed=facts)


def test_each_change_is_a_parameter_and_the_baseline_is_the_script_as_it_is():
    spec = load(specification(OPTIONS, 3.0))
    config = spec.baseline_config()
    script = spec.script_in(Path("/tmp"))
    assert script.changes_for(config.args) == {}
    assert script.variables(config.args) == {}
    made = spec.config({**spec.baseline, "loader": "gathered", "device.malloc": "retain"})
    assert script.changes_for(made.args) == {"loader": "gathered"}
    assert "MALLOC_TOP_PAD_" in script.variables(made.args)
    assert not {"batch_size", "augmentation_workers"} & spec.space.keys()


def test_other_draws_are_tried_only_where_they_are_allowed():
    allowed = dataclasses.replace(OPTIONS, allow_other_draws=True)
    assert "augmentation_workers" in specification(allowed, 3.0)["space"]
    changes = changes_of(OPTIONS, warm(num_workers=2, device="cpu"))
    assert all(change.refused for change in changes if change.kind == DRAWS)


def test_another_file_of_changes_is_another_tune(tmp_path):
    file = tmp_path / "changes.py"
    file.write_text(OWN)
    options = dataclasses.replace(OPTIONS, changes=file)
    first = specification(options, 3.0)
    assert first["space"]["mine"]["choices"] == ["original", "on"]
    file.write_text(OWN + "# other\n")
    assert specification(options, 3.0)["script"] != first["script"]
    file.write_text("CHANGES = 1")
    with pytest.raises(UserError, match="`--changes` must be a file of changes"):
        specification(options, 3.0)
    with pytest.raises(UserError, match="`--changes` must be a file of changes"):
        changes_of(options, warm())


def test_half_of_other_threads_than_those_of_the_machine_is_not_tried():
    cores = len(os.sched_getaffinity(0))

    def refused(threads: int) -> dict[str, str]:
        changes = changes_of(OPTIONS, warm(device="cpu", threads=threads))
        return {change.value: change.refused for change in changes if change.name == "threads"}

    assert refused(4 * cores)["half"] == "it does not use one thread per core"
    assert refused(4 * cores)["one"] == ""


def test_a_trial_that_was_cut_off_has_what_its_turns_measured():
    turns = [Turned(1, 5.0, 2.0, 10, 640.0), Turned(1, 9.0, 1.0, 5, 320.0)]
    found = cut_off_outcome(WarmProcess(measurement=measurement()), turns)
    assert isinstance(found, Measurement)
    assert (found.throughput, found.step_ms) == (320.0, 200.0)
    assert [window.samples for window in found.windows] == [640, 320]
    for known, among in ((None, turns), (WarmProcess(measurement=measurement()), [])):
        lost = cut_off_outcome(known, among)
        assert isinstance(lost, Failure)
        assert lost.kind is FailureKind.LOST


def test_what_two_tunes_share_is_there_until_both_have_ended(tmp_path):
    folder = tmp_path / "batches"
    with removed_after_use(folder):
        with removed_after_use(folder):
            (folder / "rows").touch()
        assert (folder / "rows").exists()
    assert not folder.exists()
