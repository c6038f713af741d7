"""Checks how `pipelines.kuairand` reads KuaiRand's CSV files: shards, gaps, and one line per mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipelines import kuairand
from pipelines.kuairand import files
from pipelines.kuairand.made_up import MadeUp
from pipelines.kuairand.made_up_files import write_csv
from pipelines.kuairand.tables import USER_NUMERIC
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Prepared

SIZE = (30, 400, 4000)
EARLY, LATE = "log_standard_4_08_to_4_21_1k", "log_standard_4_22_to_5_08_1k"
Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def made() -> MadeUp:
    return MadeUp(*SIZE, seed=0)


@pytest.fixture
def folder(made: MadeUp, tmp_path: Path) -> Path:
    write_csv(made, tmp_path)
    return tmp_path


def load(path: Path, **data: Any) -> Prepared:
    return kuairand.prepare({"path": str(path), **data})


def change(folder: Path, name: str, how: Change) -> None:
    file = folder / f"{name}.csv"
    how(pd.read_csv(file)).to_csv(file, index=False)


def assert_same(first: Prepared, second: Prepared) -> None:
    assert first.arrays.keys() == second.arrays.keys()
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name], err_msg=name)
        assert array.dtype == second.arrays[name].dtype


@pytest.mark.parametrize("phase", ["pretrain", "simulate"])
def test_files_give_what_they_were_written_from(folder: Path, phase: str) -> None:
    users, videos, rows = SIZE
    made_up = kuairand.prepare({"users": users, "videos": videos, "rows": rows, "phase": phase})
    read = load(folder, phase=phase)
    assert_same(read, made_up)
    assert read.meta["constant"] == made_up.meta["constant"]
    assert not read.synthetic
    assert read.meta["best"] == {}


@pytest.mark.parametrize("chunk_rows", [files.CHUNK_ROWS, 97])
def test_shards_chunks_and_a_data_folder_change_nothing(
    made: MadeUp, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    chunk_rows: int,
) -> None:  # fmt: skip
    whole = load(folder)
    shards = tmp_path_factory.mktemp("shards") / "data"
    shards.mkdir()
    write_csv(made, shards, version="27k", parts=11)  # part10 comes after part9
    assert (shards / "log_standard_4_08_to_4_21_27k_part10.csv").exists()
    monkeypatch.setattr(files, "CHUNK_ROWS", chunk_rows)
    read, sizes = files._chunks, []

    def watched(file: Path, kinds: Mapping[str, str]) -> Iterator[pd.DataFrame]:
        for chunk in read(file, kinds):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr(files, "_chunks", watched)
    assert_same(load(shards.parent), whole)
    assert max(sizes) <= chunk_rows


def test_every_feature_of_the_guide_is_there(folder: Path, made: MadeUp) -> None:
    # Both tables have a follow_user_num; a merge renames the two, and neither is found.
    assert "follow_user_num" in pd.read_csv(folder / "video_features_statistic_1k.csv", nrows=0)
    prepared = load(folder)
    widths = [prepared.arrays[f"{kind}_numeric"].shape[1] for kind in ("user", "video")]
    assert widths == [6, 11]
    column = USER_NUMERIC.index("follow_user_num")
    found = prepared.arrays["user_numeric"][:, column]
    assert np.corrcoef(found, np.log1p(made.users.numeric[:, column]))[0, 1] == pytest.approx(1, abs=1e-5)


def test_the_last_rows_by_time_are_held_back_in_whatever_order_they_come(folder: Path, made: MadeUp) -> None:
    change(folder, EARLY, lambda frame: frame.sample(frac=1, random_state=0))
    prepared = load(folder, val_share=0.25)
    assert len(prepared.arrays["val_user"]) == 1000
    np.testing.assert_array_equal(prepared.arrays["val_video"], made.log.video[-1000:])
    expected = np.sort(np.log1p(made.log.play_ms[:-1000] / 1000))
    np.testing.assert_allclose(np.sort(prepared.arrays["train_play_time"]), expected, rtol=1e-6)
    few = load(folder, val_share=0.25, val_samples=50)
    assert len(few.arrays["val_user"]) == 50
    assert set(few.arrays["val_play_time"]) <= set(prepared.arrays["val_play_time"])
    change(folder, EARLY, lambda frame: frame.assign(time_ms=5))
    change(folder, LATE, lambda frame: frame.assign(time_ms=5))
    with pytest.raises(UserError, match="too many of one `time_ms`"):
        load(folder)


def test_logs_are_chosen(folder: Path, made: MadeUp) -> None:
    log = pd.read_csv(folder / f"{EARLY}.csv")
    log[:100].to_csv(folder / "log_random_4_22_to_5_08_1k.csv", index=False)
    for logs, rows in (("standard", 4000), ("random", 100), ("all", 4100)):
        arrays = load(folder, logs=logs).arrays
        assert len(arrays["train_user"]) + len(arrays["val_user"]) == rows
    # Videos that no row shows are not kept.
    assert len(load(folder, logs="random").arrays["video_codes"]) == len(set(log["video_id"][:100]))


def test_gaps_and_unknown_ids_are_counted_and_stay_finite(folder: Path) -> None:
    whole = load(folder)
    change(folder, "user_features_1k", lambda frame: frame[3:])
    change(
        folder,
        "video_features_basic_1k",
        lambda frame: frame[5:].assign(tag=frame["tag"].where(frame.index > 9)),
    )
    change(folder, "video_features_statistic_1k", lambda frame: pd.concat((frame, frame[-2:])))
    prepared = load(folder)
    users, videos = (len(prepared.arrays[f"{kind}_codes"]) for kind in ("user", "video"))
    assert list(prepared.notes)[:3] == [
        f"3 of {users} users in the log are not in user_features_1k.csv: their features count as unknown.",
        f"5 of {videos} videos in the log are not in video_features_basic_1k.csv: "
        "their features count as unknown.",
        f"video_features_statistic_1k.csv: 2 of {videos + 2} rows left out: their video comes again, and the "
        "last one counts.",
    ]
    for name, array in prepared.arrays.items():
        assert np.isfinite(array).all(), name
    assert (prepared.arrays["user_numeric"][:3] == 0).all()
    assert (prepared.arrays["user_codes"][:3] == 0).all()
    assert (prepared.arrays["video_numeric"][:5, :3] == 0).all()
    assert (prepared.arrays["video_numeric"][:5, 3:] != 0).any()
    # Each category counts from its own code for what is unknown.
    first = prepared.arrays["video_codes"].min(axis=0)
    assert (prepared.arrays["video_codes"][:5] == first).all()
    assert (prepared.arrays["video_codes"][:10, 1] == first[1]).all()
    assert len(prepared.arrays["train_user"]) == len(whole.arrays["train_user"])


def test_rows_that_the_log_does_not_need_are_counted(folder: Path) -> None:
    change(
        folder,
        "user_features_1k",
        lambda frame: pd.concat((frame, frame.assign(user_id=frame["user_id"] + 10_000))),
    )
    prepared = load(folder, val_samples=100)
    assert list(prepared.notes[:2]) == [
        "user_features_1k.csv: 30 of 60 rows left out: of a user that is not in the log.",
        "300 of 400 validation samples left out: `data.val_samples` is 100; they are drawn at random.",
    ]


def test_minus_124_and_infinity_are_unknown(folder: Path) -> None:
    change(folder, "user_features_1k", lambda frame: frame.assign(
        is_live_streamer=np.where(frame.index < 3, -124, frame.index % 2),
        register_days=np.where(frame.index == 4, np.inf, frame["register_days"]),
    ))  # fmt: skip
    numeric = load(folder).arrays["user_numeric"]
    assert (numeric[:3, 0] == 0).all()
    assert numeric[3:, 0] == pytest.approx(np.where(np.arange(3, len(numeric)) % 2, 1.0, -1.0), abs=0.2)
    assert numeric[4, 5] == 0
    assert np.isfinite(numeric).all()


def test_a_shard_without_rows_is_noted_and_a_byte_order_mark_is_none_of_ours(folder: Path) -> None:
    change(folder, LATE, lambda frame: frame[:0])
    file = folder / f"{EARLY}.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    prepared = load(folder)
    assert prepared.notes[0] == f"{LATE}.csv has no rows."
    assert len(prepared.arrays["train_user"]) > 1000


def edit(column: str, row: int, value: object) -> Change:
    def how(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object})
        frame.loc[row, column] = value
        return frame

    return how


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        (EARLY, edit("is_click", 1007, 2), "line 1009: `is_click` must be 0 or 1, but got 2"),
        (EARLY, edit("play_time_ms", 0, -5), "line 2: `play_time_ms` must be 0 or more, but got -5"),
        (EARLY, edit("play_time_ms", 3, None), "line 5: `play_time_ms` must be a number, but got nothing"),
        (LATE, edit("user_id", 1204, 1.5), "line 1206: `user_id` must be a whole number, but got 1.5"),
        (LATE, edit("time_ms", 1204, "noon"), "line 1206: `time_ms` must be a number, but got 'noon'"),
        (EARLY, lambda frame: frame.drop(columns=["is_click", "time_ms"]), "time_ms, is_click are missing"),
        ("user_features_1k", lambda frame: frame.drop(columns="register_days"), "register_days is missing"),
        ("user_features_1k", edit("fans_user_num", 2, "many"), "line 4: `fans_user_num` must be a number"),
        ("user_features_1k", edit("user_id", 2, None), "line 4: `user_id` must be a number, but got nothing"),
        ("video_features_basic_1k", lambda frame: frame.assign(video_id=1), "has none of them"),
        ("video_features_statistic_1k", lambda frame: frame[:0], "has none of them"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named_with_file_and_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: Change, words: str
) -> None:
    monkeypatch.setattr(files, "CHUNK_ROWS", 600)  # the line is the file's, not the chunk's
    change(folder, name, how)
    with pytest.raises(UserError) as caught:
        load(folder)
    assert words in str(caught.value)
    assert f"{name}.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / old).rename(folder / new)


def replace(name: str, content: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content((folder / name).read_bytes()))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: [file.unlink() for file in f.iterdir()], "but neither"),
        (lambda f: [file.unlink() for file in f.glob("*features*")], "lacks user_features_*.csv, video_"),
        (lambda f: [file.unlink() for file in f.glob("log_*")], "lacks log_standard_*.csv"),
        (rename("user_features_1k.csv", "user_features_27k.csv"), "has 1k and 27k"),
        (rename(f"{EARLY}.csv", f"{EARLY}_part2.csv"), "is one of 2 parts, but part 1 is not there"),
        (
            lambda f: (f / f"{EARLY}_part1.csv").write_bytes((f / f"{EARLY}.csv").read_bytes()),
            "is there whole and in parts",
        ),
        (replace(f"{EARLY}.csv", lambda old: b""), "is empty, without even a header"),
        (replace(f"{EARLY}.csv", lambda old: old + b"1,2,3\n"), "must be a number, but got nothing"),
        (replace(f"{EARLY}.csv", lambda old: old + b'"1,2'), "cannot be read as CSV"),
        (
            replace("video_features_basic_1k.csv", lambda old: old.replace(b"NORMAL", b"N\xd6RMAL")),
            "line 2: not UTF-8 text",
        ),
        (
            lambda f: [file.write_text(file.read_text().splitlines()[0] + "\n") for file in f.glob("log_*")],
            "there are none",
        ),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_read_is_said_in_one_line(
    folder: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(folder)
    with pytest.raises(UserError) as caught:
        load(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_folder_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "log.csv").touch()
    for name, words in (("nowhere", "nowhere does not exist"), ("log.csv", "log.csv is a file")):
        with pytest.raises(UserError, match=words):
            load(tmp_path / name)


MEASURE = """
import json, sys
from pathlib import Path
import pandas
from pipelines import kuairand

def peak():
    # Not ru_maxrss, which a process has from the one that started it.
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

kuairand.prepare({"path": sys.argv[1]})
before = peak()
prepared = kuairand.prepare({"path": sys.argv[2]})
print(json.dumps({"bytes": peak() - before, "rows": len(prepared.arrays["train_user"])}))
"""


@pytest.mark.soak
def test_memory_is_some_tens_of_bytes_a_row(tmp_path: Path) -> None:
    folders = []
    for rows in (500_000, 1_500_000):  # the first fills a chunk, too
        folders.append(tmp_path / str(rows))
        folders[-1].mkdir()
        write_csv(MadeUp(100, 20_000, rows, 0), folders[-1])
    command = [sys.executable, "-c", MEASURE, *map(str, folders)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["rows"] == 1_350_000
    # A text or a float64 each of the log's 19 columns would be 150 and more.
    assert 20 * 1_000_000 < found["bytes"] < 100 * 1_000_000
