"""Checks how `pipelines._tables` and `pipelines._times` read CSV files as people have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipelines import sequence, tabular
from pipelines._reading import left_out
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Prepared

ROWS = 300
HOURS = pd.date_range("2020-01-25", periods=ROWS, freq="h")
Write = Callable[[pd.DataFrame, Path], object]


def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(rng.normal(5, 3, (ROWS, 3)).round(3), columns=["a", "b", "c"])


def load(path: Path, **data: Any) -> Prepared:
    return sequence.prepare({"path": str(path), "horizon": 2, "seq_length": 5, **data})


def with_times(frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    return pd.concat([pd.DataFrame(columns), frame], axis=1)


def parts(frame: pd.DataFrame, names: str) -> pd.DataFrame:
    values = (HOURS.year, HOURS.month, HOURS.day, HOURS.hour)
    return with_times(frame, **dict(zip(names.split(), values, strict=True)))


def csv(make: Callable[[pd.DataFrame], pd.DataFrame], **how: Any) -> Write:
    return lambda frame, path: make(frame).to_csv(path, **{"index": False, **how})


def dated(frame: pd.DataFrame) -> pd.DataFrame:
    return with_times(frame, date=HOURS)


SPREAD = "The time of a row is in {}."
NO_HEADER = "t.csv has no header: its columns are called column_0, column_1, ..."
TIMES: dict[str, tuple[Write, list[str]]] = {
    "year, month, day, hour": (
        csv(lambda frame: parts(frame, "year month day hour")),
        [SPREAD.format("year, month, day, hour")],
    ),
    "short names": (csv(lambda frame: parts(frame, "YR MO DY HR")), [SPREAD.format("YR, MO, DY, HR")]),
    "hours from 1 to 24": (
        csv(lambda frame: with_times(frame, date=HOURS.normalize(), hour=HOURS.hour + 1)),
        [SPREAD.format("date, hour")],
    ),
    "date and clock": (
        csv(
            lambda frame: with_times(frame, Date=HOURS.strftime("%d/%m/%Y"), Time=HOURS.strftime("%H.%M.%S")),
            sep=";",
            decimal=",",
        ),
        [SPREAD.format("Date, Time")],
    ),
    "clock and date": (
        csv(lambda frame: with_times(frame, time=HOURS.strftime("%I:%M %p"), date=HOURS.date)),
        [SPREAD.format("date, time")],
    ),
    "no header": (csv(dated, header=False), [NO_HEADER]),
    "row numbers": (csv(dated, index=True), ["Column 'Unnamed: 0' skipped: it numbers the rows."]),
    "unnamed dates": (lambda frame, path: frame.set_axis(HOURS).to_csv(path), []),
    "a name of its own": (csv(lambda frame: with_times(frame, Datum=HOURS)), []),
    "semicolons": (csv(dated, sep=";"), []),
    "tabs": (csv(dated, sep="\t"), []),
    "decimal comma": (csv(dated, sep=";", decimal=","), []),
    "empty last column": (csv(lambda frame: dated(frame).assign(**{"": np.nan})), []),
    "a separator ends the rows": (
        lambda frame, path: path.write_text(
            dated(frame).to_csv(index=False, sep=";").replace("\n", ";\n").replace(";\n", "\n", 1)
        ),
        [],
    ),
    "days as numbers": (
        csv(lambda frame: with_times(frame, YYYYMMDD=HOURS.strftime("%Y%m%d").astype(int), HH=HOURS.hour)),
        [SPREAD.format("YYYYMMDD, HH")],
    ),
    "day first": (csv(dated, date_format="%d/%m/%Y %H:%M"), []),
    "dots": (csv(dated, date_format="%d.%m.%Y %H:%M"), []),
    "several offsets": (
        csv(
            lambda frame: with_times(
                frame,
                date=[f"{t + pd.Timedelta(hours=t.day % 2):%Y-%m-%d %H:%M}+0{t.day % 2}:00" for t in HOURS],
            )
        ),
        [],
    ),
    "midnight without a clock": (
        csv(lambda frame: with_times(frame, date=[str(t).removesuffix(" 00:00:00") for t in HOURS])),
        [],
    ),
}


@pytest.mark.parametrize("layout", TIMES)
def test_a_series_is_read_from_any_layout(tmp_path: Path, layout: str) -> None:
    dated(table()).to_csv(tmp_path / "straight.csv", index=False)
    straight = load(tmp_path / "straight.csv")
    write, notes = TIMES[layout]
    write(table(), tmp_path / "t.csv")
    prepared = load(tmp_path / "t.csv")
    assert straight.notes == []
    assert prepared.notes == notes
    assert len(prepared.meta["columns"]) == 3
    np.testing.assert_array_equal(straight.arrays["series"], prepared.arrays["series"])
    np.testing.assert_array_equal(straight.arrays["age"], prepared.arrays["age"])


def test_days_and_months_are_times_without_hours(tmp_path: Path) -> None:
    months = pd.date_range("1990-01-01", periods=ROWS, freq="MS")
    with_times(table(), Year=months.year, Month=months.month).to_csv(tmp_path / "t.csv", index=False)
    prepared = load(tmp_path / "t.csv")
    assert prepared.notes == ["The time of a row is in Year, Month."]
    assert prepared.arrays["age"].tolist() == list(range(ROWS))


def test_whole_numbers_with_a_hole_are_no_days(tmp_path: Path) -> None:
    days = pd.Series(HOURS.strftime("%Y%m%d").astype(int), dtype="Int64")
    days[3] = pd.NA
    times = pd.Series(np.arange(ROWS), dtype="Int64")
    times[5] = pd.NA
    with_times(table(), ds=times, day=days).to_parquet(tmp_path / "t.parquet")
    with_times(table(), when=days).to_parquet(tmp_path / "u.parquet")
    assert load(tmp_path / "t.parquet").notes[0] == "1 of 300 rows left out: without a time."
    with pytest.raises(UserError, match="needs a time column"):
        load(tmp_path / "u.parquet")


def test_a_clock_of_something_else_is_no_time_of_day(tmp_path: Path) -> None:
    days = pd.date_range("2020-01-01", periods=ROWS)
    with_times(table(), date=days, sunrise="06:30").to_csv(tmp_path / "t.csv", index=False)
    assert load(tmp_path / "t.csv").notes == ["Column 'sunrise' skipped: not numeric."]


def test_rows_that_are_lost_are_counted(tmp_path: Path) -> None:
    frame = parts(table(), "year month day hour").astype({"month": float})
    frame.loc[:4, "a"] = np.nan  # before the first value there is none to take
    frame.loc[20, "month"] = 13
    frame.loc[21, "month"] = np.nan
    frame.loc[30] = frame.loc[29]
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert load(tmp_path / "t.csv").notes == [
        "The time of a row is in year, month, day, hour.",
        "2 of 300 rows left out: without a time.",
        "1 of 300 rows left out: their time comes again, and the last one counts.",
        "9 missing values took the last one known, at most 6 steps old.",
        "5 of 297 rows left out: a value is missing.",
    ]


def test_several_series_are_no_series(tmp_path: Path) -> None:
    save(pd.concat([dated(table())] * 3), tmp_path / "t.csv")
    with pytest.raises(UserError, match="needs one row per time, but the time of 600 of 900 rows in date"):
        load(tmp_path / "t.csv")


@pytest.mark.parametrize("mark", ["?", "-", "null", "#N/A", "."])
@pytest.mark.parametrize("count", [1, 200])
def test_a_mark_for_what_is_missing_is_no_text(tmp_path: Path, mark: str, count: int) -> None:
    frame = table().astype(object)
    frame.loc[: count - 1, "a"] = mark
    frame.to_csv(tmp_path / "t.csv", index=False)
    prepared = tabular.prepare({"path": str(tmp_path / "t.csv")})
    assert prepared.arrays["train_x"].shape == (270, 2)
    said = f"Column 'a': {count} of 300 values left out: no finite number; the first is {mark!r} in row 2."
    known = mark in ("null", "#N/A")  # pandas takes these for missing without a word
    assert list(prepared.notes) == [
        *([] if known else [said]),
        f"{count} missing values were replaced by their column's training mean.",
    ]


@pytest.mark.parametrize("mark", ["NA", "?"])
def test_a_first_row_without_values_is_no_header(tmp_path: Path, mark: str) -> None:
    frame = table().astype(object)
    frame.insert(0, "city", "x")
    frame.loc[0] = ["x", mark, mark, 1.5]
    frame.loc[1] = ["x", mark, mark, mark]
    save(frame, tmp_path / "t.csv")
    save(frame.loc[1:], tmp_path / "u.csv")
    for name in "tu":
        notes = " ".join(tabular.prepare({"path": str(tmp_path / f"{name}.csv")}).notes)
        assert "1 of 300 rows left out: no target" in notes or "1 of 299 rows left out: no target" in notes


def test_a_target_with_a_mark_is_numeric(tmp_path: Path) -> None:
    frame = table().astype(object)
    frame.loc[7, "c"] = "?"
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert list(tabular.prepare({"path": str(tmp_path / "t.csv")}).notes) == [
        "Column 'c': 1 of 300 values left out: no finite number; the first is '?' in row 9.",
        "1 of 300 rows left out: no target.",
    ]


def test_dates_and_text_are_no_numbers(tmp_path: Path) -> None:
    table().assign(b=HOURS, a=["x", "y", "7"] * 100, d=1.5).to_parquet(tmp_path / "t.parquet")
    prepared = tabular.prepare({"path": str(tmp_path / "t.parquet")})
    assert prepared.arrays["train_x"].shape == (270, 1)
    assert list(prepared.notes) == [f"Column {name!r} skipped: not numeric." for name in "ab"]


@pytest.mark.parametrize(
    ("layout", "notes"),
    [
        ({"header": False}, [NO_HEADER]),
        ({"sep": ";", "decimal": ","}, []),
        ({"sep": "|"}, []),
        ({"index": True}, ["Column 'Unnamed: 0' skipped: it numbers the rows."]),
        ({"header": False, "species": "setosa"}, [NO_HEADER, "Column 'column_0' skipped: not numeric."]),
        ({"header": ["2018", "2019", "2020"]}, []),
        ({"header": ["10%", "50%", "90%"]}, []),
        ({"header": ["0", "1", "2"]}, []),
        ({"header": ["mean", "0.1", "0.9"]}, []),
        (
            {"header": ["species", "2010", "2015", "2020"], "species": "setosa"},
            ["Column 'species' skipped: not numeric."],
        ),
        ({"sep": ";", "species": "1,5"}, ["Column 'species' skipped: not numeric."]),
    ],
    ids=str,
)
def test_rows_are_read_from_any_layout(tmp_path: Path, layout: dict[str, Any], notes: list[str]) -> None:
    straight = tabular.prepare({"path": str(save(table(), tmp_path / "s.csv"))})
    frame, how = table(), dict(layout)
    if "species" in how:
        frame.insert(0, "species", how.pop("species"))
    prepared = tabular.prepare({"path": str(save(frame, tmp_path / "t.csv", **how))})
    assert prepared.notes == notes
    np.testing.assert_array_equal(straight.arrays["train_x"], prepared.arrays["train_x"])


def save(frame: pd.DataFrame, path: Path, **how: Any) -> Path:
    frame.to_csv(path, **{"index": False, **how})
    return path


def test_a_folder_is_read_without_hidden_and_empty_files(tmp_path: Path) -> None:
    save(table()[:150], tmp_path / "1.CSV")
    save(table()[150:], tmp_path / "2.csv.gz")
    (tmp_path / "._1.CSV").write_bytes(b"\0\5\26\7")
    (tmp_path / "3.csv").write_bytes(b"")
    prepared = tabular.prepare({"path": str(tmp_path)})
    assert prepared.arrays["train_x"].shape == (270, 2)
    assert prepared.notes == ["1 of 3 files left out: empty; the first is 3.csv."]


def test_a_series_without_a_time_says_what_it_has(tmp_path: Path) -> None:
    save(table(), tmp_path / "t.csv", header=False)
    with pytest.raises(UserError) as caught:
        load(tmp_path / "t.csv")
    assert str(caught.value).endswith(
        "needs a time column (date, datetime, timestamp, time, ds), or columns of the year and the month, "
        "but has column_0, column_1, column_2. `data.time` names another one."
    )


def test_the_line_on_what_was_left_out() -> None:
    notes: list[str] = []
    left_out(notes, 0, 5, "rows", "torn")
    left_out(notes, 1, 5, "rows", "torn")
    left_out(notes, 2, 5, "clips", "too short", where="train", first="a.npy")
    assert notes == [
        "1 of 5 rows left out: torn.",
        "train: 2 of 5 clips left out: too short; the first is a.npy.",
    ]
