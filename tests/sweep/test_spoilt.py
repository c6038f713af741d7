"""A sweep's folder that something else has spoilt: one line that names the file, and never a traceback."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from sweeper.errors import EnvironmentStopError
from sweeper.sweep.folder.catalog import journal_at
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.publish import run_views, sweep_info

SPOILT = {
    "empty": b"",
    "torn": None,
    "not text": b"\xff\xfe\x00{",
    "null": b"null",
    "a list": b"[]",
    "no keys": b"{}",
    "too deep": b"[" * 100_000,
    "another type": b'{"type": ["measurement"], "winner": "x", "ratios": 3, "search_end": 1, "spec": 3}',
    "a report of nothing": b'{"type": "report", "values": {}}',
    "odd winner": b'{"type": "measurement", "winner": 99, "ratios": [], "search_end": "x"}',
    "odd ratios": b'{"type": "failure", "winner": 3, "ratios": [{"trial": "x"}], "search_end": "x"}',
    "odd counts": b'{"type": "?", "winner": 3, "ratios": [], "search_end": "x", "disturbances": {"a": 1}}',
}
FILES = (
    "sweep.yaml",
    "result.json",
    "trials/0003/config.json",
    "trials/0003/outcome.json",
    "trials/0003/search_result.json",
    "setup/loss-0/outcome.json",
)


@pytest.fixture
def folder(bench) -> Path:
    bench.run()
    return bench.home / "sweeps" / "toy"


def read_all(folder: Path) -> None:
    sweep = load_sweep(journal_at(folder))
    assert sweep.summary
    sweep_info(sweep)
    assert list(run_views(sweep))


def said_of(folder: Path) -> str:
    try:
        read_all(folder)
    except EnvironmentStopError as error:
        return str(error)
    return ""


def test_a_spoilt_file_is_one_line_that_names_it(folder):
    read_all(folder)
    for name in FILES:
        path = folder / name
        whole = path.read_bytes()
        for how, content in SPOILT.items():
            path.write_bytes(whole[: len(whole) // 2] if content is None else content)
            text = said_of(folder)
            assert text, f"{name}: {how}"
            assert "\n" not in text, how
            assert str(path) in text, how
            assert len(text) < 700, how
        path.write_bytes(whole)
    read_all(folder)


def test_a_value_of_another_type_in_a_result_is_such_a_line(folder):
    path = folder / "result.json"
    whole = json.loads(path.read_text())
    refused = 0
    for key in whole:
        for value in ("x", {"a": 1}):
            path.write_text(json.dumps({**whole, key: value}))
            text = said_of(folder)
            refused += bool(text)
            assert not text or str(path) in text
    assert refused > 5


@pytest.mark.parametrize("how", ["link", "file", "fifo"])
def test_what_is_no_folder_and_what_is_no_file(folder, how):
    trial = folder / "trials" / "0003"
    aside = folder / "elsewhere"
    trial.rename(aside)
    if how == "link":
        trial.symlink_to(aside)
    elif how == "file":
        trial.write_text("")
    else:
        aside.rename(trial)
        (trial / "outcome.json").unlink()
        os.mkfifo(trial / "outcome.json")
    with pytest.raises(EnvironmentStopError, match=r"trials/0003"):
        read_all(folder)


def test_what_is_removed_as_told_runs_again(bench, folder):
    (folder / "result.json").unlink()
    (folder / "trials/0004/outcome.json").write_bytes(b"")
    with pytest.raises(EnvironmentStopError, match="run that job again") as caught:
        bench.run()
    assert str(folder / "trials/0004/outcome.json") in str(caught.value)
    (folder / "trials/0004/outcome.json").unlink()
    assert bench.run().was_run
    read_all(folder)


def test_no_trial_is_written_behind_a_link(bench, folder):
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "trials" / "0009")
    outside = bench.home / "outside"
    outside.mkdir()
    (folder / "trials" / "0009").symlink_to(outside)
    with pytest.raises(EnvironmentStopError, match="link"):
        bench.run()
    assert list(outside.iterdir()) == []


@pytest.mark.slow
def test_a_large_specification_is_read_back(bench):
    """The folder holds it several times: what a person may write must never be too long for ourselves."""
    from replays import spec_of

    names = {f"model.k{i}": {"type": "categorical", "choices": list(range(16))} for i in range(500)}
    journal = Journal(bench.home / "sweeps" / "large")
    journal.folder.mkdir(parents=True)
    spec = spec_of(space=names)
    journal.begin(spec, {"space": spec.to_dict()["space"]}, {"device": "x", "synthetic": True})
    assert journal.spec() == spec
