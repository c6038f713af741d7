"""The record of a machine: shared by all sweeps of a home, and no obstacle when it is spoilt."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from sweeper.core.config import TrialConfig
from sweeper.race.drift import PRIOR_FREEDOM, Block
from sweeper.sweep.folder.machine_record import MAX_BLOCKS, MachineRecord, speed_key


def block(at: float) -> Block:
    return Block(at=at, of=f"sweep-{at:g}", speeds={"a": (5.0 + at, 1e-4), "b": (7.0, 1e-4)})


def test_what_is_added_is_found_by_the_next_sweep(tmp_path: Path) -> None:
    MachineRecord(tmp_path, "2 cores", "node").add(block(1.0))
    MachineRecord(tmp_path, "2 cores", "node").add(block(2.0))
    found = MachineRecord(tmp_path, "2 cores", "node")
    assert [each.at for each in found.blocks()] == [1.0, 2.0]
    assert found.drift(before="").speed.freedom > PRIOR_FREEDOM


@pytest.mark.parametrize(("line", "node"), [("4 cores", "node"), ("2 cores", "other")])
def test_another_machine_has_a_record_of_its_own(tmp_path: Path, line: str, node: str) -> None:
    MachineRecord(tmp_path, "2 cores", "node").add(block(1.0))
    assert MachineRecord(tmp_path, line, node).blocks() == []


def test_a_sweep_that_goes_on_adds_its_rounds_once(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path, "2 cores", "node")
    record.add(block(1.0))
    record.add(dataclasses.replace(block(2.0), of=block(1.0).of))
    record.add(Block(at=9.0, of="nothing", speeds={}))
    assert [each.at for each in record.blocks()] == [2.0]


def test_a_sweep_that_goes_on_does_not_learn_from_its_own_rounds(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path, "2 cores", "node")
    record.add(block(1.0))
    before = record.drift(before=block(2.0).of)
    record.add(block(2.0))
    assert record.drift(before=block(2.0).of) == before != record.drift(before="")


@pytest.mark.parametrize(
    "text", ["", "{", '{"blocks": 3}', '{"blocks": [{"at": "x"}]}', "[]", '{"blocks": [{}]}']
)
def test_a_spoilt_file_is_no_record(tmp_path: Path, text: str) -> None:
    record = MachineRecord(tmp_path, "2 cores", "node")
    record.add(block(1.0))
    (path,) = (tmp_path / "machines").glob("*.json")
    path.write_text(text, encoding="utf-8")
    assert record.blocks() == []
    record.add(block(2.0))
    assert len(record.blocks()) == 1


def test_the_latest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.sweep.folder.machine_record.MAX_BLOCKS", 3)
    record = MachineRecord(tmp_path, "2 cores", "node")
    for at in range(5):
        record.add(block(float(at)))
    assert [each.at for each in record.blocks()] == [2.0, 3.0, 4.0]
    assert MAX_BLOCKS >= 100


def test_sweeps_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def add(number: int) -> None:
        MachineRecord(tmp_path, "2 cores", "node").add(block(float(number)))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(MachineRecord(tmp_path, "2 cores", "node").blocks()) == 12


def test_a_speed_is_known_again_in_a_sweep_of_another_space() -> None:
    config = TrialConfig()
    key = speed_key({"code": "a", "space": {"batch_size": [1, 2]}, "seed": 0}, config)
    assert key == speed_key({"code": "a", "space": {"batch_size": [1, 9]}, "seed": 1}, config)
    assert key != speed_key({"code": "b", "space": {"batch_size": [1, 2]}, "seed": 0}, config)
    assert key != speed_key({"code": "a", "space": {}, "seed": 0}, TrialConfig(batch_size=1))
