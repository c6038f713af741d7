"""A few hundred fuzzed specifications, and what the long runs have found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import UserError
from sweeper.schema import SweepSpec, load
from sweeper.schema.reader import MAX_LINE
from sweeper.sweep.workloads import fingerprint

REPOSITORY = Path(__file__).parents[2]
COUNT = 300
TREE: dict[str, Any] = {
    "name": "x",
    "pipeline": "pipelines.tabular",
    "space": {"batch_size": {"type": "int", "low": 1, "high": 8}},
    "baseline": {},
}


@pytest.mark.parametrize("seed", [1])
def test_every_input_is_taken_or_refused_in_words(seed):
    script = REPOSITORY / "tests" / "chaos" / "chaos_fuzz.py"
    done = subprocess.run(
        [sys.executable, str(script), str(COUNT), str(seed)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["violations"] == []
    assert found["count"] == COUNT
    assert found["by_exit"].keys() == {"0", "2"}
    assert found["by_exit"]["0"] > COUNT / 50
    assert found["p99_s"] < 0.5
    assert found["max_rss_mb"] < 150


def test_a_long_key_and_a_long_override_are_shown_in_part(tmp_path):
    (tmp_path / "a.yaml").write_text(json.dumps({**TREE, "y" * 1000: 1}))
    with pytest.raises(UserError) as caught:
        load(tmp_path / "a.yaml", ["measure.repeats=" + "z" * 100_000])
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) < MAX_LINE + len(str(tmp_path)) + 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline": "p." + "q" * 300}, "`pipeline` must name a module"),
        ({"data": {"path": "~nobody-at-all/x"}}, "`data.path` must exist"),
        ({"data": {"path": "r" * 5000}}, "`data.path` must exist"),
    ],
)
def test_names_that_can_be_no_files_are_not_there(tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text("")
    with pytest.raises(UserError, match=message):
        fingerprint(SweepSpec.from_dict({**TREE, **changes}), "a device")


@pytest.mark.parametrize("name", ["/dev/zero", "folder", "t" * 300])
def test_a_template_must_be_a_file_that_ends(tmp_path, name):
    (tmp_path / "folder").mkdir()
    tree = {key: value for key, value in TREE.items() if key != "pipeline"}
    spec = SweepSpec.from_dict(
        {
            **tree,
            "command": ["python", "{batch_size}"],
            "baseline": {"batch_size": 1},
            "script": {"files": {"a": {"template": name}}},
        }
    )
    with pytest.raises(UserError, match="a template that can be read"):
        spec.script_in(tmp_path)


def test_a_command_may_be_longer_than_a_file_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = {key: value for key, value in TREE.items() if key != "pipeline"}
    command = ["python", "-c", "print({batch_size}) # " + "u" * 5000]
    spec = SweepSpec.from_dict({**tree, "command": command, "baseline": {"batch_size": 1}})
    assert fingerprint(spec, "a device")["command"] == command
