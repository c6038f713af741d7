"""With persistence mode off, a GPU's driver ends with the last process: commands that start many keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType

import pytest

from sweeper.cli import judge, patch_script, tune, watch


class StoppedError(Exception):
    """Raised where a command begins to keep the GPUs awake."""


def stop(_: Sequence[str]) -> AbstractContextManager[None]:
    raise StoppedError


COMMANDS: dict[ModuleType, tuple[str, ...]] = {
    watch: ("watch", "--", "python", "train.py"),
    tune: ("tune", "--", "python", "train.py"),
    judge: ("judge", "--before", "python train.py", "--after", "python train.py"),
}


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_gpus_are_kept_awake_before_a_script_starts(
    module: ModuleType,
    in_process: Callable[..., CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('it has started')")
    monkeypatch.setattr(module, "awake", stop)
    done = in_process(*COMMANDS[module])
    assert (done.returncode, "StoppedError" in done.stderr) == (70, True)
    assert "it has started" not in done.stdout + done.stderr


def test_they_are_while_a_patch_is_judged(monkeypatch: pytest.MonkeyPatch):
    assert patch_script.awake is watch.awake is judge.awake is tune.awake
