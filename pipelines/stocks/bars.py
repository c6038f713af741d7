"""Reads daily bars, in the layouts that people have, into a clean frame per instrument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pandas as pd

from sweeper import UserError

from .._reading import left_out
from .._tables import TABLE, find_tables, name_of, numbers, read_table, with_one_level
from .._times import TIMES, read_times

BARS = ("open", "high", "low", "close", "volume")
SYMBOLS = ("ticker", "symbol", "tic", "code", "instrument", "asset", "stock", "sid", "permno", "isin")
"""Columns that name a row's instrument; a folder such as `Ticker=AAA` does so, too."""
NO_SYMBOL = "without an instrument"
NO_DATE = "without a date"
AGAIN = "their date comes again, and the last one counts"
NO_PRICE = "a price is missing or not above 0"


class _NoBarsError(UserError):
    """A table that holds something else than bars."""


def read_instruments(
    path: Path, kind: str, limit: int, notes: list[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields `(symbol, frame)` by symbol: one row per day, ascending, float64, prices above 0.

    A file holds one instrument, which is called like the file, or several: a column names each row's, or
    the table has columns of two levels. An instrument may be spread over files.

    Args:
        path: A file, or a folder of them.
        kind: `bars` and `indicators` keep open, high, low, close and volume; `columns` keeps close
            and every other numeric column (ready features); `auto` is `bars` where the first instrument
            has them all.
        limit: Number of instruments, the first ones by symbol; 0 for all.
        notes: Lines for the person are added here.

    Raises:
        UserError: No file has bars, or one is unreadable or lacks a column.
    """
    lost: dict[str, Counter[str]] = {why: Counter() for why in (NO_SYMBOL, NO_DATE, AGAIN, NO_PRICE)}
    pieces = _pieces(path, limit, lost[NO_SYMBOL], notes)
    wanted: list[str] = []
    num_rows = lost[NO_SYMBOL].total()
    for symbol in sorted(pieces, key=str.lower)[: limit or None]:
        files, frames = zip(*pieces.pop(symbol), strict=True)
        frame = pd.concat(frames)
        num_rows += len(frame)
        numeric = list(frame.columns)
        ready = [name for name in numeric if name not in BARS and name not in TIMES]
        if kind == "auto":
            kind = "columns" if ready and not set(BARS) <= set(numeric) else "bars"
        if not wanted:
            wanted = ["close", *ready] if kind == "columns" else list(BARS)
            if kind != "columns" and ready:
                notes.append(
                    f"{len(ready)} further columns ({', '.join(ready[:3])}, ...) are not used; "
                    "`data.features: columns` uses them instead of features made from the bars."
                )
            elif kind == "columns" and not ready:
                raise UserError(
                    f"{files[0]} has no numeric column besides its bars; use `data.features: bars`."
                )
        missing = [name for name in wanted if name not in numeric]
        if missing:
            more = ", ..." if len(wanted) > 6 else ""
            raise UserError(
                f"{files[0]} needs the numeric columns {', '.join(wanted[:6])}{more}, "
                f"but {', '.join(missing[:6])} {'is' if len(missing) == 1 else 'are'} missing."
            )
        yield symbol, _clean(symbol, frame[wanted], lost)
    for why, by_symbol in lost.items():
        most = ", ".join(f"{symbol} {count}" for symbol, count in by_symbol.most_common(5))
        more = ", ..." if len(by_symbol) > 5 else ""
        left_out(notes, by_symbol.total(), num_rows, "rows", f"{why} ({most}{more})")


def _pieces(
    path: Path, limit: int, lost: Counter[str], notes: list[str]
) -> dict[str, list[tuple[Path, pd.DataFrame]]]:
    """Returns the rows of each instrument, with the files that they are from.

    With a `limit`, reading ends once so many are complete: files of one instrument each lie side by side.
    """
    files = sorted(find_tables(path, notes), key=lambda file: (_symbol_of(file).lower(), file))
    pieces: dict[str, list[tuple[Path, pd.DataFrame]]] = {}
    others: list[_NoBarsError] = []
    shared = False
    for file in files:
        try:
            frame, symbols = _read(file)
        except _NoBarsError as error:
            others.append(error)
            continue
        lost[file.name] += int(symbols.isna().sum())
        for symbol, own in frame.groupby(symbols.to_numpy()):
            pieces.setdefault(str(symbol), []).append((file, own))
        shared = shared or set(symbols) != {_symbol_of(file)}
        if limit and len(pieces) > limit and not shared:
            break
    if not pieces:
        raise others[0]
    left_out(
        notes, len(others), len(files), "files", "no bars", first=" ".join(map(str, others[:1])).rstrip(".")
    )
    return pieces


def _read(file: Path) -> tuple[pd.DataFrame, pd.Series]:
    """Returns the numeric columns of `file` by date, their names in small letters, and each row's symbol."""
    notes: list[str] = []
    table = _long(read_table(file, notes))
    table.columns = table.columns.str.lower()
    if not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()][0]
        raise UserError(f"{file} has the column {twice!r} twice (letter case does not count).")
    keys = {key: value for key, value in _keys(file).items() if key in (*SYMBOLS, *TIMES)}
    table = table.assign(**{key: value for key, value in keys.items() if key not in table})
    read = read_times(table, file)
    if read is None:
        raise _NoBarsError(
            f"{file} needs a date column, named one of {', '.join(TIMES)}, "
            f"but has {', '.join(table.columns[:6])}. {' '.join(notes)}".rstrip()
        )
    times, used = read
    if isinstance(times.dtype, pd.DatetimeTZDtype):
        times = times.dt.tz_localize(None)  # a day of trading is that of the exchange
    table = table.drop(columns=used)
    name = _symbol_column(table, times)
    frame = numbers(table.drop(columns=[name] if name else []), [])
    if "close" not in frame:
        raise _NoBarsError(
            f"{file} needs the numeric columns {', '.join(BARS)}, "
            f"but has {', '.join(frame.columns[:6])}. {' '.join(notes)}".rstrip()
        )
    if name:
        symbols = table[name].astype("object").convert_dtypes().astype("string").str.strip().str.upper()
    else:
        symbols = pd.Series(_symbol_of(file), table.index)
    return frame.set_axis(pd.Index(times)), symbols


def _long(table: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with a row per date and instrument from one whose columns are (price, instrument).

    The levels may be the other way round. Columns with one level alone, such as a date, belong to all.
    """
    if table.columns.nlevels == 1:
        return with_one_level(table)
    names = [tuple(map(name_of, name)) for name in table.columns]
    prices = 1 if any(name[1].lower() == "close" for name in names) else 0
    shared = with_one_level(table.loc[:, [not all(name) for name in names]])
    pieces = []
    for symbol in dict.fromkeys(name[1 - prices] for name in names if all(name)):
        own = table.loc[:, [all(name) and name[1 - prices] == symbol for name in names]]
        own = own.set_axis(
            [name[prices] for name in names if all(name) and name[1 - prices] == symbol], axis=1
        )
        pieces.append(pd.concat([shared, own], axis=1).assign(ticker=symbol))
    return pd.concat(pieces, ignore_index=True)


def _keys(file: Path) -> dict[str, str]:
    """Returns what folders such as `Ticker=AAA` say."""
    parts = (part.partition("=") for part in file.parent.parts if "=" in part)
    return {key.lower(): unquote(value) for key, _, value in parts}


def _symbol_of(file: Path) -> str:
    """Returns the instrument of a file that is of one: its folder says so, or its name."""
    keys = _keys(file)
    if own := next((keys[key] for key in SYMBOLS if key in keys), ""):
        return own.upper()
    match = TABLE.fullmatch(file.name)
    return (match[1] if match else file.stem).removesuffix("_features").upper()


def _symbol_column(table: pd.DataFrame, times: pd.Series) -> str | None:
    """Returns the column of instruments: called like one, or text that tells rows of a date apart."""
    named = next((name for name in SYMBOLS if name in table and table[name].notna().any()), None)
    if named or times.is_unique:
        return named
    for name in table.select_dtypes(exclude="number").columns:
        if not pd.concat([times, table[name]], axis=1).duplicated().any():
            return str(name)
    return None


def _clean(symbol: str, frame: pd.DataFrame, lost: dict[str, Counter[str]]) -> pd.DataFrame:
    """Returns a row for each date that has usable prices, ascending; a missing volume counts as 0."""
    dated = frame[frame.index.notna()]
    try:
        dated = dated.sort_index(kind="stable")
    except TypeError:
        raise UserError(f"{symbol} needs dates or numbers as its days, but its files have both.") from None
    single = dated[~dated.index.duplicated(keep="last")]
    if 2 * len(single) < len(dated):
        again = len(dated) - len(single)
        raise UserError(
            f"{symbol} needs one row per date, but the date of {again} of {len(dated)} rows comes again; "
            "name their instrument in a column such as `ticker` or a folder such as `ticker=AAA`."
        )
    prices = [name for name in BARS[:4] if name in frame]
    usable = single[(single[prices] > 0).all(axis=1)].reset_index(drop=True)
    for why, before, after in (
        (NO_DATE, frame, dated),
        (AGAIN, dated, single),
        (NO_PRICE, single, usable),
    ):
        if count := len(before) - len(after):
            lost[why][symbol] = count
    if "volume" in usable:
        usable["volume"] = usable["volume"].fillna(0.0).clip(lower=0.0)
    return usable
