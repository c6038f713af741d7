"""`sweeper spaces`, and a shipped space named where a file is expected; the folder is empty."""

from __future__ import annotations

import json
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SPACES = sorted(path.stem for path in (REPOSITORY / "search_spaces").glob("*.yaml"))


def test_each_is_listed_with_what_it_is_for(in_process):
    done = in_process("spaces")
    assert done.returncode == 0
    *lines, hint = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == SPACES
    assert all(len(line.split()) > 5 for line in lines)
    assert "sweeper run NAME" in hint


def test_for_programs_with_the_file_that_would_be_run(in_process):
    Path("quick.yaml").touch()
    done = in_process("spaces", "--json")
    files = {each["name"]: each["file"] for each in json.loads(done.stdout)}
    assert sorted(files) == SPACES
    assert files.pop("quick") == "quick.yaml"
    assert all(Path(path) == REPOSITORY / f"search_spaces/{name}.yaml" for name, path in files.items())


def test_a_shipped_space_and_its_pipeline_are_found_by_name(in_process):
    done = in_process("check", "a10")
    assert done.returncode == 0, done.stderr
    assert "a10.yaml is valid: stocks-a10, pipelines.stocks" in done.stdout
    done = in_process("run", "a11")
    assert done.returncode == 2
    assert "Did you mean `a10`?" in done.stderr
    assert list(Path().iterdir()) == []
