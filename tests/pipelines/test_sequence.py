"""Checks `pipelines.sequence`: windows, parts, models, and what is told of a forecast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from pipelines import sequence
from pipelines.sequence.made_up import forecast_variance, make_series
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "etth1" / "ETTh1.csv"
ROWS = 400


def table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(5, 3, (rows, 2)).cumsum(axis=0), columns=["a", "b"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=rows, freq="h"))
    frame["place"] = np.arange(rows, dtype=float)  # tells where a window is from
    return frame


def save(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def load(path: Path | None = None, **data: Any) -> Prepared:
    few = {"horizon": 3, "seq_length": 8}
    return sequence.prepare({**few, **({"path": str(path)} if path else {"rows": 600}), **data})


def pipeline_of(prepared: Prepared, seq_length: int | None = None, **model: Any) -> Pipeline:
    data = {} if seq_length is None else {"seq_length": seq_length}
    return sequence.build(TrialConfig(model=model, data=data), prepared)


def everything(samples: Samples) -> Batch:
    return samples.gather(samples.tensors, torch.arange(samples.length))


def train(pipeline: Pipeline, steps: int, seed: int, lr: float = 3e-3) -> float:
    """Returns the validation loss after `steps` of 128 samples."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(pipeline.model.parameters(), lr=lr)
    for _ in range(steps):
        index = torch.randint(pipeline.train.length, (128,), generator=generator)
        loss = pipeline.loss(pipeline.model, pipeline.train.gather(pipeline.train.tensors, index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pipeline.model.eval()
    with torch.no_grad():
        return float(pipeline.loss(pipeline.model, everything(pipeline.val)))


@pytest.mark.parametrize("target", ["all", "column_1"])
@pytest.mark.parametrize("part", ["train", "val"])
def test_row_equals_gather_for_every_sample(target: str, part: str) -> None:
    samples = getattr(pipeline_of(load(target=target)), part)
    rows = default_collate([samples.row(i) for i in range(samples.length)])
    batch = everything(samples)
    assert batch["x"].shape == (samples.length, 8, 8)
    assert batch["y"].shape == (samples.length, 3, 8 if target == "all" else 1)
    for name, value in batch.items():
        assert torch.equal(rows[name], value)
        assert rows[name].dtype == value.dtype == torch.float32
        one = samples.gather(samples.tensors, torch.tensor([samples.length - 1]))
        assert torch.equal(one[name], value[-1:])


@pytest.mark.parametrize("seq_length", [8, 20])
def test_windows_hold_the_rows_they_should(tmp_path: Path, seq_length: int) -> None:
    prepared = load(save(table(), tmp_path / "t.csv"), split="0.6/0.2/0.15", target="a")
    assert [list(edges) for edges in prepared.meta["parts"].values()] == [[0, 240], [240, 320], [320, 380]]
    assert prepared.notes == ["20 rows after the test part of `data.split` are not used."]
    pipeline = pipeline_of(prepared, seq_length)
    place = 239 / 2 + table()["place"][:240].std(ddof=0) * everything(pipeline.val)["x"][:, :, 2].numpy()
    a = table()["a"]
    wanted = (a - a[:240].mean()) / a[:240].std(ddof=0)
    # The rows to forecast are those of the part, however far a window reaches back.
    assert len(place) == 80 - 2
    for n, (x, y) in enumerate(zip(place, everything(pipeline.val)["y"], strict=True)):
        np.testing.assert_allclose(x, np.arange(240 + n - seq_length, 240 + n), atol=0.01)
        np.testing.assert_allclose(y[:, 0], wanted[240 + n : 243 + n], atol=1e-4)
    assert pipeline.train.length == 240 - seq_length - 2


def test_the_test_part_is_what_is_evaluated_on(tmp_path: Path) -> None:
    path = save(table(), tmp_path / "t.csv")
    val, test = (pipeline_of(load(path, evaluate_on=part, target="place")).val for part in ("val", "test"))
    sd = float(np.arange(280).std())
    first, last = (float(everything(each)["y"].min()) * sd + 139.5 for each in (val, test))
    assert (round(first), round(last)) == (280, 340)
    assert any("test part; no choice" in note for note in load(path, evaluate_on="test").notes)


def test_months_are_counted_from_the_first_row(tmp_path: Path) -> None:
    frame = table(20 * 30)
    frame["date"] = pd.date_range("2020-01-15", periods=len(frame), freq="D")
    prepared = load(save(frame, tmp_path / "t.csv"), split="12/4/3")
    assert [list(edges) for edges in prepared.meta["parts"].values()] == [[0, 360], [360, 480], [480, 570]]
    assert prepared.notes == ["30 rows after the test part of `data.split` are not used."]


@pytest.mark.parametrize("part", ["train", "val"])
def test_nothing_after_a_part_changes_it(tmp_path: Path, part: str) -> None:
    frame = table()
    frame.loc[[270, 279, 339], "b"] = np.nan  # the last row of a part among them
    before = load(save(frame, tmp_path / "a.csv"))
    _, stop = before.meta["parts"][part]
    frame.loc[stop:, ["a", "b"]] = np.random.default_rng(0).normal(0, 1e3, (ROWS - stop, 2))
    after = load(save(frame, tmp_path / "b.csv"))
    np.testing.assert_array_equal(before.arrays["series"][:stop], after.arrays["series"][:stop])
    assert not np.array_equal(before.arrays["series"], after.arrays["series"])
    batches = [everything(getattr(pipeline_of(each), part)) for each in (before, after)]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in "xy")


def test_series_are_standardised_by_the_training_part(tmp_path: Path) -> None:
    series = load(save(table(), tmp_path / "t.csv")).arrays["series"]
    np.testing.assert_allclose(series[:280].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(series[:280].std(axis=0), 1, atol=1e-5)
    assert abs(series[280:].mean()) > 0.5


def test_memory_mapped_arrays_are_not_copied(tmp_path: Path) -> None:
    prepared = load()
    np.save(tmp_path / "series.npy", prepared.arrays["series"])
    mapped = np.load(tmp_path / "series.npy", mmap_mode="c")
    pipeline = pipeline_of(Prepared(arrays={**prepared.arrays, "series": mapped}, meta=prepared.meta))
    assert pipeline.train.tensors["series"].data_ptr() == mapped.ctypes.data
    assert pipeline.train.tensors["series"].is_contiguous()


def test_synthetic_is_made_up_reproducible_and_can_be_forecast() -> None:
    prepared, again, other = (load(rows=20_000, horizon=24, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(prepared.arrays["series"], again.arrays["series"])
    assert not np.array_equal(prepared.arrays["series"], other.arrays["series"])
    assert prepared.synthetic
    assert "made up" in prepared.notes[0]
    pipeline = pipeline_of(prepared, 30)
    best, constant = pipeline.best_loss, pipeline.constant_loss
    assert best is not None
    assert constant is not None
    assert best < 0.5 * constant
    # What a straight line of the window forecasts is nearly the best: the signal is there to be found.
    fit, val = everything(pipeline.train), everything(pipeline.val)
    x, x_val = (nn.functional.pad(b["x"].flatten(1), (0, 1), value=1.0).double() for b in (fit, val))
    line = torch.linalg.lstsq(x, fit["y"].flatten(1).double()).solution
    reached = float((x_val @ line - val["y"].flatten(1)).square().mean())
    assert best < reached < 1.3 * best


def test_the_best_loss_is_that_of_one_who_knows_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.sequence import made_up

    rows, horizon = 30_000, 14
    frame, unit = make_series(rows, 3, 0)
    monkeypatch.setattr(made_up, "NOISE", 0.0)
    season, _ = make_series(rows, 3, 0)
    monkeypatch.undo()
    z = (frame.to_numpy() - season.to_numpy()) / unit
    ahead = [np.roll(z, -t, axis=0) for t in range(-11, 1)]  # z[now - 11] to z[now]
    variance = []
    for _ in range(horizon):
        ahead.append(0.6 * ahead[-1] + 0.35 * np.roll(ahead[-12], 1, axis=1))
        steps = len(ahead) - 12
        error = (np.roll(z, -steps, axis=0) - ahead[-1])[12 : -steps - 1]
        variance.append(np.square(error).mean())
    np.testing.assert_allclose(forecast_variance(horizon, 3), variance, rtol=0.05)


def test_the_constant_loss_is_that_of_the_training_mean() -> None:
    for target in ("all", "column_2"):
        pipeline = pipeline_of(load(target=target))
        wanted = float(everything(pipeline.val)["y"].double().square().mean())
        assert pipeline.constant_loss == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("kind", ["lstm", "bilstm_attention"])
@pytest.mark.parametrize("target", ["all", "column_2"])
def test_models_begin_at_the_last_value_and_learn(kind: str, target: str, in_bf16: Any) -> None:
    torch.manual_seed(0)
    pipeline = pipeline_of(load(target=target), kind=kind, hidden_size=8)
    batch = pipeline.train.gather(pipeline.train.tensors, torch.arange(1))  # a ragged last batch of one
    columns = slice(None) if target == "all" else slice(2, 3)
    assert torch.equal(pipeline.model(batch["x"]), batch["x"][:, -1:, columns].expand_as(batch["y"]))
    nn.init.normal_(pipeline.model.head.weight)  # type: ignore[union-attr,arg-type]
    loss = pipeline.loss(pipeline.model, batch)
    loss.backward()
    assert loss.shape == ()
    for name, parameter in pipeline.model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    assert in_bf16(lambda: pipeline.loss(pipeline.model, batch)).dtype == torch.float32


def test_attention_of_the_last_step_is_that_of_all() -> None:
    torch.manual_seed(0)
    model = pipeline_of(load(), kind="bilstm_attention", hidden_size=8).model.eval()
    nn.init.normal_(model.head.weight)  # type: ignore[arg-type,union-attr]
    x = torch.randn(5, 8, 8)
    with torch.no_grad():
        states = model.recurrent(x - x[:, -1:])[0] + model.positions  # type: ignore[operator]
        attended, _ = model.attention(states, states, states)  # type: ignore[operator]
        last = model.norm(states + attended)[:, -1]  # type: ignore[operator]
        wanted = x[:, -1:] + model.head(last).view(5, 3, 8)  # type: ignore[operator]
        torch.testing.assert_close(model(x), wanted)


@pytest.mark.parametrize("kind", ["lstm", "bilstm_attention"])
def test_a_level_that_was_never_seen_changes_no_forecast(kind: str) -> None:
    torch.manual_seed(0)
    model = pipeline_of(load(), kind=kind, hidden_size=8).model.eval()
    nn.init.normal_(model.head.weight)  # type: ignore[arg-type,union-attr]
    x, level = torch.randn(5, 8, 8), 100 * torch.randn(8)
    with torch.no_grad():
        torch.testing.assert_close(model(x + level), model(x) + level, rtol=0, atol=1e-3)


def test_training_approaches_the_best_loss_and_repeats() -> None:
    prepared = load(rows=8000, horizon=2, columns=3, seq_length=16)

    def reached() -> float:
        torch.manual_seed(0)
        return train(pipeline_of(prepared, hidden_size=16, num_layers=1, dropout=0.0), 150, 0, 1e-2)

    first = reached()
    best = prepared.meta["best_loss"]
    assert 0.9 * best < first < 1.8 * best
    assert first == reached()


def test_evaluate_weighs_samples_not_batches(tmp_path: Path) -> None:
    pipeline = pipeline_of(load(save(table(), tmp_path / "t.csv"), target="a"))
    assert pipeline.evaluate is not None
    samples = pipeline.val

    class Up(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, -1:, :1] + torch.tensor([1.0, 2.0, 3.0])[:, None]

    def batches() -> Iterator[Batch]:
        for index in torch.arange(samples.length).split(23):
            yield samples.gather(samples.tensors, index)

    assert samples.length % 23
    told = pipeline.evaluate(Up(), batches())
    raw, sd = table()["a"].to_numpy(), table()["a"][:280].std(ddof=0)
    naive = [raw[t + 1 : t + 4] - raw[t] for t in range(279, 337)]
    error = np.array([row - sd * np.array([1, 2, 3]) for row in naive])
    assert told["rmse"] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-5)
    ratio = np.square(error).mean() / np.square(naive).mean()
    assert told["mse_over_last_value"] == pytest.approx(ratio, rel=1e-5)
    assert pipeline_of(load()).evaluate(Up(), [everything(pipeline_of(load()).val)]).keys() == {  # type: ignore[misc]
        "mse_over_last_value"
    }


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"data": {"seq_length": 89}}, "the val part's longest run"),
        ({"data": {"seq_length": 0}}, "`data.seq_length >= 1`"),
        ({"data": {"horizon": 4}}, "fixed when the data is prepared"),
        ({"data": {"evaluate_on": "test"}}, "fixed when the data is prepared"),
        ({"data": {"seq_lenth": 4}}, "Did you mean `seq_length`"),
        ({"model": {"kind": "gru"}}, "`model.kind` must be one of lstm, bilstm_attention"),
        ({"model": {"kind": "bilstm_attention", "hidden_size": 7}}, "even (4 heads)"),
        ({"model": {"hidden_siz": 8}}, "Did you mean `hidden_size`"),
        ({"model": {"dropout": 1}}, "`model.dropout < 1`"),
    ],
)
def test_mistakes_of_a_trial(config: dict[str, Any], words: str) -> None:
    prepared = load(split="0.1/0.4/0.5") if "longest" in words else load()
    with pytest.raises(UserError) as caught:
        sequence.build(TrialConfig(**config), prepared)
    assert words in str(caught.value).replace("the train part's", "the val part's")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/etth1 is not here")
def test_real_series_are_forecast() -> None:
    prepared = sequence.prepare({"path": str(REAL.resolve()), "split": "12/4/4"})
    assert prepared.notes == ["3020 rows after the test part of `data.split` are not used."]
    torch.manual_seed(0)
    pipeline = pipeline_of(prepared, num_layers=1)
    assert (pipeline.train.length, pipeline.val.length) == (8587, 2857)  # as the benchmark has it
    train(pipeline, 200, 0)
    assert pipeline.evaluate is not None
    with torch.no_grad():
        told = pipeline.evaluate(pipeline.model, [everything(pipeline.val)])
    assert told["mse_over_last_value"] < 0.65
