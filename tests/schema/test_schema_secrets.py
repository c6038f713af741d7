"""A secret in a specification is refused with place and remedy, and never shown; pass_env is names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import UserError
from sweeper.schema import SweepSpec, load
from sweeper.system.environment import secrets

CANARY = "canaryPass77"
URL = f"postgresql://me:{CANARY}@db/x"
TOKEN = "ghp_" + "c4nA" * 9
SHELL = "of-this-shell-99"

TREE: dict[str, Any] = {
    "name": "s",
    "pipeline": "p",
    "space": {"batch_size": {"type": "int", "low": 1, "high": 8}},
    "baseline": {"batch_size": 1},
}
COMMAND: dict[str, Any] = {
    "name": "s",
    "command": ["python", "t.py", "--bs", "{bs}"],
    "space": {"bs": {"type": "int", "low": 1, "high": 8}},
    "baseline": {"bs": 1},
}


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({**TREE, "data": {"path": URL}}, "data.path"),
        ({**TREE, "data": {"urls": ["x", TOKEN]}}, "data.urls[1]"),
        ({**TREE, "fix": {"model.hub": TOKEN}}, "fix.model.hub"),
        ({**TREE, "baseline": {"batch_size": 1, "model.hub": TOKEN}}, "baseline.model.hub"),
        ({**TREE, "also_try": [{"model.hub": TOKEN}]}, "also_try[0].model.hub"),
        (
            {**TREE, "space": {"model.hub": {"type": "categorical", "choices": ["a", TOKEN]}}},
            "space.model.hub.choices[1]",
        ),
        ({**COMMAND, "command": [*COMMAND["command"], f"--db={URL}"]}, "command[4]"),
        ({**COMMAND, "script": {"env": {"DB": URL}}}, "script.env.DB"),
        ({**COMMAND, "script": {"env": {"WANDB_API_KEY": CANARY}}}, "script.env.WANDB_API_KEY"),
        ({**COMMAND, "script": {"files": {"c.ini": f"url={URL}"}}}, "script.files.c.ini"),
        ({**TREE, "execution": {"gpus": [TOKEN]}}, "execution.gpus[0]"),
        ({**TREE, "data": {"password": CANARY}}, "data.password"),
        ({**TREE, "baseline": {"batch_size": 1, "model.api_key": CANARY}}, "baseline.model.api_key"),
        ({**COMMAND, "command": [*COMMAND["command"], f"--key=x{SHELL}"]}, "command[4]"),
        # Where other rules are broken as well, these do not show it either.
        ({**TREE, "execution": {"pass_env": [f"MY_TOKEN={SHELL}"]}}, "execution.pass_env[0]"),
        ({**TREE, "data": {"path": {"x": f"/x/{SHELL}"}}}, "data.path.x"),
        ({**TREE, "name": URL}, "name"),
    ],
)
def test_a_secret_is_refused_and_not_shown(tree: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", SHELL)
    with pytest.raises(UserError) as raised:
        SweepSpec.from_dict(tree, secrets(os.environ))
    message = str(raised.value)
    assert f"`{place}` must" in message
    assert place == "name" or "`execution.pass_env: [NAME]`" in message
    assert "***" in message
    assert CANARY not in message
    assert TOKEN not in message
    assert SHELL not in message


def test_of_what_is_stored_todays_shell_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_MODE", "synthetic")
    tree = {**TREE, "data": {"source": "synthetic"}}
    assert SweepSpec.from_dict(tree).data == {"source": "synthetic"}
    (tmp_path / "s.yaml").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="the value of a secret environment variable"):
        load(tmp_path / "s.yaml")


def test_a_template_is_looked_at(tmp_path: Path):
    (tmp_path / "conf.in").write_text(f"size: {{bs}}\nkey: {TOKEN}\n")
    spec = SweepSpec.from_dict({**COMMAND, "script": {"files": {"c.yaml": {"template": "conf.in"}}}})
    with pytest.raises(UserError, match=r"`script.files` must hold no secret.*a GitHub token") as raised:
        spec.script_in(tmp_path)
    assert TOKEN not in str(raised.value)


def test_a_key_of_a_mapping_is_looked_at(tmp_path: Path):
    with pytest.raises(UserError, match="A key must hold no secret, but got a GitHub token") as raised:
        SweepSpec.from_dict({**TREE, "data": {TOKEN: 1}})
    assert TOKEN not in str(raised.value)


def test_an_override_is_not_shown(tmp_path: Path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "{name: s, pipeline: p, space: {batch_size: {type: int, low: 1, high: 8}}, baseline: {batch_size: 1}}"
    )
    with pytest.raises(UserError, match=r"`data.path` must hold no secret") as raised:
        load(path, [f"data.path={URL}"])
    assert CANARY not in str(raised.value)
    with pytest.raises(UserError, match=r"must be written `key=value`, but got '\*\*\*'") as raised:
        load(path, [TOKEN])
    assert TOKEN not in str(raised.value)


def test_what_is_no_secret_stays():
    tree = {
        **COMMAND,
        "script": {"env": {"API_KEY": "none", "AUTH_MODE": "{bs}-and-more", "HOST": "long-enough"}},
    }
    assert SweepSpec.from_dict(tree).script.env["AUTH_MODE"] == "{bs}-and-more"
    SweepSpec.from_dict({**TREE, "data": {"sort_key": "timestamp_ms", "pad_token": "<padding>"}})
    SweepSpec.from_dict({**TREE, "data": {"path": "s3://bucket/x@y", "host": "http://h:80/"}})


def test_pass_env_is_a_list_of_names_and_globs():
    def given(value: Any) -> SweepSpec:
        return SweepSpec.from_dict({**TREE, "execution": {"pass_env": value}})

    spec = given(["AWS_PROFILE", "MYLAB_*", "_x1"])
    assert spec.execution.pass_env == ("AWS_PROFILE", "MYLAB_*", "_x1")
    assert SweepSpec.from_dict(spec.to_dict()).execution.pass_env == spec.execution.pass_env
    for wrong in ("AWS_PROFILE", ["A B"], ["A=b"], ["*"], [1], {"A": "b"}):
        with pytest.raises(UserError, match=r"`execution.pass_env.*must be"):
            given(wrong)
