"""Data that lies elsewhere: copied once, continued where it was cut off, copied again once it has changed."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from services import web

from sweeper.errors import UserError
from sweeper.system import remote_data
from sweeper.system.remote_data import digest, is_remote, local_copy

ROWS = b"a,b\n1,2\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_DATA_CACHE", str(tmp_path / "copies"))
    # Each call of a test is a start.
    monkeypatch.setattr(remote_data, "SAME_START_SECONDS", -1.0)
    return tmp_path / "copies"


@pytest.fixture
def bucket() -> Iterator[str]:
    system = fsspec.filesystem("memory")
    system.pipe({"/bucket/rows/a.csv": ROWS, "/bucket/rows/deep/b.csv": 1000 * ROWS})
    yield "memory://bucket/rows"
    system.rm("/bucket", recursive=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "rows.csv").write_bytes(ROWS)
    with web.served(tmp_path / "served") as address:
        yield f"{address}/rows.csv"


def test_a_path_is_no_address():
    assert is_remote("s3://bucket/rows")
    assert not is_remote("/data/rows")
    assert not is_remote("rows.csv")


def test_a_folder_is_copied_once(bucket: str):
    said: list[str] = []
    place = local_copy(bucket, said.append)
    assert (place / "a.csv").read_bytes() == ROWS
    assert (place / "deep" / "b.csv").read_bytes() == 1000 * ROWS
    assert said[0] == "Copying 0.0 MiB in 2 files from memory://bucket/rows, once."
    said.clear()
    assert local_copy(bucket, said.append) == place
    assert said == []


def test_a_file_is_copied_by_its_name(served: str):
    place = local_copy(served, lambda line: None)
    assert place.name == "rows.csv"
    assert place.read_bytes() == ROWS


def test_what_was_copied_before_a_cut_is_kept(bucket: str, monkeypatch: pytest.MonkeyPatch):
    whole = remote_data._copy_file

    def cut(system: object, file: remote_data.RemoteFile, *others: object) -> str:
        if file.name != "a.csv":
            raise OSError("the line went dead")
        return whole(system, file, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(remote_data, "_copy_file", cut)
    with pytest.raises(UserError, match=r"copying memory://bucket/rows failed: the line went dead\."):
        local_copy(bucket, lambda line: None)
    monkeypatch.setattr(remote_data, "_copy_file", whole)
    (kept,) = (path for path in remote_data.data_cache().rglob("*.csv"))
    before = kept.stat().st_mtime_ns
    place = local_copy(bucket, lambda line: None)
    assert (place / "a.csv").stat().st_mtime_ns == before
    about = json.loads((place.parent / "copied.json").read_text())
    assert [each["name"] for each in about["files"]] == ["a.csv", "deep/b.csv"]
    assert all(len(each["sha256"]) == 64 for each in about["files"])


def test_what_a_cut_has_left_needs_no_room_again(bucket: str, monkeypatch: pytest.MonkeyPatch):
    whole = remote_data._copy_file

    def cut(system: object, file: remote_data.RemoteFile, to: Path, *others: object) -> str:
        if file.name == "a.csv":
            return whole(system, file, to, *others)  # type: ignore[arg-type]
        to.parent.mkdir(parents=True, exist_ok=True)
        to.with_name(".b.csv.part").write_bytes(100 * ROWS)
        raise OSError("the line went dead")

    class Disk:
        f_bavail, f_frsize = 900 * len(ROWS), 1

    monkeypatch.setattr(remote_data, "_copy_file", cut)
    with pytest.raises(UserError, match="the line went dead"):
        local_copy(bucket, lambda line: None)
    monkeypatch.setattr(remote_data, "_copy_file", whole)
    monkeypatch.setattr(remote_data.os, "statvfs", lambda folder: Disk)
    place = local_copy(bucket, lambda line: None)
    assert (place / "deep" / "b.csv").read_bytes() == 1000 * ROWS


def test_an_error_of_the_file_systems_own_kind_is_said(bucket: str, monkeypatch: pytest.MonkeyPatch):
    class DisconnectedError(Exception):
        """As aiohttp's, which is no OSError."""

    def cut(*words: object) -> str:
        raise DisconnectedError("the server has gone")

    monkeypatch.setattr(remote_data, "_copy_file", cut)
    with pytest.raises(UserError, match=r"the server has gone\. Run the same command again"):
        local_copy(bucket, lambda line: None)


@pytest.mark.slow
def test_when_it_is_interrupted_no_file_is_copied_to_its_end(bucket: str, monkeypatch: pytest.MonkeyPatch):
    begun = threading.Event()

    def endless(system: object, file: object, to: Path, advance: Callable[[int], object]) -> str:
        if to.name == "a.csv":
            begun.wait()
            raise KeyboardInterrupt
        begun.set()
        for _ in range(1000):
            time.sleep(0.01)
            advance(0)
        return ""

    monkeypatch.setattr(remote_data, "_copy_file", endless)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        local_copy(bucket, lambda line: None)
    assert time.monotonic() - began < 5


