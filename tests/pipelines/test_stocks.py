"""Checks `pipelines.stocks`: no leakage, right ids, masked splits, finite features, one line per mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import default_collate

from pipelines import stocks
from pipelines.stocks.features import HORIZON, bar_features
from pipelines.stocks.market import make_market
from pipelines.stocks.returns import WARM_UP, log_returns
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Pipeline, Prepared

DAYS = 700
EDGES = {"train": (60, 508), "val": (508, 604)}  # 60 days of warm-up, then 70 and 15 % of the other 640
REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "stock_bars" / "bars"


def market(num_stocks: int = 3, days: int = DAYS) -> dict[str, pd.DataFrame]:
    frames = {}
    for symbol, bars in make_market(num_stocks, days, 7, "volatility"):
        frames[symbol] = bars[["open", "high", "low", "close", "volume"]].assign(
            date=pd.date_range("2015-01-01", periods=days)
        )
    return frames


def save(folder: Path, frames: dict[str, pd.DataFrame]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for symbol, frame in frames.items():
        frame.to_parquet(folder / f"{symbol.lower()}.parquet")
    return folder


def load(path: Path | None = None, **data: Any) -> Prepared:
    return stocks.prepare({**({"path": str(path)} if path else {}), **data})


def pipeline_of(prepared: Prepared, seq_length: int = 20, **model: Any) -> Pipeline:
    return stocks.build(TrialConfig(model=model, data={"seq_length": seq_length}), prepared)


def everything(pipeline: Pipeline, part: str) -> dict[str, torch.Tensor]:
    samples = getattr(pipeline, part)
    batch: dict[str, torch.Tensor] = samples.gather(samples.tensors, torch.arange(samples.length))
    return batch


@pytest.mark.parametrize(
    ("target", "features"), [("volatility", "bars"), ("return", "bars"), ("volatility", "indicators")]
)
@pytest.mark.parametrize("part", ["train", "val"])
def test_nothing_after_a_part_changes_it(tmp_path: Path, part: str, target: str, features: str) -> None:
    frames = market()
    before = load(save(tmp_path / "a", frames), target=target, features=features)
    rng = np.random.default_rng(0)
    for frame in frames.values():
        after = frame.index >= EDGES[part][1]
        for name in ("open", "high", "low", "close", "volume"):
            frame.loc[after, name] *= rng.uniform(0.2, 5.0, int(after.sum()))
    changed = load(save(tmp_path / "b", frames), target=target, features=features)
    parts = ["train"] if part == "train" else ["train", "val"]
    for name, array in before.arrays.items():
        if name.partition("_")[0] in parts:
            np.testing.assert_array_equal(array, changed.arrays[name], err_msg=name)
    assert not np.array_equal(before.arrays["val_features"], changed.arrays["val_features"]) or part == "val"


@pytest.mark.parametrize("part", ["train", "val"])
def test_every_sample_has_its_own_window_id_and_target(tmp_path: Path, part: str) -> None:
    frames = market()
    for number, frame in enumerate(frames.values()):
        frame["place"] = (number + 1) * 1000.0 + np.arange(DAYS)  # a feature that tells where it is from
    prepared = load(save(tmp_path, frames), features="columns")
    batch = everything(pipeline_of(prepared), part)

    first, last = EDGES["train"]
    mean, sd = np.arange(first, last).mean(), np.arange(first, last).std()
    place = batch["x"][:, :, 0].double().numpy() * sd + mean
    assert prepared.meta["symbols"] == list(frames)
    returns = [np.diff(np.log(frame["close"]), prepend=np.nan) for frame in frames.values()]
    start, stop = EDGES[part]
    expected = [(i, t) for i in range(3) for t in range(start + 19, stop - 5)]
    assert len(expected) == len(place)
    raw = np.array([0.5 * np.log(np.square(returns[i][t + 1 : t + 6]).mean()) for i, t in expected])
    slope, offset = np.polyfit(raw, batch["target"].numpy(), 1)
    for n, (i, t) in enumerate(expected):
        assert batch["stock"][n] == i
        np.testing.assert_allclose(place[n], np.arange(t - 19, t + 1), atol=0.01)
    np.testing.assert_allclose(batch["target"], slope * raw + offset, atol=1e-4)


def test_features_are_standardised_by_all_training_days(tmp_path: Path) -> None:
    frames = market()
    prepared = load(save(tmp_path, frames))
    tables = [
        bar_features(frame, log_returns(frame["close"].to_numpy(), EDGES["train"][1])).to_numpy()
        for frame in frames.values()
    ]
    known = np.concatenate([table[slice(*EDGES["train"])] for table in tables])
    for part, (first, last) in EDGES.items():
        raw = np.concatenate([table[first:last] for table in tables])
        scaled = ((raw - known.mean(axis=0)) / known.std(axis=0)).clip(-8, 8)
        np.testing.assert_allclose(prepared.arrays[f"{part}_features"], scaled, rtol=1e-4, atol=1e-4)
    target = prepared.arrays["train_target"]
    assert np.nanmean(target) == pytest.approx(0, abs=1e-5)
    assert np.nanstd(target) == pytest.approx(1, abs=1e-5)
    assert np.isnan(target).sum() == 3 * HORIZON["volatility"]


@pytest.mark.parametrize("features", ["bars", "indicators"])
def test_a_split_is_masked_counted_and_leaves_no_trace(tmp_path: Path, features: str) -> None:
    frames = market(2)
    clean = load(save(tmp_path / "a", frames), features=features)
    day = 300
    for name in ("open", "high", "low", "close"):
        frames["S0001"].loc[day:, name] /= 7.0
    frames["S0001"]["volume"] = frames["S0001"]["volume"].astype(float)
    frames["S0001"].loc[day:, "volume"] *= 7.0
    split = load(save(tmp_path / "b", frames), features=features)
    assert not any("masked" in note for note in clean.notes)
    note = next(note for note in split.notes if "masked" in note)
    assert note.startswith("1 one-day moves beyond 10 robust sigmas")
    assert "(S0001 1)" in note
    second = EDGES["train"][1] - EDGES["train"][0] - WARM_UP + day  # the day's row, after the first stock's
    lost = np.isnan(split.arrays["train_target"]) & ~np.isnan(clean.arrays["train_target"])
    assert np.flatnonzero(lost).tolist() == list(range(second - 5, second))
    assert np.abs(split.arrays["train_features"] - clean.arrays["train_features"]).max() < 1.5


def test_indicators_are_used_where_they_are_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path, market(1))
    sizes = {kind: load(path, features=kind).arrays["val_features"].shape for kind in ("auto", "indicators")}
    assert sizes == {"auto": (96, 16), "indicators": (96, 40)}


@pytest.mark.parametrize("features", ["bars", "indicators"])
def test_no_volume_and_flat_days_stay_finite(tmp_path: Path, features: str) -> None:
    frames = market(2)
    frames["S0000"]["volume"] = 0
    flat = frames["S0001"].loc[100:180, "close"].iloc[0]
    frames["S0001"].loc[100:180, ["open", "high", "low", "close"]] = flat
    prepared = load(save(tmp_path, frames), features=features)
    pipeline = pipeline_of(prepared)
    for part in ("train", "val"):
        assert all(torch.isfinite(value).all() for value in everything(pipeline, part).values())


def test_instruments_left_out_are_named(tmp_path: Path) -> None:
    frames = market(3)
    frames["S0000"] = frames["S0000"][:141]
    frames["S0001"][["open", "high", "low", "close"]] = 5.0
    frames["S0002"].loc[4, "close"] = np.nan
    prepared = load(save(tmp_path, frames))
    assert prepared.meta["symbols"] == ["S0002"]
    assert list(prepared.notes) == [
        "S0000 skipped: 141 rows, 500 are needed",
        "S0001 skipped: its close never moves",
        "1 of 1541 rows left out: a price is missing or not above 0 (S0002 1).",
    ]
    with pytest.raises(UserError, match="at least 500 rows"):
        load(tmp_path, limit=1)


def test_rows_are_put_in_the_order_of_time(tmp_path: Path) -> None:
    frames = market(1)
    straight = load(save(tmp_path / "a", frames))
    shuffled = frames["S0000"].sample(frac=1, random_state=0).rename(columns=str.upper)
    twice = pd.concat([shuffled, shuffled[:5]])
    by_index = load(save(tmp_path / "b", {"S0000": twice.set_index("DATE")}))
    np.testing.assert_array_equal(straight.arrays["train_features"], by_index.arrays["train_features"])


def test_ready_columns_need_only_close(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = {}
    for number, (symbol, frame) in enumerate(market(2).items()):
        frames[f"{symbol}_features"] = frame[["date", "close"]].assign(
            ma=frame["close"].rolling(20).mean() * 10**number, rsi=rng.uniform(0, 100, DAYS), name="x"
        )
    prepared = load(save(tmp_path, frames))
    assert prepared.meta["symbols"] == ["S0000", "S0001"]
    x = prepared.arrays["train_features"]
    assert x.shape == (2 * 448, 2)
    np.testing.assert_allclose(x[:448].mean(axis=0), 0, atol=1e-5)  # each instrument on its own scale
    np.testing.assert_allclose(x[448:].std(axis=0), 1, atol=1e-5)


def test_row_equals_gather(tmp_path: Path) -> None:
    pipeline = pipeline_of(load(stocks=2, days=700))
    for samples in (pipeline.train, pipeline.val):
        assert samples.row is not None
        indices = [0, 1, samples.length // 2, samples.length - 1]
        rows = default_collate([samples.row(i) for i in indices])
        batch = samples.gather(samples.tensors, torch.tensor(indices))
        assert batch["x"].shape == (4, 20, 16)
        for name, value in batch.items():
            assert torch.equal(rows[name], value)
            assert rows[name].dtype == value.dtype


def test_memory_mapped_arrays_are_not_copied(tmp_path: Path) -> None:
    prepared = load(stocks=2, days=700)
    mapped = {}
    for name, array in prepared.arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="c")
    pipeline = pipeline_of(Prepared(arrays=mapped, meta=prepared.meta))
    features = pipeline.train.tensors["features"]
    assert features.data_ptr() == mapped["train_features"].ctypes.data
    assert features.is_contiguous()


@pytest.mark.slow
def test_synthetic_has_a_known_best_loss_that_can_be_approached() -> None:
    prepared = load()
    again = load()
    assert all(np.array_equal(prepared.arrays[n], again.arrays[n], equal_nan=True) for n in prepared.arrays)
    assert prepared.synthetic
    assert "made up" in prepared.notes[0]
    pipeline = pipeline_of(prepared, seq_length=60)
    assert pipeline.constant_loss is not None
    assert pipeline.best_loss is not None
    assert pipeline.best_loss <= 0.8 * pipeline.constant_loss
    # A straight line through the last day's features gets near it: the signal is there to be found.
    train, val = (everything(pipeline, part) for part in ("train", "val"))
    x, x_val = (torch.nn.functional.pad(b["x"][:, -1], (0, 1), value=1.0).double() for b in (train, val))
    line = torch.linalg.lstsq(x, train["target"].double()[:, None]).solution[:, 0]
    reached = float((x_val @ line - val["target"]).square().mean())
    assert pipeline.best_loss < reached < 1.25 * pipeline.best_loss


def test_returns_of_the_made_up_market_cannot_be_predicted() -> None:
    pipeline = pipeline_of(load(stocks=4, days=1000, target="return"))
    assert pipeline.constant_loss is not None
    assert pipeline.best_loss == pytest.approx(pipeline.constant_loss, rel=0.02)


@pytest.mark.parametrize(("kind", "module"), [("lstm", "LSTM"), ("gru", "GRU"), ("transformer", "Encoder")])
def test_models_train(kind: str, module: str, in_bf16: Any) -> None:
    torch.manual_seed(0)
    pipeline = pipeline_of(load(stocks=2, days=700), kind=kind, hidden_size=8, num_layers=1, embedding_dim=4)
    assert module in repr(pipeline.model)
    batch = pipeline.train.gather(pipeline.train.tensors, torch.arange(1))  # a ragged last batch of one
    loss = pipeline.loss(pipeline.model, batch)
    loss.backward()
    assert loss.shape == ()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in pipeline.model.parameters())
    assert in_bf16(lambda: pipeline.loss(pipeline.model, batch)).dtype == torch.float32


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_the_order_of_the_days_is_known(kind: str) -> None:
    torch.manual_seed(0)
    pipeline = pipeline_of(load(stocks=2, days=700), kind=kind, hidden_size=32)
    batch = pipeline.val.gather(pipeline.val.tensors, torch.arange(4))
    other = batch["x"].clone()
    other[:, [8, 18]] = batch["x"][:, [18, 8]]
    pipeline.model.eval()
    with torch.no_grad():
        told = [pipeline.model(x, batch["stock"]) for x in (batch["x"], other)]
    assert (told[0] - told[1]).abs().min() > 3e-6


def test_evaluate_compares_with_the_mean_of_each_stock() -> None:
    pipeline = pipeline_of(load(stocks=2, days=700))
    assert pipeline.evaluate is not None
    batches = [
        pipeline.val.gather(pipeline.val.tensors, index)
        for index in torch.arange(pipeline.val.length).split(33)
    ]
    assert len(batches[-1]["target"]) < 33
    train, val = (everything(pipeline, part) for part in ("train", "val"))

    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, stock: torch.Tensor) -> torch.Tensor:
            return 0.5 * x[:, -1, 9]

    own = [float(train["target"][train["stock"] == stock].mean()) for stock in (0, 1)]
    assert abs(own[0] - own[1]) > 0.1
    naive = np.square(val["target"].numpy() - np.where(val["stock"].numpy() == 0, *own)).mean()
    error = np.square(val["target"].numpy() - 0.5 * val["x"][:, -1, 9].numpy()).mean()
    assert pipeline.evaluate(Two(), batches) == pytest.approx({"mse_over_own_mean": error / naive})


def test_the_test_part_is_what_is_evaluated_on(tmp_path: Path) -> None:
    frames = market(1)
    frames["S0000"]["place"] = np.arange(DAYS, dtype=float)
    path = save(tmp_path, frames)
    val, test = (load(path, features="columns", evaluate_on=part) for part in ("val", "test"))
    first = EDGES["train"]
    mean, sd = np.arange(*first).mean(), np.arange(*first).std()
    place = [each.arrays["val_features"][[0, -1], 0] * sd + mean for each in (val, test)]
    np.testing.assert_allclose(place, [[508, 603], [604, 699]], atol=0.01)
    assert np.array_equal(val.arrays["train_features"], test.arrays["train_features"])
    assert any("test part; no choice" in note for note in test.notes)


def test_mistakes_are_one_line_each(tmp_path: Path) -> None:
    frame = market(1)["S0000"]
    bad: dict[str, bytes | pd.DataFrame] = {
        "unreadable": b"no parquet",
        "lacking": frame.drop(columns="high").drop(columns="volume"),
        "dateless": frame.drop(columns="date"),
        "undated": frame.assign(date="someday"),
        "doubled": frame.assign(Close=1.0),
    }
    for name, content in bad.items():
        file = tmp_path / name / "aaa.parquet"
        file.parent.mkdir()
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            content.to_parquet(file)
    (tmp_path / "empty").mkdir()
    good = save(tmp_path / "good", {"S0000": frame})
    mixed = save(tmp_path / "mixed", {"a": frame, "b": frame.drop(columns="volume")})
    cases: list[tuple[Path | None, dict[str, Any], str]] = [
        (tmp_path / "nowhere", {}, "nowhere does not exist"),
        (tmp_path / "empty", {}, "empty holds none"),
        (tmp_path / "unreadable", {}, "aaa.parquet cannot be read as a table"),
        (tmp_path / "lacking", {}, "high, volume are missing"),
        (tmp_path / "dateless", {}, "needs a date column"),
        (tmp_path / "undated", {}, "is not a date"),
        (tmp_path / "doubled", {}, "'close' twice"),
        (
            mixed,
            {},
            "b.parquet needs the numeric columns open, high, low, close, volume, but volume is missing",
        ),
        (good, {"features": "columns"}, "no numeric column besides"),
        (good, {"target": "volatilty"}, "Did you mean `volatility`"),
        (good, {"min_row": 3}, "Did you mean `min_rows`"),
        (good, {"limit": "all"}, "type int"),
        (None, {"source": "yahoo"}, "data.source"),
    ]
    for path, data, words in cases:
        with pytest.raises(UserError) as caught:
            load(path, **data)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    prepared = load(good)
    for config, words in [
        (TrialConfig(data={"seq_length": 500}), "`data.seq_length`"),
        (TrialConfig(data={"seq_length": 0}), "`data.seq_length`"),
        (TrialConfig(data={"target": "return"}), "fixed when the data is prepared"),
        (TrialConfig(model={"kind": "rnn"}), "`model.kind` must be one of lstm, gru, transformer"),
        (TrialConfig(model={"kind": "transformer", "hidden_size": 6}), "a multiple of 4 (heads), but got 6"),
        (TrialConfig(model={"hidden_siz": 8}), "Did you mean `hidden_size`"),
        (TrialConfig(model={"hidden_size": "big"}), "type int"),
        (TrialConfig(model={"num_layers": 0}), "`model.num_layers >= 1`"),
        (TrialConfig(model={"dropout": 1}), "`model.dropout < 1`"),
    ]:
        with pytest.raises(UserError) as caught:
            stocks.build(config, prepared)
        assert words in str(caught.value)


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/stock_bars is not here")
def test_real_bars() -> None:
    prepared = load(REAL.resolve())
    assert len(prepared.meta["symbols"]) == 21
    assert "AAA skipped: 141 rows, 500 are needed" in prepared.notes
    note = next(note for note in prepared.notes if "masked" in note)
    assert all(symbol in note for symbol in ("USO", "AAPL", "GOOG"))
    pipeline = pipeline_of(prepared, seq_length=60)
    assert pipeline.train.length > 30_000
    for part in ("train", "val"):
        assert all(torch.isfinite(value).all() for value in everything(pipeline, part).values())
    alone = load(REAL.resolve(), limit=3)
    assert alone.meta["symbols"] == ["AAPL", "AIG"]
