"""Checks the layouts that `pipelines.stocks` reads: each gives what one file per instrument gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipelines import stocks
from pipelines.stocks.market import make_market
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Prepared

DAYS = 700
SYMBOLS = ["AAA", "BBB"]
Frames = dict[str, pd.DataFrame]


def market() -> Frames:
    """Bars as yfinance names them, by date."""
    dates = pd.bdate_range("2018-01-02", periods=DAYS, name="Date")
    return {
        symbol: bars[["open", "high", "low", "close", "volume"]]
        .rename(columns=str.capitalize)
        .set_axis(dates)
        for symbol, (_, bars) in zip(SYMBOLS, make_market(2, DAYS, 7, "volatility"), strict=True)
    }


def load(path: Path, **data: Any) -> Prepared:
    return stocks.prepare({"path": str(path), **data})


def save(folder: Path, frames: Frames) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for symbol, frame in frames.items():
        frame.to_parquet(folder / f"{symbol}.parquet")
    return folder


def long(frames: Frames, column: str = "Ticker") -> pd.DataFrame:
    return pd.concat(
        [frame.reset_index().assign(**{column: symbol}) for symbol, frame in frames.items()],
        ignore_index=True,
    )


def wide(frames: Frames) -> pd.DataFrame:
    """(instrument, price)."""
    return pd.concat(frames, axis=1)


def of_yfinance(frames: Frames) -> Frames:
    both = wide(frames).swaplevel(axis=1).rename_axis(["Price", "Ticker"], axis=1)
    return {symbol: both.xs(symbol, axis=1, level=1, drop_level=False) for symbol in frames}


def two_level_csv(folder: Path, frames: Frames) -> None:
    for symbol, frame in of_yfinance(frames).items():
        frame.to_csv(folder / f"{symbol}.csv")


def capitals(folder: Path, frames: Frames) -> None:
    frames["AAA"].to_parquet(folder / "AAA.PARQUET")
    frames["BBB"].to_csv(folder / "BBB.CSV")


def junk(folder: Path, frames: Frames) -> None:
    save(folder, frames)
    (folder / "._AAA.parquet").write_bytes(b"\0\5\26\7")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "AAA.parquet").write_bytes(b"x")


def by_year(folder: Path, frames: Frames) -> None:
    for symbol, frame in frames.items():
        for year, own in frame.groupby(frame.index.year):
            place = folder / f"symbol={symbol}" / f"year={year}"
            place.mkdir(parents=True)
            own.reset_index().to_csv(place / "part-0.csv", index=False)


def by_date(folder: Path, frames: Frames) -> None:
    for date, own in long(frames).groupby("Date"):
        place = folder / f"date={date:%Y-%m-%d}"
        place.mkdir(parents=True)
        own.drop(columns="Date").to_csv(place / "part-0.csv", index=False)


def by_year_long(folder: Path, frames: Frames) -> None:
    for year, own in long(frames).groupby(lambda row: row % DAYS > 300):
        own.to_csv(folder / f"{2018 + year}.csv", index=False)


def partly_in_new_york(folder: Path, frames: Frames) -> None:
    for year, zone in ((2018, None), (2019, "America/New_York")):
        save(folder / str(year), {s: f[f.index.year == year].tz_localize(zone) for s, f in frames.items()})
    save(folder / "later", {s: f[f.index.year > 2019] for s, f in frames.items()})


def as_text(folder: Path, frames: Frames) -> None:
    for symbol, frame in frames.items():
        frame.assign(Close=frame["Close"].map(repr)).to_parquet(folder / f"{symbol}.parquet")


def in_new_york(folder: Path, frames: Frames) -> None:
    for symbol, frame in frames.items():  # offsets of summer and winter
        frame.tz_localize("America/New_York").to_csv(folder / f"{symbol}.csv")


LAYOUTS: dict[str, Callable[[Path, Frames], object]] = {
    "csv": lambda p, f: [frame.to_csv(p / f"{symbol}.csv") for symbol, frame in f.items()],
    "capitals": capitals,
    "gzip": lambda p, f: [frame.to_csv(p / f"{symbol}.csv.gz") for symbol, frame in f.items()],
    "semicolons": lambda p, f: [
        frame.to_csv(p / f"{symbol}.csv", sep=";", decimal=",", date_format="%d.%m.%Y")
        for symbol, frame in f.items()
    ],
    "day first": lambda p, f: [
        frame.to_csv(p / f"{symbol}.csv", date_format="%d/%m/%Y") for symbol, frame in f.items()
    ],
    "summer time": in_new_york,
    "partly with a zone": partly_in_new_york,
    "unnamed dates": lambda p, f: [frame.rename_axis(None).to_csv(p / f"{s}.csv") for s, frame in f.items()],
    "row numbers": lambda p, f: [frame.reset_index().to_csv(p / f"{s}.csv") for s, frame in f.items()],
    "prices as text": as_text,
    "thousands": lambda p, f: [
        frame.mul(1000).map("{:,.6f}".format).to_csv(p / f"{symbol}.csv") for symbol, frame in f.items()
    ],
    "days as numbers": lambda p, f: [
        frame.set_axis(frame.index.strftime("%Y%m%d").astype(int))
        .rename_axis("day")
        .to_csv(p / f"{symbol}.csv")
        for symbol, frame in f.items()
    ],
    "two levels": lambda p, f: save(p, of_yfinance(f)),
    "two levels, csv": two_level_csv,
    "two levels, dates among them": lambda p, f: (
        wide(f).swaplevel(axis=1).reset_index().to_csv(p / "all.csv", index=False)
    ),
    "two levels, row numbers": lambda p, f: wide(f).swaplevel(axis=1).reset_index().to_csv(p / "all.csv"),
    "wide": lambda p, f: wide(f).to_parquet(p / "all.parquet"),
    "wide, prices first": lambda p, f: wide(f).swaplevel(axis=1).to_parquet(p / "all.parquet"),
    "wide, csv": lambda p, f: wide(f).to_csv(p / "all.csv"),
    "long": lambda p, f: long(f).to_parquet(p / "all.parquet"),
    "long, csv": lambda p, f: long(f, "code").to_csv(p / "all.csv", index=False),
    "long, by index": lambda p, f: long(f).set_index(["Ticker", "Date"]).to_parquet(p / "all.parquet"),
    "long, any name": lambda p, f: long(f, "Name").assign(venue="X").to_csv(p / "all.csv", index=False),
    "long, a file per year": by_year_long,
    "partitions": lambda p, f: long(f).to_parquet(p, partition_cols=["Ticker"]),
    "partitions by year": by_year,
    "partitions by date": by_date,
    "hidden files": junk,
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return load(save(tmp_path_factory.mktemp("straight"), market()))


SLOW = ("partitions by date", "long, a file per year", "partitions by year")


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LAYOUTS]
)
def test_a_layout_gives_every_instrument(tmp_path: Path, straight: Prepared, layout: str) -> None:
    LAYOUTS[layout](tmp_path, market())
    prepared = load(tmp_path)
    assert prepared.meta["symbols"] == SYMBOLS
    assert prepared.notes == straight.notes == []
    for name, array in straight.arrays.items():
        np.testing.assert_allclose(array, prepared.arrays[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_single_file_is_read_and_named_after(tmp_path: Path) -> None:
    save(tmp_path, market())
    assert load(tmp_path / "BBB.parquet").meta["symbols"] == ["BBB"]
    long(market()).to_csv(tmp_path / "all.csv.gz", index=False)
    assert load(tmp_path / "all.csv.gz").meta["symbols"] == SYMBOLS


@pytest.mark.parametrize("layout", ["csv", "long", "long, a file per year", "wide", "partitions by year"])
def test_a_limit_is_of_instruments(tmp_path: Path, straight: Prepared, layout: str) -> None:
    LAYOUTS[layout](tmp_path, market())
    alone = load(tmp_path, limit=1)
    assert alone.meta["symbols"] == ["AAA"]
    assert len(alone.arrays["train_age"]) == len(straight.arrays["train_age"]) / 2


def test_a_folder_may_name_any_instrument(tmp_path: Path) -> None:
    frames = market()
    symbols = ["BRK/B", "^GSPC"]
    long(dict(zip(symbols, frames.values(), strict=True))).to_parquet(tmp_path, partition_cols=["Ticker"])
    assert load(tmp_path).meta["symbols"] == sorted(symbols, key=str.lower)


@pytest.mark.parametrize("name", ["{}.parquet", "Ticker={}/part-0.parquet"])
def test_a_limit_ends_the_reading(tmp_path: Path, name: str) -> None:
    for symbol, frame in market().items():
        file = tmp_path / name.format(symbol)
        file.parent.mkdir(exist_ok=True)
        frame.to_parquet(file)
    last = tmp_path / name.format("ccc")
    last.parent.mkdir(exist_ok=True)
    last.write_bytes(b"unreadable")
    assert load(tmp_path, limit=1).meta["symbols"] == ["AAA"]


def test_rows_that_are_lost_are_counted(tmp_path: Path) -> None:
    frames = market()
    holes = frames["AAA"].reset_index()
    holes.loc[::100, "Close"] = np.nan
    holes.loc[1, "Open"] = -37.6
    holes.loc[2, "High"] = np.inf
    holes.loc[3, "Date"] = pd.NaT
    prepared = load(save(tmp_path, {"AAA": holes, "BBB": pd.concat([frames["BBB"], frames["BBB"][:50]])}))
    assert prepared.notes == [
        "1 of 1450 rows left out: without a date (AAA 1).",
        "50 of 1450 rows left out: their date comes again, and the last one counts (BBB 50).",
        "9 of 1450 rows left out: a price is missing or not above 0 (AAA 9).",
    ]


def test_rows_of_no_instrument_are_counted(tmp_path: Path) -> None:
    frame = long(market())
    frame.loc[[5, 6], "Ticker"] = None
    frame.to_csv(tmp_path / "all.csv", index=False)
    prepared = load(tmp_path)
    assert prepared.notes == ["2 of 1400 rows left out: without an instrument (all.csv 2)."]


def test_files_that_are_lost_are_counted(tmp_path: Path) -> None:
    path = save(tmp_path, market())
    save(tmp_path / "old", market())
    (path / "CCC.parquet").write_bytes(b"")
    (path / "sectors.csv").write_text("symbol,sector\nAAA,energy\n")
    prepared = load(path)
    assert prepared.meta["symbols"] == SYMBOLS
    assert prepared.notes == [
        f"2 of 6 files left out: in a sub-folder, while {path} has its own.",
        "1 of 4 files left out: empty; the first is CCC.parquet.",
        f"1 of 3 files left out: no bars; the first is {path}/sectors.csv needs a date column, named one of "
        "date, datetime, timestamp, time, ds, but has symbol, sector.",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("2018-01-02,1.5,2.5,0.5,2.0,7\n2018-01-03,1.5,2.5,0.5,2.0,7\n", "AAA.csv has no header"),
        ("date,price\n2018-01-02,1.5\n", "needs the numeric columns open, high, low, close, volume"),
        ("date,close\n2018-01-02,1.5\nTotal,1.5\n", "'Total' in row 3 of 'date' is not a date"),
        ("", "holds none that has content"),
    ],
    ids=["no header", "no close", "a footer", "empty"],
)
def test_a_file_that_is_none_of_bars_is_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "AAA.csv").write_text(content)
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dates_and_numbers_of_one_instrument_do_not_mix(tmp_path: Path) -> None:
    frame = market()["AAA"].reset_index()
    for year, dates in ((2020, frame["Date"]), (2021, np.arange(DAYS))):
        (tmp_path / str(year)).mkdir()
        frame.assign(Date=dates).to_parquet(tmp_path / str(year) / "AAA.parquet")
    with pytest.raises(UserError, match="AAA needs dates or numbers as its days"):
        load(tmp_path)


def test_several_instruments_without_a_name_are_no_instrument(tmp_path: Path) -> None:
    for symbol, frame in (market() | {"CCC": market()["AAA"]}).items():
        (tmp_path / symbol).mkdir()
        frame.to_csv(tmp_path / symbol / "daily.csv")
    with pytest.raises(UserError, match="DAILY needs one row per date, but the date of 1400 of 2100 rows"):
        load(tmp_path)
