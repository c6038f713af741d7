"""Each format reads back, whatever is in it; what reads is an export and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from exports import A10, export_of

from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.exports import SCHEMA, Options, read, render_export
from sweeper.exports.python_lines import YOURS

HOSTILE = "$(touch /tmp/x) `id` ; rm -rf '\"\\ #%\n!& é"
CONFIGS: list[dict[str, Any]] = [
    {},
    {"batch_size": 512, "precision.amp": "bf16", "optimizer.lr": 3e-5, "optimizer.lr_rule": "sqrt"},
    {"loader.kind": "workers", "loader.num_workers": 8, "model.name": HOSTILE, "model.depth": None},
]


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize("settings", CONFIGS, ids=["default", "half", "hostile"])
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_is_read_back_is_the_same_configuration(tmp_path, form, settings):
    value = export_of(settings, device=A10)
    path = written(tmp_path / f"best.{form}", render_export(value, form))
    found = read(path)
    assert found == json.loads(json.dumps(value))
    assert decode(TrialConfig, found["config"]).key() == TrialConfig().replace(settings).key()


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_long_file_of_a_script_is_read_back(tmp_path, form):
    script = {"command": ["python", "train.py"], "changes": {}, "env": {}, "params": {}}
    files = {"config.yaml": "key: value\n" * 30_000}
    subject = ("pipeline", "data", "config")
    value = {name: each for name, each in export_of({}).items() if name not in subject}
    value |= {**script, "files": files}
    assert read(written(tmp_path / f"best.{form}", render_export(value, form)))["files"] == files


def test_the_header_says_what_it_is_and_is_all_comments():
    value = export_of({"batch_size": 512}, about={"device": "A10\nschema: 9", "synthetic": True})
    value["warnings"] += ["one\nschema: 8"]
    header = render_export(value, "yaml").partition("schema: 3\n")[0].splitlines()
    assert all(line.startswith("# ") for line in header)
    assert header[1] == "# Written by:  sweeper export toy --trial 1"
    assert header[2] == "# Promised:    1,000 samples/s, 1e+03 s per epoch, on A10 schema: 9"
    assert header[3].startswith("# Warning:     Measured on synthetic data")
    assert "sweeper train" in header[-1]
    assert yaml.safe_load(render_export(value, "yaml"))["schema"] == SCHEMA


def test_an_export_of_the_first_schema_is_read(tmp_path):
    value = export_of({"batch_size": 512})
    old = {**value, "schema": 1, "measured": {"throughput": 1.0}, "holds_for": {"device": "none"}}
    assert read(written(tmp_path / "old.json", old))["config"]["batch_size"] == 512


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 4}, "an export must have schema 3 or older, but"),
        ({"schema": 0}, "has no `schema`"),
        ({"schema": True}, "has no `schema`"),
        ({"schema": None}, "has no `schema`"),
        ({"config": None}, "has no `config`"),
        ({"measurement": []}, "has no `measurement`"),
        ({"pipeline": 3}, "has no `pipeline`"),
        ({"command": ["python"]}, "has no `changes`"),
        ({"config": {"batch_size": "many"}}, "`config`: `batch_size` must be int, but got 'many'"),
        ({"config": {"batch_size": 0}}, "`batch_size >= 1` must hold, but got 0"),
        (
            {"config": {"batchsize": 3}},
            "`config.batchsize` must be a field of a trial. Did you mean `batch_size`?",
        ),
        ({"config": {"loader": {"workers": 3}}}, "`config.loader.workers` must be a field of a trial."),
    ],
)
def test_what_is_no_export_is_refused_in_one_line(tmp_path, changes, says):
    path = written(tmp_path / "best.json", {**export_of({}), **changes})
    with pytest.raises(UserError) as caught:
        read(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "3", "space: {}", "schema: 2"])
def test_other_files_are_no_exports(tmp_path, text):
    with pytest.raises(UserError, match="one that `sweeper export` wrote"):
        read(written(tmp_path / "x.yaml", text))


def test_unknown_formats_are_refused():
    with pytest.raises(UserError, match=r"Did you mean `json`\?"):
        render_export({}, "jsn")


PASTED = [
    {"compile.mode": "graph", "optimizer.name": name, "accumulate_steps": count, "precision.amp": amp}
    for name, count, amp in (("adamw", 1, "fp32"), ("sgd", 2, "fp16"))
] + [
    {"loader.kind": "stream", "device.count": 4, "loader.buckets": 3, "device.memory_fraction": 0.5},
    {"model.name": HOSTILE, "data.limit": None, "loader.kind": "workers", "loader.num_workers": 3},
]


@pytest.mark.parametrize("settings", PASTED, ids=["graph", "graph of two", "stream", "hostile"])
def test_lines_for_a_gpu_are_python(settings):
    value = export_of(settings, device=A10, about={"device": "A10\nimport os"})
    text = render_export(value, "python")
    compile(text, "lines", "exec")
    assert "\nimport os\nimport random" in text
    assert text.count("import os") == 2
    if "model.name" in settings:
        assert repr(HOSTILE) in text


def test_each_rank_has_its_own_gpu():
    text = render_export(export_of({"device.count": 4, "device.cpu_threads": 2}, device=A10), "python")
    assert text.index("import os") < text.index(
        'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
    )
    assert text.index("torch.cuda.set_device(device)") < text.index('init_process_group("nccl")')
    alone = render_export(export_of({}, device=A10), "python")
    assert 'device = torch.device("cuda")\n' in alone
    assert "init_process_group" not in alone


def test_a_captured_step_is_one_that_can_be_captured():
    text = render_export(export_of({"compile.mode": "graph"}, device=A10), "python")
    assert "lr=torch.tensor(0.001, device=device)" in text
    assert "capturable=True" in text
    assert "graph.replay()" in text
    assert "loss = captured_step(batch)" in text


def test_lines_have_their_reasons():
    value = export_of({"batch_size": 512, "optimizer.lr_rule": "sqrt", "optimizer.lr_batch_size": 128})
    text = render_export(value, "python", Options(reasons={"batch_size": "256 instead costs 12%"}))
    assert "# batch_size 512: samples per step; 256 instead costs 12%.\n" in text
    assert "# optimizer.lr 0.002: 0.001 at a batch of 128, scaled to 512 by the sqrt rule.\n" in text


def test_what_had_no_effect_is_off_where_it_is_pasted():
    note = {"precision.tf32": "without effect: no GPU", "compile.mode": "eager: recurrent layers"}
    value = export_of({"precision.tf32": True, "compile.mode": "default"}, effective=note)
    assert "tf32" not in render_export(value, "args")
    assert "--compile eager" in render_export(value, "args")
    text = render_export(value, "python")
    assert "# compile.mode eager: recurrent layers.\n" in text
    assert "compiled = model\n" in text


@pytest.mark.parametrize(
    ("settings", "note", "absent"),
    [
        ({"activation_checkpointing": True}, "false: no block of the model is repeated", "BLOCKS"),
        (
            {"compile.regional": True, "compile.mode": "default"},
            "false: no block of the model is repeated",
            "BLOCKS",
        ),
        ({"memory_format": "channels_last"}, "contiguous: required rank 4 tensor", "channels_last"),
        ({"precision.amp": "fp8"}, "bf16: no linear layer has such sizes", "float8"),
        ({"precision.tf32": True}, "refused by the device: not here", "tf32"),
        ({"device.malloc": "retain"}, "default: glibc only", "mallopt"),
    ],
)
def test_what_the_trial_refused_is_not_pasted(settings: dict[str, Any], note: str, absent: str):
    name = next(iter(settings))
    refused = export_of(settings, device=A10, effective={name: note})
    asked = export_of(settings, device=A10)
    assert absent in render_export(asked, "python")
    assert absent not in render_export(refused, "python")
    # No script has a flag for the C library.
    assert (render_export(refused, "args") == render_export(asked, "args")) == (name == "device.malloc")


def test_what_ran_in_another_way_is_pasted_as_asked():
    note = {"compile.mode": "max-autotune in 3 pieces: recurrent or dynamic parts run eagerly"}
    text = render_export(export_of({"compile.mode": "max-autotune"}, effective=note), "python")
    assert 'mode="max-autotune"' in text
    assert "search; max-autotune in 3 pieces" in text.replace("\n# ", " ")


@pytest.mark.parametrize(
    "settings", [{"activation_checkpointing": True}, {"compile.regional": True, "compile.mode": "default"}]
)
def test_the_layers_that_a_model_repeats_are_the_users_to_name(settings: dict[str, Any]):
    text = render_export(export_of(settings), "python")
    head, _, rest = text.partition("\n\n")
    assert "`BLOCKS` (the list of layers that it repeats)" in head.replace("\n# ", " ")
    assert f"{YOURS}\n# `BLOCKS` goes here, too.\n" in rest
    assert "for block in BLOCKS:\n" in rest
    assert "BLOCKS" not in render_export(export_of({}), "python")
