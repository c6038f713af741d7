"""Checks that `pipelines.behaviour` tells of every mistake in one line, with its file and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines import behaviour
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError

Make = Callable[[Path], Any]


def text(root: Path, name: str, samples: int = 300, channels: int = 6) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(file, np.random.default_rng(len(name)).standard_normal((samples, channels)), fmt="%.3f")
    return file


def good(root: Path) -> Path:
    for kind in ("chew", "talk"):
        for number in range(2):
            text(root, f"a_data/{kind}/{kind}{'x' * number}.txt")
    return root


def events(root: Path, content: Any) -> None:
    good(root)
    (root / "events_config.json").write_text(content if isinstance(content, str) else json.dumps(content))


def one(**changes: Any) -> dict[str, Any]:
    entry = {"file": "chew.txt", "label": "chew", "event_starts_sec": [0], "event_duration_sec": 1.0}
    return {"files": [{**entry, **changes}]}


def changed(line: str, count: int = 30) -> Make:
    def make(root: Path) -> None:
        file = text(good(root), "a_data/chew/chew.txt")
        lines = file.read_text().splitlines()
        lines[10 : 10 + count] = [line] * count
        file.write_text("\n".join(lines))

    return make


def window(root: Path, name: str, x: Any) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(x, bytes):
        file.write_bytes(x)
    else:
        np.save(file, x)


def windows(root: Path, last: Any) -> None:
    for name in ("sit/a_1.npy", "sit/b_1.npy", "walk/a_1.npy"):
        window(root, name, np.zeros((3, 80)))
    window(root, "walk/z_1.npy", last)


def table(**changes: Any) -> Make:
    def make(root: Path) -> None:
        arrays = {
            "X": np.random.default_rng(0).standard_normal((20, 3, 80)),
            "y": np.arange(20) % 2,
            "split": np.array(["train"] * 15 + ["test"] * 5),
            **changes,
        }
        np.savez(root / "m.npz", **{name: array for name, array in arrays.items() if array is not None})

    return make


def nan_at(window: int) -> np.ndarray:
    x = np.zeros((20, 3, 80))
    x[window, 1, 5] = np.nan
    return x


MISTAKES: dict[str, tuple[Make, dict[str, Any], str]] = {
    "nothing": (lambda root: None, {}, "must hold text recordings (*.txt)"),
    "two tables": (lambda root: (table()(root), np.savez(root / "n.npz")), {}, "holds 2 .npz files"),
    "no word": (lambda root: text(root, "a_data/PPG_1.txt"), {}, "PPG_1.txt has no class"),
    "empty": (lambda root: text(good(root), "a_data/chew/0.txt", 0), {}, "0.txt must hold lines of numbers"),
    "all short": (
        good,
        {"window": 301},
        "must hold a recording with a labelled window. 4 of 4 recordings left out",
    ),
    "channels": (lambda root: text(good(root), "a_data/talk/z.txt", channels=5), {}, "z.txt has 5"),
    "too few": (changed("1 2 3"), {}, "chew.txt:11 must hold 6 finite numbers"),
    "words": (changed("a b c d e f"), {}, "chew.txt:11 must hold 6 finite numbers"),
    "nan": (changed("nan 1 2 3 4 5"), {}, "nor do 29 other lines"),
    "one class": (lambda root: [text(root, f"a_data/chew/{n}.txt") for n in ("a", "bb")], {}, "'chew' alone"),
    "one each": (
        lambda root: [text(root, f"a_data/{n}.txt") for n in ("chew", "talk")],
        {},
        "no class has two",
    ),
    "no events": (good, {"events": "mine.json"}, "`data.events` must name a JSON file"),
    "no json": (lambda root: events(root, "{"), {}, "must be JSON with a list of `files`"),
    "no files": (lambda root: events(root, {"file": []}), {}, "must be JSON with a list of `files`"),
    "no list": (lambda root: events(root, {"files": {}}), {}, "`files` is no list"),
    "no object": (lambda root: events(root, {"files": [3]}), {}, "entry 1 must be an object"),
    "no label": (lambda root: events(root, one(label=None)), {}, "entry 1: `label` must be a name"),
    "starts": (
        lambda root: events(root, one(event_starts_sec=[-1])),
        {},
        "`event_starts_sec` must be a list",
    ),
    "duration": (lambda root: events(root, one(event_duration_sec=None)), {}, "must be a number of seconds"),
    "total": (
        lambda root: events(root, one(total_duration_sec=0)),
        {},
        "`total_duration_sec` must be a number",
    ),
    "no file": (lambda root: events(root, one(file="x.txt")), {}, "names none that is there"),
    "overlap": (
        lambda root: events(root, {"files": one()["files"] + one(label="talk")["files"]}),
        {},
        "Events of two classes must not overlap",
    ),
    "twice": (
        lambda root: (events(root, one()), text(root, "b_data/chew/chew.txt")),
        {},
        "'chew.txt' is the name of 2 files",
    ),
    "not npy": (lambda root: windows(root, b"no npy"), {}, "z_1.npy cannot be read as .npy"),
    "shape": (lambda root: windows(root, np.zeros((3, 79))), {}, "in the shape of the first, (3, 80)"),
    "objects": (lambda root: windows(root, np.zeros((3, 80), "U1")), {}, "z_1.npy holds <U1"),
    "infinite": (lambda root: windows(root, np.full((3, 80), np.inf)), {}, "z_1.npy holds NaN or infinite"),
    "no folder": (lambda root: window(root, "a_1.npy", np.zeros((3, 80))), {}, "a_1.npy has no class"),
    "not npz": (lambda root: (root / "m.npz").write_bytes(b"PK"), {}, "m.npz cannot be read as .npz"),
    "no y": (table(y=None), {}, "must hold X and y, but y are missing"),
    "flat": (table(X=np.zeros((20, 80))), {}, "must be numbers [windows, channels, time]"),
    "length": (table(y=np.arange(19)), {}, "y in"),
    "float y": (table(y=np.zeros(20)), {}, "must be whole numbers or names of classes"),
    "nan in X": (table(X=nan_at(7)), {}, "NaN or infinite numbers in 1 windows, the first at 7"),
    "no train": (table(split=np.array(["a"] * 20)), {}, "nothing is left to train on"),
    "unseen": (table(y=np.repeat([0, 1, 2], [8, 7, 5])), {}, "'2' is only in what is held back"),
    "option": (good, {"windw": 3}, "Did you mean `window`"),
    "share": (good, {"overlap": 1.0}, "`0.0 <= data.overlap <= 0.99`"),
    "held": (good, {"val_fraction": 0.0}, "data.val_fraction <= 0.99` must hold"),
    "small": (good, {"window": 1}, "`data.window >= 2`"),
}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_a_mistake_in_the_data_is_one_line(tmp_path: Path, name: str) -> None:
    make, data, words = MISTAKES[name]
    make(tmp_path)
    with pytest.raises(UserError) as caught:
        behaviour.prepare({"path": str(tmp_path), "window": 100, **data})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_nothing_of_that(tmp_path: Path) -> None:
    file = text(tmp_path, "chew.txt")
    for path, words in ((tmp_path / "nowhere", "nowhere does not"), (file, "chew.txt is another file")):
        with pytest.raises(UserError, match=words):
            behaviour.prepare({"path": str(path)})
    with pytest.raises(UserError, match=r"data\.source"):
        behaviour.prepare({"source": "real"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"data": {"window": 60}}, "`data.window` is fixed when the data is prepared (40)"),
        ({"model": {"kind": "rnn"}}, "`model.kind` must be one of cnn, transformer, fusion"),
        ({"model": {"loss": "mse"}}, "`model.loss` must be one of focal, cross_entropy"),
        ({"model": {"hidden_size": 100}}, "multiple of 24, but got 100; the nearest is 96"),
        ({"model": {"kind": "cnn"}}, "windows of at least `model.n_fft` samples"),
        ({"model": {"kind": "cnn", "n_fft": 32}}, "but got a window of 40 and n_fft 32"),
        ({"model": {"dropout": 1.0}}, "`model.dropout < 1`"),
        ({"model": {"gamma": -1.0}}, "`model.gamma >= 0`"),
        ({"model": {"num_layers": 0}}, "`model.num_layers >= 1`"),
        ({"model": {"width": 8}}, "`model.width` is not an option"),
    ],
)
def test_a_mistake_in_a_trial_is_one_line(config: dict[str, Any], words: str) -> None:
    prepared = behaviour.prepare({"recordings": 4, "seconds": 30, "window": 40})
    with pytest.raises(UserError) as caught:
        behaviour.build(TrialConfig(**config), prepared)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
