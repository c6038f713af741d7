"""Checks `pipelines.behaviour`: windows and their classes, no leakage, the loss, models that learn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from pipelines import behaviour
from pipelines.behaviour.models import KINDS
from pipelines.behaviour.recordings import highpass
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "basicmotions" / "basicmotions.npz"
SMALL = {"hidden_size": 24, "num_layers": 1}


def recording(place: float, samples: int = 400, channels: int = 6) -> np.ndarray:
    """Samples that tell where they are from: the first channel counts up from `place`."""
    x = np.random.default_rng(int(place)).standard_normal((samples, channels)).round(3)
    x[:, 0] = place + np.arange(samples)
    return x


def write(file: Path, x: np.ndarray, header: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(file, x, fmt="%.3f", header=header, comments="")


def people(root: Path, classes: tuple[str, ...] = ("chew", "talk"), each: int = 5) -> Path:
    for number in range(len(classes) * each):
        kind, folder = classes[number % len(classes)], ("a_data", "b_data")[number % 2 if each > 5 else 0]
        write(root / folder / kind / f"r{number}.txt", recording(1000.0 * number))
    return root


def load(path: Path | None = None, **data: Any) -> Prepared:
    return behaviour.prepare({**({"path": str(path)} if path else {}), **data})


def small(**data: Any) -> Prepared:
    return load(**{"recordings": 12, "seconds": 60, "window": 128, **data})


def built(prepared: Prepared, seed: int = 0, **model: Any) -> Pipeline:
    torch.manual_seed(seed)
    return behaviour.build(TrialConfig(model={**SMALL, **model}), prepared)


def everything(pipeline: Pipeline, part: str) -> Batch:
    samples = getattr(pipeline, part)
    batch: Batch = samples.gather(samples.tensors, torch.arange(samples.length))
    return batch


def places(prepared: Prepared, part: str, window: int) -> np.ndarray:
    """The first channel of every window [windows, window], in samples from any one place."""
    unit = np.median(np.diff(prepared.arrays["train_series"][:, 0].astype(np.float64)))
    raw = prepared.arrays[f"{part}_series"][:, 0].astype(np.float64) / unit
    return np.stack([raw[start : start + window] for start in prepared.arrays[f"{part}_start"]])


@pytest.mark.parametrize("window", [100, 150])
def test_windows_are_cut_from_recordings_of_which_none_is_on_both_sides(tmp_path: Path, window: int) -> None:
    root = people(tmp_path, each=6)
    prepared = load(root, window=window, pattern="r*.txt")
    train, val = (places(prepared, part, window) for part in ("train", "val"))
    offset = train.min()
    stride = round(window / 2)
    per_recording = (400 - window) // stride + 1
    sources = []
    for found in (train, val):
        raw = np.round(found - offset)
        np.testing.assert_allclose(np.diff(raw, axis=1), 1)  # no window runs over the end of a recording
        np.testing.assert_array_equal(raw[:, 0] % 1000 % stride, raw[0, 0] % 1000 % stride)
        source, count = np.unique(raw[:, 0] // 1000, return_counts=True)
        assert set(count.tolist()) == {per_recording}
        sources.append(set(source.tolist()))
    assert len(sources[0]) == 10
    assert len(sources[1]) == 2
    assert not sources[0] & sources[1]
    assert prepared.meta["classes"] == ["chew", "talk"]
    # Even recordings chew, odd ones talk: each class has its share held back.
    for part in ("train", "val"):
        assert len(set(np.bincount(prepared.arrays[f"{part}_label"]).tolist())) == 1
    assert f"chew {5 * per_recording} + {per_recording}" in prepared.notes[-1]


def test_channels_are_standardised_by_training_samples(tmp_path: Path) -> None:
    prepared = load(people(tmp_path), window=100)
    train, val = prepared.arrays["train_series"], prepared.arrays["val_series"]
    np.testing.assert_allclose(train.mean(axis=0, dtype=np.float64), 0, atol=1e-3)
    np.testing.assert_allclose(train.std(axis=0, dtype=np.float64), 1, atol=1e-3)
    assert abs(val[:, 0].mean()) > 0.01


def test_a_knock_is_cut_off_and_a_dead_channel_stays_zero(tmp_path: Path) -> None:
    root = people(tmp_path)
    x = recording(0.0)
    x[:, 5], x[7, 1] = 3.0, 1e6
    for file in (root / "a_data").rglob("*.txt"):
        other = np.loadtxt(file)
        other[:, 5] = 3.0
        write(file, other)
    write(root / "a_data" / "chew" / "r0.txt", x)
    for seed in range(3):
        prepared = load(root, window=100, seed=seed)
        for part in ("train", "val"):
            series = prepared.arrays[f"{part}_series"]
            assert np.isfinite(series).all()
            assert np.abs(series).max() <= 10
            assert not series[:, 5].any()


@pytest.mark.parametrize("name", ["chew_01", "耳道-咀嚼5下共6次", "x_CHEW"])
def test_classes_from_file_names(tmp_path: Path, name: str) -> None:
    for number in range(2):
        write(tmp_path / "p_data" / f"{name}_{number}.txt", recording(number))
        write(tmp_path / "p_data" / f"耳道-饮水3次吞咽{number}.txt", recording(10 + number))
    prepared = load(tmp_path, window=100)
    assert prepared.meta["classes"] == ["chew", "drink"]  # the first word counts, not swallow
    with pytest.raises(UserError, match="has no class"):
        load(tmp_path, window=100, labels="run, sit")
    for number in range(2):
        write(tmp_path / "q_data" / f"run{number}.txt", recording(20 + number))
        write(tmp_path / "q_data" / f"sit{number}.txt", recording(30 + number))
    assert load(tmp_path / "q_data", window=100, labels="run, sit").meta["classes"] == ["run", "sit"]


def events_of(root: Path, entries: Any) -> None:
    (root / "events_config.json").write_text(json.dumps({"files": entries}), encoding="utf-8")


def entry(file: str, label: str, starts: list[float] | None, **more: Any) -> dict[str, Any]:
    return {"file": file, "label": label, "event_starts_sec": starts, "event_duration_sec": 1.0, **more}


def test_events_label_the_windows_they_mostly_fill(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "p_data" / f"r{number}.txt", recording(1000.0 * number))
    write(tmp_path / "p_data" / "unlisted.txt", recording(7000.0))
    # 400 samples in 8 s are 50 Hz: an event of one second is 50 samples.
    events_of(
        tmp_path,
        [entry(f"r{n}.txt", "chew", [0, 4], total_duration_sec=8.0) for n in range(3)]
        + [entry(f"p_data/r{n}.txt", "talk", [2, 8.0]) for n in range(3)]
        + [entry("gone.txt", "talk", [1]), entry("r0.txt", "chew", None)],
    )
    prepared = load(tmp_path, window=50, overlap=0.5)
    found = {}
    for part in ("train", "val"):
        pairs = zip(prepared.arrays[f"{part}_start"] % 400, prepared.arrays[f"{part}_label"], strict=True)
        found |= {int(start): prepared.meta["classes"][label] for start, label in pairs}
    # Half in an event and half in none: the class none comes first, and such windows are left out.
    assert found == {0: "chew", 100: "talk", 200: "chew"}
    notes = " ".join(prepared.notes)
    assert "1 files named in events_config.json are not there: gone.txt" in notes
    assert "1 of 4 recordings left out: not in events_config.json; the first is p_data/unlisted.txt." in notes
    assert "3 of 12 events left out: they begin after the end of their recording." in notes
    assert "36 of 45 windows left out: mostly in no event." in notes
    assert "50 samples a second" in notes
    rest = load(tmp_path, window=50, background="rest")
    assert rest.meta["classes"] == ["chew", "rest", "talk"]
    assert len(rest.arrays["train_start"]) + len(rest.arrays["val_start"]) == 3 * 15


def test_torn_logs_copies_and_short_recordings_are_told(tmp_path: Path) -> None:
    root = people(tmp_path)
    file = root / "a_data" / "chew" / "r0.txt"
    lines = file.read_text().splitlines()
    lines[5], lines[9], lines[11] = "1.0 2.0", "nan 1 2 3 4 5", ""
    lines[20:30] = [line.replace(" ", "; ") for line in lines[20:30]]
    file.write_bytes("绿光 红外 红光 X Y Z\n".encode("gbk") + "\n".join(lines).encode())
    write(root / "_merged_data" / "talk" / "copy.txt", np.loadtxt(root / "a_data" / "talk" / "r1.txt"))
    write(root / "a_data" / "talk" / "short.txt", recording(0.0, 99))
    prepared = load(root, window=100)
    notes = " ".join(prepared.notes)
    assert "2 of 3999 lines left out: no whole sample." in notes
    assert (
        "left out: copies of others; the first is a_data/talk/r1.txt (of _merged_data/talk/copy.txt)."
        in notes
    )
    assert "left out: shorter than a window of 100 samples; the first is a_data/talk/short.txt." in notes
    assert len(prepared.arrays["train_series"]) + len(prepared.arrays["val_series"]) == 10 * 400 - 3


def test_highpass_takes_away_what_is_slow() -> None:
    time = np.arange(1000) / 100
    slow, fast = 1e5 + 40 * np.sin(2 * np.pi * 0.02 * time), np.sin(2 * np.pi * 5 * time)
    x = (slow + fast)[:, None]
    left = highpass(x, 0.3, 100.0)[200:-200, 0] - fast[200:-200]
    assert np.abs(left).max() < 0.1
    assert highpass(x, 0.0, 100.0) is x
    with pytest.raises(UserError, match=r"`data\.highpass` must be below half the rate, 10 Hz"):
        highpass(x, 10.0, 20.0)


def test_ready_windows_in_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("sit", "walk"):
        for name in range(5):
            for window in range(4):
                file = tmp_path / kind / f"rec{name}_{window:03d}.npy"
                file.parent.mkdir(exist_ok=True)
                x = rng.standard_normal((3, 80))
                x[0] = name + (10 if kind == "walk" else 0)
                np.save(file, x)
    prepared = load(tmp_path)
    assert prepared.meta["window"] == 80
    assert any("80 samples each" in note for note in prepared.notes)
    pipeline = built(prepared, kind="transformer")
    ids = {part: everything(pipeline, part)["x"][:, 0, 0].unique().tolist() for part in ("train", "val")}
    assert (len(ids["train"]), len(ids["val"])) == (8, 2)
    assert not set(ids["train"]) & set(ids["val"])
    assert everything(pipeline, "train")["x"].shape == (32, 80, 3)

    for file in tmp_path.rglob("rec*.npy"):
        _, _, number = file.stem.partition("c")
        file.rename(file.with_name(f"sample_{number.replace('_', '')}.npy"))
    prepared = load(tmp_path)
    assert any("tell of one recording each" in note for note in prepared.notes)
    assert np.bincount(prepared.arrays["val_label"]).tolist() == [4, 4]


def table(**changes: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.array(["sit", "walk"] * 20)
    x = rng.standard_normal((40, 3, 80)).astype(np.float32) + (y == "walk")[:, None, None]
    arrays = {"X": x, "y": y, "split": np.array(["train"] * 30 + ["test"] * 10), **changes}
    return {name: array for name, array in arrays.items() if array is not None}


def test_npz_with_its_own_split_recordings_or_neither(tmp_path: Path) -> None:
    file = tmp_path / "motions.npz"
    np.savez(file, **table())
    for path in (file, tmp_path):
        prepared = load(path)
        assert [len(prepared.arrays[f"{part}_label"]) for part in ("train", "val")] == [30, 10]
    own = table()
    batch = everything(built(prepared, kind="transformer"), "val")
    known = own["X"][:30].transpose(0, 2, 1).reshape(-1, 3)
    expected = (own["X"][30:].transpose(0, 2, 1) - known.mean(0)) / known.std(0)
    np.testing.assert_allclose(batch["x"], expected, atol=1e-4)
    assert batch["label"].tolist() == [0, 1] * 5

    recording = np.arange(40) % 10  # of four windows each, of one class
    own["X"][:, 0] = recording[:, None]
    np.savez(file, **table(split=None, X=own["X"], recording=recording))
    prepared = load(file)
    held = prepared.arrays["val_series"].reshape(-1, 80, 3)[:, 0, 0]
    assert sorted(np.unique(held, return_counts=True)[1].tolist()) == [4, 4]
    assert not any("at random" in note for note in prepared.notes)
    np.savez(file, **table(split=None))
    assert any("held back at random" in note for note in load(file).notes)


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_channels_and_a_batch_of_one(tmp_path: Path, kind: str, channels: int) -> None:
    file = tmp_path / "m.npz"
    y = np.arange(15) % 3
    np.savez(file, X=np.random.default_rng(0).standard_normal((15, channels, 64)), y=y)
    pipeline = built(load(file), kind=kind)
    assert pipeline.model(everything(pipeline, "train")["x"]).shape == (12, 3)
    batch = pipeline.train.gather(pipeline.train.tensors, torch.arange(1))
    loss = pipeline.loss(pipeline.model.train(), batch)
    loss.backward()
    assert loss.shape == ()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in pipeline.model.parameters())


def test_row_equals_gather() -> None:
    pipeline = built(small())
    for samples in (pipeline.train, pipeline.val):
        assert samples.row is not None
        rows = default_collate([samples.row(i) for i in range(samples.length)])
        batch = samples.gather(samples.tensors, torch.arange(samples.length))
        assert batch["x"].shape == (samples.length, 128, 6)
        for name, value in batch.items():
            assert torch.equal(rows[name], value)
            assert rows[name].dtype == value.dtype


def test_loss_is_focal_weighted_and_one_mean() -> None:
    pipeline = built(small(), gamma=2.0)
    batch = everything(pipeline, "train")
    counts = np.bincount(batch["label"])
    assert (counts > 0).all()
    assert len(set(counts.tolist())) > 1
    weight = counts.sum() / (len(counts) * counts)
    assert float(batch["weight"].mean()) == pytest.approx(1, abs=1e-5)
    model = pipeline.model.eval()
    with torch.no_grad():
        p = model(batch["x"]).double().softmax(1).numpy()[np.arange(len(batch["label"])), batch["label"]]
        own = weight[batch["label"].numpy()]
        assert pipeline.loss(model, batch).item() == pytest.approx(
            np.mean(own * (1 - p) ** 2 * -np.log(p)), rel=1e-4
        )
        plain = built(small(), loss="cross_entropy")
        assert plain.loss(model, batch).item() == pytest.approx(np.mean(own * -np.log(p)), rel=1e-4)


@pytest.mark.parametrize(("model", "value"), [({}, (3 / 4) ** 2), ({"loss": "cross_entropy"}, 1.0)])
def test_constant_loss_is_that_of_the_weighted_classes(model: Mapping[str, Any], value: float) -> None:
    class Constant(torch.nn.Module):
        def __init__(self, scores: torch.Tensor) -> None:
            super().__init__()
            self.scores = scores

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scores.expand(len(x), -1)

    pipeline = built(small(), **model)
    train, val = everything(pipeline, "train"), everything(pipeline, "val")
    equal = Constant(torch.zeros(4))
    assert pipeline.loss(equal, val).item() == pytest.approx(pipeline.constant_loss, rel=1e-5)
    best = pipeline.loss(equal, train).item()
    assert best == pytest.approx(value * math.log(4), rel=1e-4)
    for seed in range(20):
        other = Constant(0.3 * torch.randn(4, generator=torch.Generator().manual_seed(seed)))
        assert pipeline.loss(other, train).item() > best


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_has_finite_slopes_where_a_prediction_is_certain(gamma: float) -> None:
    log_p = torch.tensor([0.0, -1e-9, -100.0], requires_grad=True)
    behaviour.focal(log_p, gamma).sum().backward()
    assert log_p.grad is not None
    assert torch.isfinite(log_p.grad).all()


def test_evaluate_counts_each_sample_once() -> None:
    class EventStream(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(x[:, 0, 0].long(), 4).float()

    truth, told = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 1, 0])
    batches = [
        {"x": told[part].view(-1, 1, 1).float(), "label": truth[part]} for part in (slice(4), slice(4, 6))
    ]
    # F1 by hand: class 0 2/3, class 1 4/5, class 2 never found; class 3 neither occurs nor is predicted.
    assert behaviour.evaluate(EventStream(), batches, classes=4) == {
        "accuracy": pytest.approx(4 / 6),
        "macro_f1": pytest.approx((2 / 3 + 4 / 5 + 0) / 3),
    }


def train(pipeline: Pipeline, epochs: int, rate: float, batch: int = 32) -> dict[str, float]:
    optimizer = torch.optim.AdamW(pipeline.model.parameters(), lr=rate)
    pipeline.model.train()
    for _ in range(epochs):
        for index in torch.randperm(pipeline.train.length).split(batch):
            loss = pipeline.loss(pipeline.model, pipeline.train.gather(pipeline.train.tensors, index))
            assert torch.isfinite(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    pipeline.model.eval()
    assert pipeline.evaluate is not None
    with torch.no_grad():
        batch_of_all = everything(pipeline, "val")
        told = dict(pipeline.evaluate(pipeline.model, [batch_of_all]))
        return {"loss": pipeline.loss(pipeline.model, batch_of_all).item(), **told}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "cnn" else pytest.mark.soak) for kind in KINDS]
)
def test_models_learn_the_made_up_data(kind: str) -> None:
    prepared = load(recordings=24, seconds=100, window=200)
    assert prepared.synthetic
    assert "made up" in prepared.notes[0]
    pipeline = built(prepared, kind=kind, hidden_size=48)
    told = train(pipeline, 2, 1e-3)
    assert pipeline.constant_loss is not None
    assert told["loss"] < 0.8 * pipeline.constant_loss
    assert told["accuracy"] > 0.5


def test_training_is_the_same_from_the_same_seed() -> None:
    prepared, again = (small(seed=3, recordings=6, seconds=40) for _ in range(2))
    for name, array in prepared.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    assert not np.array_equal(
        prepared.arrays["train_series"], small(seed=4, recordings=6, seconds=40).arrays["train_series"]
    )
    told = [train(built(prepared, seed=seed, kind="fusion"), 1, 1e-3, 64) for seed in (0, 0, 1)]
    assert told[0] == told[1]
    assert told[0]["loss"] != told[2]["loss"]


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/basicmotions is not here")
def test_real_motions_are_told_apart() -> None:
    prepared = load(REAL.resolve())
    assert prepared.meta["classes"] == ["badminton", "running", "standing", "walking"]
    assert len(prepared.arrays["train_label"]) == len(prepared.arrays["val_label"]) == 40
    assert train(built(prepared, kind="transformer", hidden_size=48), 12, 1e-3, 8)["accuracy"] >= 0.9


def test_what_no_window_reaches_is_counted(tmp_path: Path) -> None:
    notes = load(people(tmp_path), window=250, overlap=0.5).notes
    # The windows begin at 0 and 125: 25 of 400 samples are after the second.
    assert notes[0] == "250 of 4000 samples left out: after the last whole window of their recording."


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_decimal_comma_is_no_separator(tmp_path: Path, mark: str) -> None:
    straight = load(people(tmp_path / "a"), window=100)
    for file in people(tmp_path / "b").rglob("*.txt"):
        file.write_text(file.read_text().replace(" ", mark).replace(".", ","))
    prepared = load(tmp_path / "b", window=100)
    np.testing.assert_array_equal(straight.arrays["train_series"], prepared.arrays["train_series"])


def test_commas_within_groups_are_separators(tmp_path: Path) -> None:
    straight = load(people(tmp_path / "a"), window=100)
    for file in people(tmp_path / "b").rglob("*.txt"):
        lines = (line.split() for line in file.read_text().splitlines())
        file.write_text("".join(f"{','.join(line[:3])};{','.join(line[3:])}\n" for line in lines))
    prepared = load(tmp_path / "b", window=100)
    np.testing.assert_array_equal(straight.arrays["train_series"], prepared.arrays["train_series"])


def test_a_hidden_table_is_none(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((20, 3, 80)), np.arange(20) % 2
    np.savez(tmp_path / "m.npz", X=x, y=y, recording=np.arange(20))
    (tmp_path / "._m.npz").write_bytes(b"\0\5\26\7")
    assert load(tmp_path).arrays["train_series"].shape[1] == 3
