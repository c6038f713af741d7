"""Checks how `pipelines.sequence` reads a table: its times, its gaps, and one line per mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pipelines import sequence
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Prepared

ROWS = 300


def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(5, 3, (ROWS, 2)), columns=["a", "b"])
    frame.insert(0, "Date", pd.date_range("2020-01-01", periods=ROWS, freq="h"))
    frame["place"] = np.arange(ROWS, dtype=float)
    return frame


def load(frame: pd.DataFrame, path: Path, **data: Any) -> Prepared:
    frame.to_csv(path / "t.csv", index=False)
    return sequence.prepare({"path": str(path / "t.csv"), "horizon": 2, "seq_length": 5, **data})


def windows(prepared: Prepared) -> np.ndarray:
    """Returns the rows [windows, 7] that each training window reads and forecasts, as places."""
    pipeline = sequence.build(TrialConfig(), prepared)
    batch = pipeline.train.gather(pipeline.train.tensors, torch.arange(pipeline.train.length))
    place = torch.cat((batch["x"], batch["y"]), dim=1)[:, :, 2].numpy()
    stop = prepared.meta["parts"]["train"][1]
    raw = prepared.arrays["series"][:stop, 2]
    order = np.argsort(raw)
    found = order[np.searchsorted(raw[order], place)]
    assert np.array_equal(raw[found], place)
    return found


def test_order_and_repeats_do_not_matter(tmp_path: Path) -> None:
    straight = load(table(), tmp_path)
    assert straight.notes == []
    again = table()[:4].assign(a=-1.0)
    twice = pd.concat([again, table().sample(frac=1, random_state=0)])
    mixed = load(twice, tmp_path)
    assert mixed.notes == [
        "The rows were put in the order of 'Date'.",
        "4 of 304 rows left out: their time comes again, and the last one counts.",
    ]
    np.testing.assert_array_equal(straight.arrays["series"], mixed.arrays["series"])


@pytest.mark.parametrize("kind", ["parquet", "index", "day numbers", "numbers", "named"])
def test_times_of_any_kind(tmp_path: Path, kind: str) -> None:
    straight, frame = load(table(), tmp_path), table()
    data = {"path": str(tmp_path / "t.parquet"), "horizon": 2, "seq_length": 5}
    if kind == "index":
        frame = frame.set_index("Date")
    elif kind == "day numbers":
        frame["Date"] = pd.date_range("2020-01-01", periods=ROWS).strftime("%Y%m%d").astype(int)
    elif kind == "numbers":
        frame["Date"] = 7 + 0.25 * np.arange(ROWS)
    elif kind == "named":
        frame = frame.rename(columns={"Date": "when it was"})
        data["time"] = "when it was"
    frame.to_parquet(tmp_path / "t.parquet")
    found = sequence.prepare(data)
    assert found.notes == []
    np.testing.assert_array_equal(straight.arrays["series"], found.arrays["series"])


def test_months_of_unequal_length_are_an_even_grid(tmp_path: Path) -> None:
    frame = table().assign(Date=pd.date_range("1990-01-01", periods=ROWS, freq="MS"))
    prepared = load(frame, tmp_path)
    assert prepared.notes == []
    assert prepared.arrays["age"].tolist() == list(range(ROWS))


def test_a_short_gap_takes_the_last_value_known(tmp_path: Path) -> None:
    frame = table()
    frame.loc[50:52, "a"] = np.nan
    prepared = load(frame.drop(index=[100, 101]), tmp_path, max_fill=3)
    assert prepared.notes == ["9 missing values took the last one known, at most 3 steps old."]
    place = prepared.arrays["series"][:, 2]
    assert len(place) == ROWS
    assert (place[100], place[101]) == (place[99], place[99])
    assert (prepared.arrays["series"][49:53, 0] == prepared.arrays["series"][49, 0]).all()
    assert prepared.arrays["age"].tolist() == list(range(ROWS))


def test_no_window_crosses_a_long_gap(tmp_path: Path) -> None:
    frame = table()
    frame.loc[40:43, "b"] = np.nan  # longer than may be filled
    frame.loc[150:, "Date"] += pd.Timedelta("400D")  # and a gap between rows
    prepared = load(frame, tmp_path, max_fill=3)
    assert prepared.notes == [
        "2 gaps that no window crosses.",
        "4 of 300 rows left out: a value is missing.",
    ]
    rows = windows(prepared)
    assert (np.diff(rows, axis=1) == 1).all()
    edges = {40, 150 - 4}  # the first row after each gap, of the rows that are left
    assert all(edge not in row[1:] for row in rows.tolist() for edge in edges)
    alone = 207 - 6 - 2 * 6  # the training part has 207 rows in three runs
    assert len(rows) == alone


def test_no_filling_at_all(tmp_path: Path) -> None:
    frame = table()
    frame.loc[50, "a"] = np.nan
    prepared = load(frame.drop(index=[100]), tmp_path, max_fill=0)
    assert prepared.notes == [
        "2 gaps that no window crosses.",
        "1 of 299 rows left out: a value is missing.",
    ]
    assert len(prepared.arrays["series"]) == ROWS - 2


def test_what_is_no_number_is_told(tmp_path: Path) -> None:
    frame = table()
    frame["city"] = "x"
    frame["empty"] = np.nan
    frame["flat"] = 3
    frame["b"] = frame["b"].astype(object)
    frame.loc[7, "b"] = "n.a. "
    frame.loc[9, "a"] = np.inf
    prepared = load(frame, tmp_path)
    assert prepared.notes == [
        "Column 'a': 1 of 300 values left out: no finite number; the first is inf in row 11.",
        "Column 'b': 1 of 300 values left out: no finite number; the first is 'n.a. ' in row 9.",
        "Column 'city' skipped: not numeric.",
        "Column 'empty' skipped: missing in more than half of the rows.",
        "2 missing values took the last one known, at most 6 steps old.",
        "Column 'flat' skipped: the same in every training row.",
    ]
    assert prepared.meta["columns"] == ["a", "b", "place"]
    assert np.isfinite(prepared.arrays["series"]).all()


MISTAKES: list[tuple[str | bytes, dict[str, Any], str]] = [
    ("none", {}, "none.csv does not exist"),
    ("folder", {}, "is a folder"),
    (b"", {}, "cannot be read as a table"),
    (b"time,a\n1,2,3,4\n1,2\n1,2,3\n1,2,3,4,5\n", {}, "cannot be read as a table"),
    ("time,city\n1,北京\n".encode("gb18030"), {}, "the byte 0xb1 in row 2 is not"),
    (b"time,a\n", {}, "needs rows with a time"),
    (b"a,b\n1,2\n", {}, "columns of the year and the month, but has a, b."),
    (b"time,a\n1,2\n", {"time": "when"}, "needs the column 'when' of `data.time`"),
    (b"time,a\n2020-01-01,2\nsoon,3\n", {}, "'soon' in row 3 of 'time' is not a date"),
    (b"time,a\n1,x\n2,y\n", {}, "needs a numeric column besides the time 'time'"),
    (b"time,a\n1,\n2,\n", {}, "each one is missing in more than half"),
    (b"time,a,b\n1,1,\n2,,2\n3,3,\n4,,4\n", {"max_fill": 0}, "rows in which every column has a value"),
    ("good", {"target": "c"}, "`data.target` must be `all` or a numeric column (a, b, place), but got 'c'"),
    ("good", {"target": "flat"}, "'flat' is the same in every training row"),
    ("good", {"split": "7/2"}, "`data.split` must be shares such as"),
    ("good", {"split": "0.7/x/0.1"}, "`data.split` must be shares such as"),
    ("good", {"split": "0.7/0.3/0"}, "`data.split` must be shares such as"),
    ("good", {"split": "0.7/0.3/0.3"}, "`data.split` must be shares such as"),
    ("good", {"split": "12/4/4"}, "each part with rows, but got '12/4/4' for 2020-01-01"),
    (b"time,a\n1,2\n2,3\n3,4\n4,5\n", {"split": "12/4/4"}, "months need dates"),
    ("good", {"seq_length": 250}, "longest run of 210 rows without a gap, but need 252"),
    ("good", {"horizon": 50}, "the val part's longest run"),
    ("good", {"horizon": 0}, "`data.horizon >= 1`"),
    ("good", {"evaluate_on": "train"}, "`data.evaluate_on` must be one of val, test"),
    ("good", {"horizn": 2}, "Did you mean `horizon`"),
    ("synthetic", {"source": "web"}, "data.source"),
    ("synthetic", {"rows": 5}, "`data.rows >= 100`"),
]


@pytest.mark.parametrize(("content", "data", "words"), MISTAKES, ids=[words[:40] for *_, words in MISTAKES])
def test_mistakes_are_one_line_each(
    tmp_path: Path, content: str | bytes, data: dict[str, Any], words: str
) -> None:
    path = tmp_path / ("none.csv" if content == "none" else "t.csv")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    elif content == "good":
        frame = table().assign(flat=3.0) if data.get("target") == "flat" else table()
        frame.to_csv(path, index=False)
    given = {"horizon": 2, "seq_length": 5, **data}
    with pytest.raises(UserError) as caught:
        sequence.prepare(given if content == "synthetic" else {"path": str(path), **given})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
