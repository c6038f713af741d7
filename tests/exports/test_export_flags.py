"""A configuration as flags, by one's own names where there are some."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
from exports import A10, export_of

from sweeper.errors import UserError
from sweeper.exports import Options, read_map, render_export


def words(settings: dict[str, Any], own: dict[str, Any] | None = None) -> list[str]:
    return shlex.split(render_export(export_of(settings, device=A10), "args", Options(flags=own or {})))


def test_every_setting_that_has_an_effect_has_a_flag():
    settings = {
        "batch_size": 512,
        "loader.kind": "workers",
        "loader.num_workers": 8,
        "loader.pin_memory": True,
        "precision.amp": "bf16",
        "precision.tf32": True,
        "optimizer.lr_rule": "sqrt",
        "optimizer.lr_batch_size": 128,
        "optimizer.clip_norm": 0.5,
        "device.count": 2,
        "device.cpu_threads": 3,
        "model.hidden_size": 64,
    }
    assert " ".join(words(settings)) == (
        "--batch-size 512 --accumulate-steps 1 --seed 0 --loader workers --num-workers 8 --prefetch-factor 2 "
        "--pin-memory --persistent-workers --drop-last --amp bf16 --tf32 --compile eager --optimizer adamw "
        "--lr 0.00282843 --weight-decay 0.0 --fused --clip-norm 0.5 --memory-format contiguous "
        "--num-devices 2 --cpu-threads 3 --hidden-size 64"
    )


def test_what_has_no_effect_has_none():
    found = words(
        {"loader.kind": "resident", "loader.num_workers": 8, "model.depth": None, "model.bias": False}
    )
    for flag in (
        "workers",
        "prefetch",
        "pin",
        "persistent",
        "depth",
        "bias",
        "clip",
        "buckets",
        "malloc",
        "rule",
    ):
        assert not any(flag in word for word in found), flag


def test_two_of_one_name_are_told_apart():
    found = words({"model.seed": 3, "data.name": "x", "model.name": "y"})
    assert found[found.index("--model-seed") + 1] == "3"
    assert found[found.index("--seed") + 1] == "0"
    assert (found[found.index("--name") + 1], found[found.index("--data-name") + 1]) == ("y", "x")


@pytest.mark.parametrize("text", ["a b", "$(id)", "`id`", "'", '"', "x\ny", "--rm", "-x", "é", ""])
def test_any_text_arrives_as_it_is(text):
    parser = argparse.ArgumentParser()
    parser.add_argument("--name")
    asked, _ = parser.parse_known_args(words({"model.name": text}))
    assert asked.name == text


MAP = """\
batch_size: --bs
precision.amp: "--amp={value}"
loader.num_workers: null
compile.mode: {default: --compile, eager: ""}
loader.drop_last: -x --drop
optimizer.name: "--set 'optim name={value}'"
device.malloc: --malloc
precision.tf32: {"true": --tf32=1, "false": --tf32=0}
"""


def test_ones_own_flags_take_their_place(tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(MAP)
    own = read_map(path)
    base = {"loader.kind": "rows", "loader.num_workers": 3, "precision.amp": "bf16"}
    found = words({**base, "compile.mode": "default"}, own)
    assert found[:2] == ["--bs", "64"]
    assert "--amp=bf16" in found
    assert "--amp" not in found
    assert not any("num-workers" in word for word in found)
    assert "--compile" in found
    assert "default" not in found
    assert "optim name=adamw" in found
    assert "--tf32=0" in words({**base, "precision.tf32": False}, own)
    # torch as it comes needs no flag, even where a map has words for the other values alone.
    assert not any("tf32" in word for word in found)
    assert found[found.index("-x") + 1] == "--drop"
    assert found[found.index("--malloc") + 1] == "retain"
    left = [word for word in words(base) if word not in ("--compile", "eager")]
    assert words(base, {"compile.mode": {"eager": ""}}) == left
    assert "--drop" not in words({**base, "loader.drop_last": False}, own)
    # Of workers alone; there are none.
    assert "--bs" in words({"loader.kind": "resident"}, own)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (
            {"batchsize": "--bs"},
            "must name settings of the trial, but got 'batchsize'. Did you mean `batch_size`?",
        ),
        ({"model.hiden": "--h"}, "but got 'model.hiden'. Did you mean `model.hidden`?"),
        (
            {"compile.mode": {"default": "--c"}},
            "a flag for each value of `compile.mode`, but has none for 'eager'",
        ),
        ({"batch_size": "--bs 'x"}, "flags in shell syntax"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(own, says):
    with pytest.raises(UserError) as caught:
        words({"model.hidden": 3}, own)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["[a]", "batch_size: 3", "batch_size: [--bs]", "batch_size: {x: 3}"])
def test_a_file_that_is_no_map_is_refused(tmp_path, text):
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="must be a"):
        read_map(path)


SCRIPT = {
    "command": ["python", "my train.py", "$(id)"],
    "changes": {},
    "env": {"NAME": "it's `id`"},
    "files": {"a.yaml": "x: 1\nrm: 2\n"},
    "params": {},
}


def test_a_scripts_command_line_writes_its_files_and_runs(tmp_path):
    command = [sys.executable, "my train.py", "$(id)"]
    program = "import os, sys; print(os.environ['NAME'], sys.argv[1:], open('conf/a.yaml').read())"
    files = {"my train.py": program, "conf/a.yaml": "x: $HOME `id`\nSWEEPER\n", "b\nrm -rf": "y"}
    value = {**export_of({}), **SCRIPT, "command": command, "files": files}
    done = subprocess.run(
        ["sh"], input=render_export(value, "args"), cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("it's `id` ['$(id)'] x: $HOME `id`\nSWEEPER\n\n", "")
    made = {str(each.relative_to(tmp_path)): each for each in tmp_path.rglob("*") if each.is_file()}
    assert {name: each.read_text() for name, each in made.items()} == files


def test_a_file_of_the_users_is_kept_and_nothing_runs(tmp_path):
    (tmp_path / "a.yaml").write_text("mine")
    value = {**export_of({}), **SCRIPT, "command": ["touch", "ran"]}
    done = subprocess.run(
        ["sh"], input=render_export(value, "args"), cwd=tmp_path, capture_output=True, text=True
    )
    assert "a.yaml" in done.stderr
    assert (tmp_path / "a.yaml").read_text() == "mine"
    assert not (tmp_path / "ran").exists()


def test_a_scripts_command_line_is_what_ran():
    value = {**export_of({}), **SCRIPT, "files": {}}
    assert shlex.split(render_export(value, "args")) == ["NAME=it's `id`", *SCRIPT["command"]]
    with pytest.raises(UserError, match="`--map` is for the sweep of a pipeline"):
        render_export(value, "args", Options(flags={"batch_size": "--bs"}))
    with pytest.raises(UserError, match=r"`--format python` is for pipelines"):
        render_export(value, "python")


@pytest.mark.parametrize("before", [[], ["env", "A=1", "PYTHONPATH=/mine"]], ids=["shell", "env"])
def test_a_tunes_command_line_makes_its_changes(tmp_path, before: list[str]):
    program = (
        "import os, sys, torch; print('_sweeper' in sys.modules, os.environ['PYTHONPATH'].endswith(':/mine'))"
    )
    value = {**export_of({}), **SCRIPT, "command": [*before, sys.executable, "-c", program], "files": {}}
    value["changes"] = {"optimizer": "fused"}
    done = subprocess.run(
        ["sh"],
        input=render_export(value, "args"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "/replaced" if before else "/mine"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True True\n", done.stderr


OTHERS: dict[str, Any] = {
    "loader.kind": "workers",
    "loader.num_workers": 2,
    "loader.in_order": False,
    "loader.start_method": "spawn",
    "precision.amp": "fp8",
    "compile.mode": "default",
    "compile.dynamic": "auto",
    "compile.regional": True,
    "activation_checkpointing": True,
    "device.count": 2,
    "device.expandable_segments": True,
    "device.numa": "near",
    "ddp.static_graph": True,
    "ddp.gradient_as_bucket_view": True,
    "ddp.broadcast_buffers": False,
}
"""The less common parameters (docs/pipelines.md), and what they need to have an effect."""


def test_less_common_parameters_have_flags_where_they_are_asked_for():
    line = f" {' '.join(words(OTHERS))} "
    asked = (
        *("--no-in-order", "--start-method spawn", "--amp fp8", "--compile default", "--dynamic auto"),
        *("--regional", "--activation-checkpointing", "--expandable-segments", "--numa near"),
        *("--static-graph", "--gradient-as-bucket-view", "--no-broadcast-buffers"),
    )
    plain = f" {' '.join(words({name: OTHERS[name] for name in ('loader.kind', 'loader.num_workers')}))} "
    for flag in asked:
        assert f" {flag} " in line, flag
        assert f" {flag} " not in plain, flag
    for flag in ("in-order", "buffers", "tf32"):
        assert flag not in plain


def test_less_common_parameters_have_lines():
    text = render_export(export_of(OTHERS, device=A10), "python")
    compile(text, "lines", "exec")
    for line in (
        *("    in_order=False,\n", '    multiprocessing_context="spawn",\n', "convert_to_float8_training(\n"),
        *("    block.compile(dynamic=None)\n", "    block.forward = functools.partial(\n"),
        'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")\n',
    ):
        assert line in text, line
    said = " ".join(line.removeprefix("# ") for line in text.splitlines())
    assert "numactl --cpunodebind=NODE" in said
    options = "static_graph=True, gradient_as_bucket_view=True, broadcast_buffers=False"
    assert f"DistributedDataParallel(model, {options})" in said