def test_a_file_that_came_short_is_no_copy(bucket: str, monkeypatch: pytest.MonkeyPatch):
    memory = type(fsspec.filesystem("memory"))
    listed = memory.find

    def longer(self: object, path: str, **options: object) -> object:
        found = listed(self, path, **options)
        if not options.get("detail"):
            return found
        return {name: {**info, "size": info["size"] + 1} for name, info in found.items()}

    monkeypatch.setattr(memory, "find", longer)
    with pytest.raises(UserError, match="has 9 bytes, but 8 were received"):
        local_copy(bucket, lambda line: None)


def test_what_has_changed_is_copied_again(bucket: str):
    before, first = digest(bucket), local_copy(bucket, lambda line: None)
    fsspec.filesystem("memory").pipe("/bucket/rows/a.csv", ROWS + ROWS)
    assert digest(bucket) != before
    second = local_copy(bucket, lambda line: None)
    assert second != first
    assert (second / "a.csv").read_bytes() == ROWS + ROWS


def test_a_change_of_equal_size_is_copied_from_hugging_face(bucket: str, monkeypatch: pytest.MonkeyPatch):
    memory = type(fsspec.filesystem("memory"))
    listed = memory.find
    blob = "one"

    def of_hub(self: object, path: str, **options: object) -> object:
        """Lists a file as `hf://` does: neither with a date nor with an ETag."""
        found = listed(self, path, **options)
        if not options.get("detail"):
            return found
        return {name: {**info, "blob_id": blob} for name, info in found.items()}

    monkeypatch.setattr(memory, "find", of_hub)
    before = digest(bucket)
    assert digest(bucket) == before
    blob = "other"
    assert digest(bucket) != before


@pytest.mark.parametrize("is_file", [True, False])
def test_what_cannot_be_listed_is_as_it_was_copied(
    is_file: bool, bucket: str, monkeypatch: pytest.MonkeyPatch
):
    address = f"{bucket}/a.csv" if is_file else bucket
    local_copy(address, lambda line: None)
    fsspec.filesystem("memory").pipe("/bucket/rows/a.csv", ROWS + ROWS)
    place, before = local_copy(address, lambda line: None), digest(address)
    os.utime(place.parents[1 if is_file else 0] / "copied.json", (2e9, 2e9))

    def cut_off(address: str) -> object:
        raise OSError("no route to host")

    monkeypatch.setattr(fsspec.core, "url_to_fs", cut_off)
    said: list[str] = []
    assert local_copy(address, said.append) == place
    assert digest(address) == before
    (line,) = said
    assert re.fullmatch(
        rf"{address} cannot be listed \(no route to host\); using the copy of 2033-05-1\d \d\d:\d\d\.", line
    )
    # It may be other data, though the file beside the copy does not say so.
    with pytest.raises(UserError, match="cannot be reached: no route to host"):
        local_copy(f"{address}?part=2", said.append)


def test_a_name_that_leads_out_of_the_copy_is_refused(
    bucket: str, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = type(fsspec.filesystem("memory"))
    info = {"name": "/bucket/rows/../../../x", "size": 1, "type": "file"}
    with monkeypatch.context() as patch:
        patch.setattr(memory, "find", lambda *_, **__: {info["name"]: info})
        with pytest.raises(UserError, match=r"must not have files with `\.\.` in their names"):
            local_copy(bucket, lambda line: None)


def test_a_file_cut_short_by_a_power_cut_is_copied_again(bucket: str, monkeypatch: pytest.MonkeyPatch):
    place = local_copy(bucket, lambda line: None)
    (place.parent / "copied.json").unlink()
    os.truncate(place / "a.csv", 1)
    assert (local_copy(bucket, lambda line: None) / "a.csv").read_bytes() == ROWS


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory://bucket/nothing", "there is nothing at 'memory://bucket/nothing'"),
        ("nosuch://x", "an address that fsspec supports, but got nosuch://"),
        ("http://127.0.0.1:9/rows?sig=secret", r"'http://127.0.0.1:9/rows' cannot be reached"),
    ],
)
def test_what_cannot_be_had_is_said_with_a_remedy(address: str, said: str):
    with pytest.raises(UserError, match=said) as raised:
        local_copy(address, lambda line: None)
    assert "secret" not in str(raised.value)


def test_one_start_gets_one_answer(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote_data, "SAME_START_SECONDS", 60.0)
    monkeypatch.setattr(remote_data, "_listings", {})
    before = digest(bucket)
    fsspec.filesystem("memory").pipe("/bucket/rows/a.csv", ROWS + ROWS)
    assert digest(bucket) == before
    monkeypatch.setattr(remote_data, "_listings", {})
    assert digest(bucket) != before


def test_a_page_that_lists_files_is_no_data(served: str):
    with pytest.raises(UserError, match=r"'http://[^']*/' is an HTML page\. Name a file"):
        local_copy(served.removesuffix("rows.csv"), lambda line: None)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    def missing(address: str) -> object:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(
        UserError, match=r"not installed \(Install s3fs .* `pip install 'sweeper-torch\[remote\]'`"
    ):
        local_copy("s3://bucket/rows", lambda line: None)


def test_there_must_be_room(bucket: str, monkeypatch: pytest.MonkeyPatch):
    class Full:
        f_bavail, f_frsize = 1, 1

    monkeypatch.setattr(remote_data.os, "statvfs", lambda folder: Full)
    with pytest.raises(UserError, match=r"has room for 0.0 MiB. Set \$SWEEPER_DATA_CACHE to a folder"):
        local_copy(bucket, lambda line: None)
