"""Checks `pipelines.tabular`: files, made-up data, and one line per mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import default_collate

from pipelines import tabular
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Pipeline


def table(rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(5, 3, (rows, 3)), columns=["a", "b", "c"])
    frame["y"] = 100 + 2 * frame["a"] - frame["b"]
    return frame


def load(**data: Any) -> tuple[Any, Pipeline]:
    prepared = tabular.prepare({key: str(val) if key == "path" else val for key, val in data.items()})
    return prepared, tabular.build(TrialConfig(), prepared)


def test_synthetic_is_reproducible_and_says_what_it_is() -> None:
    first, pipeline = load(rows=5000)
    second, _ = load(rows=5000)
    assert all(np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays)
    assert first.synthetic
    assert "made up" in first.notes[0]
    assert (pipeline.train.length, pipeline.val.length) == (4500, 500)
    assert pipeline.train.tensors["x"].shape == (4500, 30)
    assert {array.dtype.name for array in first.arrays.values()} == {"float32"}


def test_best_loss_is_that_of_the_true_function(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, pipeline = load(rows=50_000, features=5)
    _, noisy = tabular.make_rows(50_000, 5, 0)
    monkeypatch.setattr(tabular, "NOISE", 0.0)
    noise = noisy - tabular.make_rows(50_000, 5, 0)[1]
    monkeypatch.undo()
    assert noise.std() == pytest.approx(tabular.NOISE, rel=0.02)
    assert prepared.meta["best_loss"] == pytest.approx(noise.var() / noisy.var(), rel=0.03)
    assert pipeline.best_loss is not None
    assert pipeline.constant_loss is not None
    assert pipeline.best_loss <= 0.5 * pipeline.constant_loss


def test_a_short_training_approaches_the_best_loss() -> None:
    torch.manual_seed(0)
    _, pipeline = load(rows=20_000, features=8)
    optimizer = torch.optim.AdamW(pipeline.model.parameters(), lr=3e-3)
    order = torch.randperm(pipeline.train.length).repeat(6)
    for index in order.split(256):
        loss = pipeline.loss(pipeline.model, pipeline.train.gather(pipeline.train.tensors, index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        reached = float(pipeline.loss(pipeline.model, dict(pipeline.val.tensors)))
    assert pipeline.best_loss is not None
    assert pipeline.constant_loss is not None
    assert 0.9 * pipeline.best_loss < reached < 0.5 * pipeline.constant_loss


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_files_give_standardised_rows(tmp_path: Path, kind: str) -> None:
    frame = table()
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        path.mkdir()
        frame[:50].to_csv(path / "1.csv", index=False)
        frame[50:].to_parquet(path / "2.parquet")
    prepared, pipeline = load(path=path)
    x = prepared.arrays["train_x"]
    assert not prepared.synthetic
    assert prepared.notes == []
    assert x.shape == (180, 3)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-5)
    assert prepared.arrays["train_y"].std() == pytest.approx(1, abs=1e-5)
    assert pipeline.best_loss is None
    assert pipeline.constant_loss == pytest.approx(np.square(prepared.arrays["val_y"]).mean())


def test_gaps_text_and_missing_targets_are_noted(tmp_path: Path) -> None:
    frame = table()
    frame.insert(0, "name", "n")
    frame.insert(1, "constant", 7)
    frame.insert(2, "empty", np.nan)
    frame.loc[:9, "a"] = np.nan
    frame.loc[20, "b"] = np.inf
    frame.loc[30:32, "y"] = np.nan
    frame.to_parquet(tmp_path / "t.parquet")
    prepared, _ = load(path=tmp_path / "t.parquet", target="y")
    assert prepared.notes[0] == "Column 'name' skipped: not numeric."
    assert prepared.notes[1].startswith("Column 'b': 1 of 200 values left out: no finite number")
    assert prepared.notes[2] == "3 of 200 rows left out: no target."
    assert prepared.notes[3].startswith("208 missing values")
    assert all(np.isfinite(array).all() for array in prepared.arrays.values())


def test_row_is_what_gather_gives() -> None:
    _, pipeline = load(rows=1000)
    indices = [0, 7, 899]
    rows = default_collate([pipeline.train.row(i) for i in indices])  # type: ignore[misc]
    batch = pipeline.train.gather(pipeline.train.tensors, torch.tensor(indices))
    for name, value in batch.items():
        assert torch.equal(rows[name], value)
        assert rows[name].dtype == value.dtype


def test_the_model_has_the_size_asked_for() -> None:
    prepared, _ = load(rows=100, features=4)
    pipeline = tabular.build(TrialConfig(model={"hidden_size": 8, "num_layers": 3}), prepared)
    assert [tuple(p.shape) for p in pipeline.model.parameters() if p.ndim == 2] == [
        (8, 4), (8, 8), (8, 8), (1, 8),
    ]  # fmt: skip


def test_mistakes_are_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    (tmp_path / "text.csv").write_text("a,b\n1,x\n2,y\n")
    (tmp_path / "one.csv").write_text("a\n1\n2\n")
    (tmp_path / "few.csv").write_text("a,b\n1,2\n2,3\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "mixed" / "2.csv").write_text("a,c\n1,2\n")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"path": tmp_path / "none.csv"}, "none.csv"),
        ({"path": tmp_path / "empty"}, "empty"),
        ({"path": tmp_path / "bad.parquet"}, "bad.parquet cannot be read"),
        ({"path": tmp_path / "mixed"}, "2.csv has other columns"),
        ({"path": tmp_path / "text.csv"}, "'b'"),
        ({"path": tmp_path / "text.csv", "target": "q"}, "'q'"),
        ({"path": tmp_path / "one.csv"}, "besides the target 'a'"),
        ({"path": tmp_path / "few.csv"}, "at least 20 rows"),
        ({"row": 5}, "Did you mean `rows`"),
        ({"rows": "many"}, "type int"),
        ({"rows": -1}, "`data.rows >= 0`"),
        ({"source": "files"}, "data.source"),
    ]
    for data, words in cases:
        with pytest.raises(UserError) as caught:
            load(**data)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    prepared, _ = load(rows=100)
    with pytest.raises(UserError, match=r"model\.hidden_siz"):
        tabular.build(TrialConfig(model={"hidden_siz": 8}), prepared)
