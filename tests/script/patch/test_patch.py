"""The making of a patch: which file it edits, and how long it is compared. Nothing trains here."""

from __future__ import annotations

from pathlib import Path

import pytest
from parts.noop import synthetic

from sweeper.core.measurement import Measurement
from sweeper.judging import speed
from sweeper.judging.losses import LossAgreement, LossComparison
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.script.patch import patch
from sweeper.script.patch.edits import PatchedChange
from sweeper.script.patch.patch import Patch, make

MINUTE = 60.0
THREADS = PatchedChange(name="threads", value="one", comment="One thread.")


@pytest.fixture
def left_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that are left as the rounds begin. Each run before them takes a minute, and trains the same."""
    now_s, left_s = 0.0, []

    def measured(*_: object) -> Measurement:
        nonlocal now_s
        now_s += MINUTE
        return synthetic(1.0)

    class Baseline:
        def __init__(self, *_: object) -> None:
            measured()

        def compare(self, *_: object, **__: object) -> LossComparison:
            measured()
            return LossComparison(answer=LossAgreement.EQUAL)

    def compare(arms: object, seconds: float, *_: object) -> SpeedComparison:
        left_s.append(seconds)
        return SpeedComparison(answer=Speed.FASTER, ratio=1.5, low=1.4, high=1.6, before=(), after=())

    monkeypatch.setattr(patch, "Baseline", Baseline)
    monkeypatch.setattr(speed, "measure_version", measured)
    monkeypatch.setattr(speed, "compare", compare)
    return left_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, a package of two that run as modules, and a shell script."""
    for name in ("train.py", "pkg/train.py", "pkg/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import torch\n\nprint(torch)\n")
    (tmp_path / "run.sh").write_text("python train.py\n")
    return tmp_path


def made(folder: Path, *command: str) -> Patch:
    return make(command, folder, [THREADS], 3.0, lambda line: None)


def test_the_rounds_have_all_their_minutes(folder: Path, left_s: list[float]):
    assert made(folder, "python", "train.py").holds
    assert left_s == [3 * MINUTE]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("python train.py --lr 1", "train.py"),
        ("torchrun --nproc-per-node 2 ./train.py", "train.py"),
        ("python -m pkg.train --lr 1", "pkg/train.py"),
        ("python -m pkg", "pkg/__main__.py"),
    ],
)
@pytest.mark.usefixtures("left_s")
def test_settings_are_made_in_the_file_that_the_command_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, file: str
):
    monkeypatch.chdir("/")
    found = made(folder, *command.split())
    assert found.text.startswith(f"--- a/{file}\n")
    assert "+torch.set_num_threads(1)\n" in found.text


@pytest.mark.usefixtures("left_s")
def test_settings_have_no_place_if_the_command_names_no_file_of_python(folder: Path):
    found = made(folder, "bash", "run.sh")
    assert found.text == ""
    assert "was not found here; use `sweeper exec`" in found.left_out["threads"]
