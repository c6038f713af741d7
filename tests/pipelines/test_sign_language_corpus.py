"""Checks what `pipelines.sign_language` reads: corpora of frames and landmarks, spelled words, mistakes."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines import sign_language
from pipelines.sign_language import clips as clips_module
from pipelines.sign_language.clips import UNKNOWN, Clip
from pipelines.sign_language.corpus import clean
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Prepared

HEADER = ["Number", "Translator", "Chinese Sentences", "Gloss", "Note"]
GLOSSES = {"train": ["书/看1/时间/。", "时间/固定/是", "书/书"], "dev": ["书/固定(手)/新", "看1/书"]}
FRAMES = 20
REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "asl_letters" / "asl_letters.npz"


def colour(part: str, clip: int, frame: int) -> tuple[int, int, int]:
    return 10 * frame, 40 * clip + 20, 100 if part == "train" else 200


def labels(
    path: Path, part: str, glosses: Sequence[str], *, encoding: str = "utf-8", header: Sequence[str] = HEADER
) -> None:
    (path / "label").mkdir(parents=True, exist_ok=True)
    with open(path / "label" / f"{part}.csv", "w", encoding=encoding, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i, gloss in enumerate(glosses):
            writer.writerow([f"{part}-{i:05d}", "AB"[i % 2], "句子，一。", gloss, ""])


def place(path: Path, part: str, i: int) -> Path:
    return path / "video" / part / "AB"[i % 2] / f"{part}-{i:05d}"


def corpus(path: Path, frames: int = FRAMES) -> Path:
    """Two parts of clips of 48 x 40 pixels, every frame of one colour."""
    for part, glosses in GLOSSES.items():
        labels(path, part, glosses)
        for i in range(len(glosses)):
            place(path, part, i).mkdir(parents=True)
            for frame in range(frames):
                Image.new("RGB", (48, 40), colour(part, i, frame)).save(
                    place(path, part, i) / f"{frame:05d}.{('jpg', 'png')[i % 2]}", quality=95
                )
    return path


def landmarks(path: Path, **broken: Any) -> Path:
    rng = np.random.default_rng(0)
    for part, glosses in GLOSSES.items():
        labels(path, part, glosses)
        for i in range(len(glosses)):
            file = place(path, part, i).with_suffix(".npy")
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, broken.get(f"{part}{i}", rng.normal(500, 100, (FRAMES + i, 6))))
    return path


def load(path: Path, **data: Any) -> Prepared:
    return sign_language.prepare({"path": str(path), "crop": 32, **data})


def test_frames_of_a_corpus(tmp_path: Path) -> None:
    prepared = load(corpus(tmp_path))
    assert not prepared.synthetic
    assert prepared.meta["glosses"] == sorted({"书", "看", "时间", "固定", "是"})
    ids = {gloss: i for i, gloss in enumerate(prepared.meta["glosses"], 1)}
    assert prepared.arrays["train_labels"].tolist() == [
        [ids["书"], ids["看"], ids["时间"]],
        [ids["时间"], ids["固定"], ids["是"]],
        [ids["书"], ids["书"], 0],
    ]
    assert prepared.arrays["val_labels"].tolist() == [[ids["书"], ids["固定"]], [ids["看"], ids["书"]]]
    assert prepared.arrays["val_reference"].tolist() == [
        [ids["书"], ids["固定"], UNKNOWN],
        [ids["看"], ids["书"], 0],
    ]
    assert any(note.startswith("1 glosses of dev.csv are not in train.csv") for note in prepared.notes)
    pipeline = sign_language.build(TrialConfig(model={"hidden_size": 8, "width": 4}), prepared)
    for part, samples in (("train", pipeline.train), ("val", pipeline.val)):
        batch = samples.read(samples.tensors, torch.arange(samples.length), FRAMES + 3)
        assert batch["x"].shape == (samples.length, FRAMES + 3, 3, 32, 32)
        for clip in range(samples.length):
            seen = batch["x"][clip, :FRAMES].float().mean((2, 3))
            expected = torch.tensor(
                [colour(part if part == "train" else "dev", clip, t) for t in range(FRAMES)]
            )
            assert (seen - expected).abs().max() < 4  # of a JPEG
        assert not batch["x"][:, FRAMES:].any()
    batch = pipeline.train.read(pipeline.train.tensors, torch.arange(3), FRAMES)
    assert torch.isfinite(pipeline.loss(pipeline.model, batch))


def test_long_clips_are_sampled_evenly(tmp_path: Path) -> None:
    prepared = load(corpus(tmp_path), max_frames=16)
    red = prepared.arrays["train_frames"][:16, 0].mean((1, 2))
    np.testing.assert_allclose(red, [10 * int(t) for t in np.linspace(0, FRAMES - 1, 16)], atol=4)
    assert "train: 3 clips sampled evenly to 16 frames (`data.max_frames`)." in prepared.notes


def test_what_is_skipped_is_counted_and_named(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    for part, first in (("train", 1), ("dev", 0)):
        for file in place(path, part, first).iterdir():
            file.unlink()
    labels(path, "train", [*GLOSSES["train"], "书", "。"])
    place(path, "train", 4).mkdir()
    Image.new("RGB", (8, 8)).save(place(path, "train", 4) / "0.png")
    prepared = load(path)
    assert len(prepared.arrays["train_counts"]) == 2
    assert len(prepared.arrays["val_counts"]) == 1
    notes = "\n".join(prepared.notes)
    assert f"train: 2 of 5 rows left out: without a clip; the first is {place(path, 'train', 1)}." in notes
    assert f"val: 1 of 2 rows left out: without a clip; the first is {place(path, 'dev', 0)}." in notes
    assert "train: 1 of 3 clips left out: without a gloss that training knows; the first is" in notes
    # 书/书 needs three steps, one of them blank: eleven frames are two at four frames a step, five at two.
    short = load(path, max_frames=11, limit=3, step_frames=2)
    assert len(short.arrays["train_counts"]) == 2
    with pytest.raises(
        UserError, match=r"2 of 2 clips left out: too short for their glosses at 4 frames a step"
    ):
        load(path, max_frames=11, limit=3)


def test_landmarks_are_standardised_and_missing_ones_filled(tmp_path: Path) -> None:
    holes = np.random.default_rng(1).normal(500, 100, (FRAMES, 6))
    holes[3, 2] = np.nan
    holes[5, 0] = np.inf
    prepared = load(landmarks(tmp_path, train0=holes))
    frames = prepared.arrays["train_frames"]
    known = frames[: int(prepared.arrays["train_lengths"].sum())].astype(np.float64)
    assert frames.dtype == np.float16
    np.testing.assert_allclose(known.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(known.std(axis=0), 1, atol=0.05)
    assert known[3, 2] == known[5, 0] == 0
    assert "train: 2 missing landmarks were replaced by their training mean." in prepared.notes
    assert prepared.arrays["train_lengths"].tolist() == [FRAMES, FRAMES + 1, FRAMES + 2]
    # What pads the last clip is no hand in the training mean's place.
    pipeline = sign_language.build(TrialConfig(model={"hidden_size": 8}), prepared)
    assert not pipeline.train.read(pipeline.train.tensors, torch.tensor([2]), FRAMES + 2 + 2)["x"][
        0, -2:
    ].any()


def test_gb18030_is_read_and_said(tmp_path: Path) -> None:
    path = landmarks(tmp_path)
    expected = load(path)
    labels(path, "train", GLOSSES["train"], encoding="gb18030")
    labels(path, "dev", GLOSSES["dev"], encoding="utf-8-sig")
    prepared = load(path)
    assert prepared.meta["glosses"] == expected.meta["glosses"]
    assert "train.csv is not UTF-8; it was read as GB18030." in prepared.notes
    assert not any("dev.csv is not UTF-8" in note for note in prepared.notes)


def test_the_test_part_is_read_only_where_it_is_asked_for(tmp_path: Path) -> None:
    path = landmarks(tmp_path)
    (path / "label" / "dev.csv").rename(path / "label" / "test.csv")
    (path / "video" / "dev").rename(path / "video" / "test")
    for part in "AB":
        for file in (path / "video" / "test" / part).iterdir():
            file.rename(file.with_name(file.name))
    assert len(load(path, split="test").arrays["val_counts"]) == 2
    with pytest.raises(UserError, match=r"dev\.csv must be a CSV file"):
        load(path)


@pytest.mark.parametrize(
    ("gloss", "cleaned"),
    [("禁止1", "禁止"), ("007", "7"), ("3D", "3D"), ("手（左）", "手"), ("。", ""), ("", ""), (" 书 ", "书")],
)
def test_glosses_are_cleaned(gloss: str, cleaned: str) -> None:
    assert clean(gloss) == cleaned


def remove_column(path: Path) -> None:
    labels(path, "train", GLOSSES["train"], header=["Number", "Translator", "Text", "Words", "Note"])


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(content) and None


CLIP = "video/train/A/train-00000.npy"
MISTAKES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: (path / "label" / "train.csv").unlink(), "train.csv must be a CSV file"),
    (remove_column, "needs the columns Number, Translator, Gloss, but Gloss is missing"),
    (write("label/train.csv", b"\xff\xfe\xff"), "must be text in UTF-8 or GB18030"),
    (write("label/train.csv", b"Number,Translator,Gloss\n"), "needs a row for each clip, but has none"),
    (
        write("label/train.csv", b"Number,Translator,Gloss\na,A\n"),
        "train.csv line 2 needs Number, Translator",
    ),
    (
        write("label/train.csv", b"Number,Translator,Gloss\na,A,x\na,B,y\n"),
        "train.csv line 3 must name a clip once, but has 'a' again",
    ),
    (write("label/train.csv", b"Number,Translator,Gloss\n../a,A,x\n"), "line 2 must name a clip, but got"),
    (write("label/dev.csv", b"Number,Translator,Gloss\nnone,A,x\n"), "ffmpeg -i A/none.mp4 A/none/%05d.jpg"),
    (
        write("label/dev.csv", "Number,Translator,Gloss\ndev-00001,B,新\n".encode()),
        "use for val, but got none",
    ),
    (write(CLIP, b"none"), "train-00000.npy cannot be read as an array"),
    (lambda path: np.save(path / CLIP, np.zeros((20, 2, 3))), "must hold numbers [frames, landmarks]"),
    (lambda path: np.save(path / CLIP, np.array([["a", "b"]])), "must hold numbers [frames, landmarks]"),
    (lambda path: np.save(path / CLIP, np.zeros((20, 5))), "must have frames of shape (5,)"),
    (
        lambda path: [np.save(file, np.full((20, 6), np.nan)) for file in (path / "video").rglob("*.npy")],
        "needs a number for each landmark",
    ),
]


@pytest.mark.parametrize(("breaks", "words"), MISTAKES)
def test_a_mistake_is_one_line(tmp_path: Path, breaks: Callable[[Path], Any], words: str) -> None:
    path = landmarks(tmp_path)
    breaks(path)
    with pytest.raises(UserError) as caught:
        load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_image_that_is_none_is_named(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    file = place(path, "train", 0) / "00004.jpg"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match=r"00004.jpg cannot be read as an image"):
        load(path)


def test_images_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = corpus(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match="`pip install pillow`"):
        load(path)


def test_more_than_the_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips_module, "MEMORY_SHARE", 0.0)
    clip = Clip(name="a", glosses=[1], length=8, read=lambda kept: np.zeros((len(kept), 4)))
    with pytest.raises(UserError, match="but 16 frames take"):
        clips_module.lay_out([clip], max_frames=0)


def hands(path: Path, **changes: Any) -> Path:
    """Three letters, each recorded in one take of 40 rows by either of two people."""
    label = np.tile(np.repeat(np.arange(3), 40), 2)
    row = np.arange(len(label))
    arrays: dict[str, Any] = {
        "keypoints": np.stack([row, label], axis=1).astype(np.float32),
        "label": label,
        "names": np.array(["A", "B", "C"]),
        "source": (row >= 120).astype(np.int8),
    }
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize("split", ["position", "recorder"])
def test_words_are_of_runs_from_their_own_part(tmp_path: Path, split: str) -> None:
    prepared = load(hands(tmp_path / "hands.npz"), split=split, clips=200, step_frames=1)
    assert prepared.meta["glosses"] == ["A", "B", "C"]
    assert any("Words are composed" in note for note in prepared.notes)
    rows: dict[str, set[int]] = {}
    for part in ("train", "val"):
        arrays = {
            name: prepared.arrays[f"{part}_{name}"] for name in ("start", "lengths", "labels", "counts")
        }
        frames = prepared.arrays[f"{part}_frames"].astype(np.float64)
        train = prepared.arrays["train_frames"].astype(np.float64)
        rows[part] = set()
        letters = np.unique(train[: int(prepared.arrays["train_lengths"].sum()), 1])
        for start, length, labels, count in zip(*arrays.values(), strict=True):
            clip = frames[start : start + length]
            spelled = np.searchsorted(letters, clip[:, 1] - 1e-3) + 1
            ends = np.append(np.flatnonzero(np.diff(spelled)), length - 1)
            assert spelled[ends].tolist() == labels[:count].tolist()
            runs = np.diff(np.append(-1, ends))
            assert runs.min() >= 6
            assert runs.max() <= 15
            rows[part].update(np.round(clip[:, 0], 3).tolist())
    assert rows["train"].isdisjoint(rows["val"])
    words = [tuple(labels) for labels in prepared.arrays["train_labels"].tolist()]
    assert len(set(words)) > 50
    same = load(hands(tmp_path / "hands.npz"), split=split, clips=200, step_frames=1)
    assert np.array_equal(same.arrays["train_frames"], prepared.arrays["train_frames"])


def test_one_recorders_hands_alone(tmp_path: Path) -> None:
    prepared = load(hands(tmp_path / "hands.npz"), recorder=1, clips=100, step_frames=1)
    both = load(hands(tmp_path / "hands.npz"), clips=100, step_frames=1)
    # Rows are numbered: the second recorder's 120 and on, 80 % of 40 for train in each take.
    seen = [
        len(np.unique(each.arrays["train_frames"][: each.arrays["train_lengths"].sum(), 0]))
        for each in (prepared, both)
    ]
    assert 80 < seen[0] <= 96 < seen[1] <= 192


def test_hands_that_are_broken(tmp_path: Path) -> None:
    holes = np.stack([np.arange(240.0), np.arange(240.0)], axis=1)
    holes[7] = np.nan
    prepared = load(hands(tmp_path / "holes.npz", keypoints=holes), clips=20)
    assert "holes.npz: 1 of 240 rows left out: a number in them is missing." in prepared.notes
    assert not any("replaced" in note for note in prepared.notes)
    assert np.isfinite(prepared.arrays["train_frames"]).all()
    label = np.tile(np.repeat(np.arange(3), 40), 2)
    far = np.where(np.arange(240) == 9, 3, label)
    for changes, data, words in [
        ({"names": None, "label": None}, {}, "but label, names is missing"),
        ({"label": far}, {}, "labels from 0 to 2 (its names), but row 9 has 3"),
        ({"label": label[1:]}, {}, "with a label a row, but got shapes (240, 2) and (239,)"),
        ({"label": label.astype(float)}, {}, "integers as label, but got float32 and float64"),
        ({"source": None}, {"split": "recorder"}, "letters for val (`data.split: recorder`)"),
        ({"label": np.arange(240) % 3}, {}, "each of 6 rows and more, but has 0"),
        ({}, {"recorder": 2}, "letters for train (`data.split: position`)"),
        ({}, {"split": "dev"}, "must be one of auto, position, recorder"),
        ({"names": np.array(["A", "B", "C"], dtype=object)}, {}, "cannot be read as an .npz file"),
    ]:
        with pytest.raises(UserError) as caught:
            load(hands(tmp_path / "hands.npz", **changes), **data)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "hands.npz").write_bytes(b"none")
    with pytest.raises(UserError, match=r"cannot be read as an \.npz file"):
        load(tmp_path / "hands.npz")


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/asl_letters is not here")
@pytest.mark.parametrize("recorder", [0, 1])
def test_letters_of_real_hands(recorder: int) -> None:
    prepared = load(REAL.resolve().parent, recorder=recorder, clips=50, step_frames=2)
    assert prepared.meta["glosses"] == list("ABCDEFGHIL")
    assert prepared.arrays["train_frames"].shape[1] == 42
    assert len(prepared.arrays["train_counts"]) == 50
    assert len(prepared.arrays["val_counts"]) == 10


def test_rows_of_short_takes_and_unknown_recorders_are_counted(tmp_path: Path) -> None:
    label = np.tile(np.repeat(np.arange(3), 40), 2)
    label[35:40] = 2
    source = np.repeat(np.array([0, 1], np.int8), 120)
    source[-40:] = 2
    path = hands(tmp_path / "hands.npz", label=label, source=source)
    prepared = load(path, split="recorder", clips=20)
    assert list(prepared.notes[:2]) == [
        "hands.npz: 5 of 240 rows left out: in a take, or its part of train or val, of less than 6 rows.",
        "hands.npz: 40 of 240 rows left out: `source` is neither 0 (train) nor 1 (val).",
    ]


def test_hidden_files_and_semicolons_change_nothing(tmp_path: Path) -> None:
    straight = load(corpus(tmp_path / "a"))
    path = corpus(tmp_path / "b")
    (place(path, "train", 0) / "._00000.jpg").write_bytes(b"\0\5\26\7")
    for part in GLOSSES:
        file = path / "label" / f"{part}.csv"
        file.write_text(file.read_text().replace(",", ";"))
    prepared = load(path)
    for name, array in straight.arrays.items():
        np.testing.assert_array_equal(array, prepared.arrays[name], err_msg=name)
    hands(tmp_path / "hands.npz")
    (tmp_path / "._hands.npz").write_bytes(b"\0\5\26\7")
    assert load(tmp_path, clips=20).meta["glosses"] == ["A", "B", "C"]
