"""Five scripts in the styles of the wild, as a person sweeps them: check, run, export, run the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import QUICK, REPOSITORY, SIZES, SPACES, WILD, YAML


@pytest.fixture
def wild(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `sweeper` runs in, with the scripts in it; to be named before that fixture."""
    shutil.copytree(WILD, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.yaml.in").write_text(YAML)
    # `python` is the one of these tests.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    return tmp_path


def write(name: str, **changes: Any) -> None:
    Path(f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **SPACES[name], **QUICK, **changes}))


# Half a minute each: one of them for `make check`.
OFTEN = ("with_argparse",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.soak) for name in SPACES]
)
def test_a_script_is_swept_confirmed_and_exported(wild: Path, sweeper, name: str):
    write(name)
    ran = sweeper("run", f"{name}.yaml", timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = json.loads(sweeper("show", name, "--json").stdout)
    searched = [each for each in shown["trials"] if each["stage"] not in ("baseline", "reference")]
    assert len(searched) == 3 or "exhausted" in ran.stdout
    assert {each["outcome"] for each in shown["trials"]} == {"measured"}
    assert shown["winner"]["ratio_low"] > 1
    source = "the meter" if "NO_METER" not in str(SPACES[name]) else "the output"
    assert all(each["reported_by"].startswith(source) for each in shown["trials"])
    assert ("the loss was not compared" in ran.stdout.lower()) == ("constraints" not in SPACES[name])

    line = sweeper("export", name, "--format", "args").stdout.splitlines()[-1]
    Path("config.yaml").write_text("train: {batch_size: 64, epochs: 1}\ndata: {samples: 64}\n")
    # The exported command runs; without a sweep its meter is silent, and nobody stops it.
    with subprocess.Popen(
        ["sh", "-c", f"exec {line}" if line.startswith("python") else f"exec env {line}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(3)]
        process.kill()
    assert any("loss" in text.lower() or "损失" in text or "Epoch" in text for text in first), first


@pytest.mark.slow
def test_deep_check_shows_what_was_understood(wild: Path, sweeper):
    write("with_overrides", script={"env": {"NO_METER": "1"}})
    done = sweeper("check", "with_overrides.yaml", "--deep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "milliseconds per step" in done.stdout
    assert "ms/batch" in done.stdout
    assert "Each step counts as 16 samples" in done.stdout


@pytest.mark.slow
def test_deep_check_of_a_silent_script_says_so(wild: Path, sweeper):
    Path("silent.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "silent",
                "command": ["python", "evil.py", "nothing", "{batch_size}"],
                "space": {"batch_size": SIZES},
                "baseline": {"batch_size": 16},
            }
        )
    )
    done = sweeper("check", "silent.yaml", "--deep")
    assert done.returncode == 1
    assert "I have trained nothing." in done.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {"batch_sise": SIZES}}, "`batch_sise` is not used: it must appear in the command"),
        ({"baseline": {}}, "needs a value in `baseline`"),
        ({"pipeline": "pipelines.stocks"}, "Remove one"),
        ({"command": "python train.py"}, "must be a list"),
        ({"script": {"patterns": ["("]}}, "regular expression"),
        ({"script": {"patterns": [r"(?P<speed>\d+)"]}}, "groups named after"),
        ({"script": {"files": {"../x": "a"}}}, "below the script's working directory"),
        ({"script": {"stop": "never"}}, "script.stop"),
    ],
)
def test_mistakes_are_told_with_their_place(wild: Path, in_process, changes: dict[str, Any], words: str):
    write("with_overrides", **changes)
    done = in_process("check", "with_overrides.yaml")
    assert done.returncode == 2
    assert words in done.stderr, done.stderr
    assert "with_overrides.yaml:" in done.stderr


@pytest.mark.slow
def test_an_exported_command_is_trained_as_it_won(wild: Path, sweeper):
    command = ["python", "-c", "import os; print(open('c.yaml').read(), os.environ['OWN'])"]
    best = {
        "schema": 3,
        "command": command,
        "changes": {},
        "env": {"OWN": "3"},
        "files": {"c.yaml": "size: 64"},
    }
    best |= {"params": {}, "measurement": {}, "conditions": {}, "provenance": {}}
    Path("best.yaml").write_text(yaml.safe_dump(best))
    done = sweeper("train", "best.yaml")
    assert done.returncode == 0, done.stderr
    assert "size: 64 3" in done.stdout
    Path("c.yaml").write_text("mine")
    refused = sweeper("train", "best.yaml")
    assert (refused.returncode, Path("c.yaml").read_text()) == (2, "mine")
    assert "--force overwrites it" in refused.stderr
    assert sweeper("train", "best.yaml", "--force").returncode == 0
    assert sweeper("train", "config.yaml.in").returncode == 2
    write("in_chinese")
    space = sweeper("train", "in_chinese.yaml")
    assert (space.returncode, "`sweeper export NAME --out FILE`" in space.stderr) == (2, True)
