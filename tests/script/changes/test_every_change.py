"""What every change says about itself, and the user's own: the ten answers, from one class."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from parts.noop import synthetic

from sweeper.script.changes import BATCH_SIZE, CHANGES, load_changes, takes_long
from sweeper.script.changes.change import (
    CHANGES_TRAINING,
    CLOSE,
    DRAWS,
    EXACT,
    HALF,
    SINGLE,
    Change,
    SpeedupCeiling,
    Step,
)
from sweeper.script.changes.loader import BATCHED, ON_DEVICE
from sweeper.script.patch.edits import PatchedChange, Sources, edit_sources
from sweeper.script.patch.source import CannotEditError
from sweeper.tuning.changes import list_changes
from sweeper.tuning.race import ORDER

DOCS = Path(__file__).parents[3] / "docs" / "tuning.md"
STEP = Step(
    seconds=1.0, data=0.5, compute=0.4, optimizer=0.1, collecting=0.1, launching=0.3, one_batch_ratio=3.0
)
ON_CPU = {
    "device": "cpu",
    "threads": 8,
    "num_workers": 1,
    "batch_size": 32,
    "ranks": 2,
    "accumulate_steps": 4,
    "collector_share": 0.1,
}
ON_GPU = {**ON_CPU, "device": "cuda"}
TRAIN = """\
import torch
model = torch.nn.Linear(3, 1)
loader = torch.utils.data.DataLoader(rows, batch_size=32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.fixture(params=CHANGES.values(), ids=CHANGES)
def change(request: pytest.FixtureRequest) -> Change:
    found: Change = request.param
    return found


def values_of(change: Change) -> tuple[str, ...]:
    return change.choices or ("64/32",)


def test_it_says_what_it_is_called_and_what_it_may_be(change: Change):
    assert CHANGES[change.name] is change
    assert change.choices or change is BATCH_SIZE
    assert change.original not in change.choices
    assert change.kind in (EXACT, CLOSE, DRAWS, CHANGES_TRAINING)
    assert change.rounding > 0


def test_it_says_why(change: Change):
    assert re.fullmatch("[^\n]{20,110}[^.]", change.why)


def test_it_says_where_it_is_not_tried(change: Change, monkeypatch: pytest.MonkeyPatch):
    # `augmentation_workers` is for cores without workers.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for facts in ({}, ON_CPU, ON_GPU):
        for value in values_of(change):
            assert isinstance(change.refusal(value, facts), str)
    # Somewhere it is: with huge pages, which a kernel may lack, in a test of its own.
    tried = [
        value for facts in (ON_CPU, ON_GPU) for value in values_of(change) if not change.refusal(value, facts)
    ]
    assert tried or change.name == "huge_pages"


def test_it_says_what_it_could_save_and_how_long_it_may_take(change: Change):
    for value in values_of(change):
        ceiling = change.ceiling(value, STEP)
        assert ceiling is None or ceiling.ratio > 1
    assert change.limit_seconds >= 0


def test_a_tune_has_a_place_for_it(change: Change):
    assert change.name in ORDER or change.kind != CLOSE or takes_long(change.name)


def test_it_is_made_in_the_process_or_by_the_environment(change: Change):
    variables = [change.environment(value, ON_CPU) for value in values_of(change)]
    assert all(variables) is any(variables) is change.is_of_environment
    assert type(change).apply is not Change.apply


def test_it_is_written_into_the_source_or_says_why_not(change: Change, tmp_path: Path):
    assert bool(change.no_edit) is (type(change).edit is Change.edit)
    if change.no_edit:
        return
    (tmp_path / "train.py").write_text(TRAIN)
    places = {"loader": "train.py:3", "optimizer": "train.py:4"}
    sources = Sources(folder=tmp_path, main="train.py", places=places, threads=8)
    for value in values_of(change):
        new, _, old = value.partition("/")
        made = PatchedChange(name=change.name, value=new, original=old, comment="Because.")
        if value in (ON_DEVICE, BATCHED):
            with pytest.raises(CannotEditError, match="; use `sweeper exec`"):
                edit_sources(sources, [made])
            continue
        (text,) = edit_sources(sources, [made]).values()
        assert "# Because." in text
        compile(text, "train.py", "exec")


TF32 = {"device": "cuda", "convolves": True, "recurs": False, "cudnn_tf32": True}


@pytest.mark.parametrize("name", ["layout", "cudnn_benchmark", "compile"])
def test_where_cudnn_may_take_a_kernel_in_tf32_the_tolerance_is_that_of_16_bits(name: str):
    """A kernel in TF32 in the place of one in float32 differs by 1e-3 in the first step already."""
    change = CHANGES[name]
    assert change.tolerance(TF32) == change.tolerance({**TF32, "convolves": False, "recurs": True}) == HALF
    for facts in ({"device": "cpu"}, {"convolves": False}, {"cudnn_tf32": False}):
        assert change.tolerance({**TF32, **facts}) == SINGLE
    assert CHANGES["optimizer"].tolerance(TF32) == SINGLE
    measured = dataclasses.replace(synthetic(100.0), observed=TF32)
    assert {v.rounding for v in list_changes(measured) if v.name == name} == {HALF}


def test_what_the_script_has_set_is_not_offered():
    assert (
        CHANGES["cudnn_benchmark"].refusal("search", {**TF32, "cudnn_search": True})
        == "the script has set it"
    )
    assert CHANGES["tf32"].refusal("on", {**TF32, "tf32": True}) == "the script has set it"
    assert CHANGES["tf32"].refusal("on", {**TF32, "tf32": True, "cudnn_tf32": False}) == ""


def test_the_users_own_has_the_same_form_and_what_it_leaves_open_is_as_usual(tmp_path: Path):
    (block,) = re.findall(r'^```python title="changes.py"\n(.*?)^```$', DOCS.read_text(), re.M | re.S)
    assert block.count("\n") <= 20
    path = tmp_path / "changes.py"
    path.write_text(block)
    own = load_changes(str(path))["denormals"]
    assert isinstance(own, Change)
    assert own.ceiling("flushed", STEP) == SpeedupCeiling(STEP.seconds / 0.6, "without its arithmetic")
    assert own.refusal("flushed", ON_GPU)
    assert (own.refusal("flushed", ON_CPU), own.limit_seconds, own.is_of_environment) == ("", 0.0, False)
    (tmp_path / "train.py").write_text(TRAIN)
    sources = Sources(folder=tmp_path, main="train.py", places={}, changes=load_changes(str(path)))
    made = PatchedChange(name="denormals", value="flushed", comment="Because.")
    (text,) = edit_sources(sources, [made]).values()
    assert "torch.set_flush_denormal(True)" in text
