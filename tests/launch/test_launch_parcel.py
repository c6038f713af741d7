"""Parcels: there and back equal, and nothing in one that belongs elsewhere."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.job import CONFIG, OUTCOME, Job, MeasurePlan, read_outcome, write_job, write_outcome
from sweeper.core.measurement import Failure, FailureKind, Report
from sweeper.launch.parcel import Parcel, pack_folder, unpack_into, write_code

DONE = Report(values={"a": 1}, finished_at=2.0)


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return buffer.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_parcel_comes_out_as_it_was_packed() -> None:
    job = Job(
        uid="0007",
        config=TrialConfig(batch_size=64, model={"hidden_size": 3}),
        plan=MeasurePlan(repeats=2),
        pipeline="pipelines.stocks",
        data={"source": "synthetic", "limit": 100},
        env={"A": "ü"},
        stage_seconds={"compile": 3.0},
        attempt=1,
    )
    parcel = Parcel(
        job=job,
        sweep="s-1",
        epoch=3,
        isolation="exec",
        env={"WANDB_API_KEY": "x" * 20},
        pass_env=("WANDB_API_KEY",),
        code={"pipelines/__init__.py": "", "pipelines/stocks.py": "name = 'é😀'\r\n", "about.json": "{}"},
    )
    assert Parcel.from_bytes(parcel.to_bytes()) == parcel


def test_code_is_written_as_it_is(tmp_path: Path) -> None:
    code = {"pipelines/__init__.py": "", "pipelines/deep/er.py": "name = 'é'\n"}
    write_code(tmp_path, code)
    assert contents(tmp_path) == {name: text.encode() for name, text in code.items()}


def test_what_a_job_left_arrives_less_its_config(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    write_job(there, Job(uid="1", origin="as it is on the worker"))
    (there / "series").mkdir()
    (there / "series" / "t.npy").write_bytes(bytes(range(256)))
    (there / "worker.log").write_bytes(b"\xff a line\n")
    (there / "script").mkdir()
    (there / "script" / CONFIG).write_text("the script's own")
    write_outcome(there, DONE)
    write_job(here, Job(uid="1", origin="as it is here"))
    config = (here / CONFIG).read_bytes()
    unpack_into(here, pack_folder(there))
    assert contents(here) == {**contents(there), CONFIG: config}
    assert read_outcome(here) == DONE


def test_what_a_link_leads_to_stays_there(tmp_path: Path) -> None:
    folder, secret = tmp_path / "job", tmp_path / "id_rsa"
    folder.mkdir()
    secret.write_text("private")
    (folder / "linked").symlink_to(secret)
    (folder / "plain").write_text("x")
    unpack_into(tmp_path / "here", pack_folder(folder))
    assert contents(tmp_path / "here") == {"plain": b"x"}


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/elsewhere", "series/../../elsewhere", ".", "series/"])
def test_names_that_belong_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a" / "b"
    with pytest.raises(ValueError, match="outside its folder"):
        unpack_into(folder, archive({"fine": b"", name: b"x"}))
    with pytest.raises(ValueError, match="outside its folder"):
        Parcel.from_bytes(archive({"about.json": b"{}", f"code/{name}": b"x"}))
    assert contents(tmp_path) == {}


def test_the_outcome_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    write_outcome(there, DONE)
    (there / "z.log").write_text("later in the archive")
    monkeypatch.setattr(Path, "write_bytes", lambda *arguments: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        unpack_into(here, pack_folder(there))
    assert read_outcome(here) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 and no more",
        archive({OUTCOME: b"{"}),
        archive({OUTCOME: b"[]"}),
        archive({OUTCOME: b'{"schema": 1}'}),
        archive({OUTCOME: b'{"schema": 1, "type": "measurement"}'}),
    ],
    ids=range(6),
)
def test_what_no_worker_sends_is_a_value_error_and_writes_nothing(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match="a worker sent"):
        unpack_into(tmp_path, data)
    assert contents(tmp_path) == {}


def test_every_byte_that_is_spoilt_on_the_way_is_a_value_error_or_changes_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    write_outcome(there, Failure(kind=FailureKind.OOM, message="m" * 100))
    data = pack_folder(there)
    refused = 0
    for place in range(len(data)):
        spoilt = data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]
        here = tmp_path / str(place)
        here.mkdir()
        try:
            unpack_into(here, spoilt)
        except ValueError:
            refused += 1
        else:
            assert read_outcome(here) in (None, read_outcome(there))
    assert refused > len(data) // 4
