"""Loads a sweep as a pandas DataFrame (`sweeper.load`), and encodes that table as a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.core.metrics import METRICS
from sweeper.core.record import TrialRecord
from sweeper.core.template import spell
from sweeper.errors import UserError, did_you_mean
from sweeper.results.verdict.bottleneck import verdict_on
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.load import LoadedSweep, load_sweep

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("csv", "json", "parquet", "table")
_FLOATS = ("speedup", "ratio", "ratio_low", "ratio_high", *METRICS)
_STRINGS = ("name", "stage", "outcome", "verdict", "failure", "uid")
_TIMES = ("started", "finished")


def load(name: str, home: str | Path = "mlruns") -> pd.DataFrame:
    """Returns a sweep's trials as a table, one row each; runs and writes nothing.

    Columns: `name`, `stage`, `outcome` (`measured`, a kind of failure, or `running`), `feasible`,
    `verdict`, `speedup` (as searched), `ratio` with `ratio_low` and `ratio_high` (confirmed,
    95%), every metric of `sweeper.core.metrics.METRICS` in its unit, `val_<name>` for each metric that
    the pipeline itself reports (such as accuracy), `param.<name>` for each parameter that differs between
    trials, `failure`, `started` and `finished` (UTC), `uid`. A missing value is NaN, NaT or NA.

    Args:
        name: The name in `sweeper list`.
        home: The state folder.

    Returns:
        The table, its index the trial's `number`.

    Raises:
        UserError: There is no such sweep. It is also a `ValueError`.
    """
    return frame(load_sweep(find_sweep(Path(home), name)))


def frame(sweep: LoadedSweep) -> pd.DataFrame:
    """Returns the trials of a sweep as a table (see `load`)."""
    import pandas as pd

    records = [record for _, record in sorted(sweep.table.records.items())]
    stages, ratios, names = sweep.stages(), sweep.ratios(), sweep.varied_names()
    flats = [record.config.canonical().flatten() for record in records]
    added = [name for name in sweep.spec.metrics() if name not in METRICS]
    ratio_of = [ratios.get(record.number) for record in records]
    columns: dict[str, list[Any]] = {
        "name": [sweep.name_of(record) for record in records],
        "stage": [stages[record.number] for record in records],
        "outcome": [_outcome(record) for record in records],
        "feasible": [record.feasible for record in records],
        "verdict": [verdict.kind.value if (verdict := verdict_on(record)) else None for record in records],
        "speedup": [sweep.table.speedup(record) for record in records],
        "ratio": [ratio.ratio if ratio else None for ratio in ratio_of],
        "ratio_low": [ratio.low if ratio else None for ratio in ratio_of],
        "ratio_high": [ratio.high if ratio else None for ratio in ratio_of],
        **{metric: [record.metric(metric) for record in records] for metric in (*METRICS, *added)},
        **{
            name: [record.pipeline_metrics.get(name) for record in records]
            for name in _reported_names(records)
        },
        **{f"param.{name}": [flat.get(name) for flat in flats] for name in names},
        "failure": [record.failure.message if record.failure else None for record in records],
        "started": [record.created_at for record in records],
        "finished": [record.outcome.finished_at if record.outcome else None for record in records],
        "uid": [record.uid for record in records],
    }
    table = pd.DataFrame(
        {column: _column(column, values, (*_FLOATS, *added)) for column, values in columns.items()}
    )
    table.index = pd.Index([record.number for record in records], name="number", dtype="int64")
    return table


def _reported_names(records: Sequence[TrialRecord]) -> Sequence[str]:
    return list(dict.fromkeys(name for record in records for name in record.pipeline_metrics))


def _column(name: str, values: list[Any], floats: Collection[str]) -> pd.Series[Any]:
    """Returns a column in the type of its name or, for a parameter, of its values."""
    import pandas as pd

    if name in _TIMES:
        seconds = pd.Series(values, dtype="float64")
        return pd.to_datetime(seconds.where(seconds > 0), unit="s", utc=True).dt.as_unit("us")
    kinds = {type(value) for value in values if value is not None}
    if name == "feasible":
        return pd.Series(values, dtype="bool")
    if name in floats or (kinds and float in kinds and kinds <= {int, float}):
        return pd.Series(values, dtype="float64")
    if name not in _STRINGS and kinds in ({bool}, {int}):
        return pd.Series(values, dtype="boolean" if kinds == {bool} else "Int64")
    return pd.Series([None if value is None else spell(value) for value in values], dtype="string")


def _outcome(record: TrialRecord) -> str:
    if record.outcome is None:
        return "running"
    return str(record.failure.kind) if record.failure else "measured"


def render_table(table: pd.DataFrame, form: str) -> bytes:
    """Returns a table as the content of a file: `csv`, `json` (a list of objects), `parquet` or `table`.

    Raises:
        UserError: There is no such format.
    """
    if form not in FORMATS:
        raise UserError(
            f"`--format` must be one of {', '.join(FORMATS)}, but got {form!r}.{did_you_mean(form, FORMATS)}"
        )
    if form == "parquet":
        return bytes(table.to_parquet())
    if form == "json":
        text = table.reset_index().to_json(orient="records", date_format="iso", double_precision=15, indent=1)
    elif form == "csv":
        text = table.to_csv(date_format="%Y-%m-%dT%H:%M:%S.%fZ")
    else:
        times = {column: table[column].dt.strftime("%Y-%m-%d %H:%M:%S") for column in _TIMES}
        shown = table.assign(**times).dropna(axis="columns", how="all")
        text = shown.to_string(na_rep="–", float_format=lambda value: f"{value:.5g}")
    return f"{text.rstrip()}\n".encode()
