"""Benchmarks that README.md, a page of docs or the Makefile name run anywhere: here on a made-up device."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "Makefile", *sorted((REPOSITORY / "docs").glob("*.md"))]
BENCHMARK = re.compile(r"(?<=benchmarks/)(\w+)\.py((?: +[\w-]+)*)")
DEVICE = "Made-up 9000, 3 cores"


def benchmarks() -> list[list[str]]:
    """The documented commands, as the words behind `benchmarks/`, without those that have their own tests."""
    found: list[list[str]] = []
    for page in PAGES:
        for name, words in BENCHMARK.findall(page.read_text(encoding="utf-8")):
            # A word in capitals stands for any part, or for the value of an option.
            plain = re.sub(r"--[\w-]+ +[A-Z]+\b", "", words)
            command = [name, *(word for word in plain.split() if not word.isupper())]
            if name not in ("gpu", "printed", "tournament") and command not in found:
                found.append(command)
    return found


def run(folder: Path, commands: list[list[str]], *kept: str) -> None:
    """Runs them in a copy of this repository, on a device that nothing was recorded or measured on."""
    for name in ("benchmarks", "pipelines", "search_spaces", "sweeper", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    recorded = sorted(folder.glob("benchmarks/surfaces/*/*"))
    results = {path: path.read_bytes() for path in folder.glob("benchmarks/results/*/*")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("documented.py"), folder, DEVICE, *kept],
        input="".join(json.dumps(command) + "\n" for command in commands),
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    ran = [json.loads(line)["ran"] for line in done.stdout.splitlines() if line.startswith('{"ran"')]
    assert done.returncode == 0, f"{commands[len(ran)]}: {done.stderr}"
    assert ran == commands
    # Nobody's recordings or results but this device's are touched.
    assert sorted(folder.glob("benchmarks/surfaces/*/*")) == recorded
    assert {path: path.read_bytes() for path in results} == results
    rows = json.loads((folder / "benchmarks/results/made-up-9000-3-cores/search.json").read_text())
    assert {row["device"] for row in rows} == {recorded[0].parent.name}


@pytest.mark.slow
def test_what_replays_recordings_needs_none_of_this_device(tmp_path):
    commands = [command for command in benchmarks() if command[0] in ("search", "confirm")]
    assert ["search", "bars"] in commands
    run(tmp_path, commands, "confirm.recorded")


@pytest.mark.soak
def test_documented_benchmarks_run_on_any_device(tmp_path):
    commands = benchmarks()
    assert ["chaos", "figures"] in commands
    run(tmp_path, commands, "search.bars", "search.resume", "confirm.recorded")


def test_an_unknown_part_of_a_benchmark_is_one_line():
    done = subprocess.run(
        [sys.executable, REPOSITORY / "benchmarks/foreign.py", "nothing"],
        cwd=REPOSITORY,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert "a part must be one of" in done.stderr
    assert done.stderr.count("\n") == 1
