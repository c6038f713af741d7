"""A command in place of a pipeline: any name is a dimension, and none is without effect."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from sweeper.core.script import Script
from sweeper.core.template import arguments
from sweeper.errors import UserError
from sweeper.schema import SweepSpec, load

TREE: dict[str, Any] = {
    "name": "mine",
    "command": ["python", "train.py", "--bs", "{batch_size}", "--lr={lr}", "{precision.amp: bf16 -> --amp}"],
    "space": {
        "batch_size": {"type": "int", "low": 8, "high": 64, "log": True},
        "lr": {"type": "float", "low": 0.001, "high": 0.1, "log": True, "when": {"batch_size": {"min": 32}}},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
    },
    "baseline": {"batch_size": 16, "lr": 0.01, "precision.amp": "fp32"},
}


def spec_of(**changes: Any) -> SweepSpec:
    return SweepSpec.from_dict({**TREE, **changes})


def test_a_trial_has_the_commands_names_and_no_others():
    config = spec_of().baseline_config()
    assert config.flatten() == {"batch_size": 16, "lr": 0.01, "precision.amp": "fp32"}
    assert (config.batch_size, config.precision.amp) == (16, "fp32")


def test_what_has_no_effect_takes_the_baselines_value():
    params = {"batch_size": 8, "lr": 0.1, "precision.amp": "bf16"}
    assert spec_of().config(params).flatten()["lr"] == 0.01
    assert spec_of().config({**params, "batch_size": 64}).flatten()["lr"] == 0.1


def test_equal_names_make_one_trial():
    spec = spec_of()
    assert spec.config({"batch_size": 16, "lr": 0.05, "precision.amp": "fp32"}).key() == (
        spec.baseline_config().key()
    )
    assert spec.params_of(spec.baseline_config()) is not None


def test_known_names_are_checked_as_such():
    with pytest.raises(UserError, match="must be one of fp32, bf16, fp16"):
        spec_of(baseline={**TREE["baseline"], "precision.amp": "bf17"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fix": {"epochs": 3}}, "`epochs` is not used: it must appear in the command"),
        ({"also_try": [{"bach_size": 3}]}, "Did you mean `batch_size`"),
        ({"baseline": {"batch_size": 16, "lr": 0.1}}, "`precision.amp` in a template needs a value"),
        ({"data": {"path": "x"}}, "`data` belongs to a pipeline"),
        ({"command": []}, "must be a list"),
        ({"script": {"workdir": "there"}}, "script.workdir"),
        (
            {"script": {"env": {"SWEEPER_CHANGES": "a=b"}}},
            r"`script\.env\.SWEEPER_CHANGES` is set by `script",
        ),
        ({"confirm": {"ladder": True}}, r"`confirm\.ladder` is no longer an option"),
        ({"script": {"changes": {"loadr": "gathered"}}}, "but got `loadr`. Did you mean `loader`"),
        ({"script": {"changes": {"loader": "gatherd"}}}, r"must be one of original, .*, but got 'gatherd'"),
        ({"script": {"changes": {"spin_wait": "short"}}}, r"`script\.changes` must name a change \("),
        ({"script": {"files": {"/etc/x": ""}}}, "below the script's working directory"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        spec_of(**changes)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["sbatch", "train.sh"], "`sbatch` starts it elsewhere"),
        (["/usr/bin/ssh", "node1", "python train.py"], "`ssh` starts it elsewhere"),
        (
            ["mpirun", "-H", "localhost:2,b:2", "python", "x.py"],
            "`-H localhost:2,b:2` is for several machines",
        ),
        (["bash", "-c", "cd x && srun python train.py"], "`srun` starts it elsewhere"),
        (["torchrun", "--nnodes=2", "train.py"], "`--nnodes 2` is for several machines"),
        (["python", "-m", "torch.distributed.run", "--nnodes", "1:4", "train.py"], "`--nnodes 1:4`"),
        (["accelerate", "launch", "--num_machines", "2", "train.py"], "`--num_machines 2`"),
        (["deepspeed", "--hostfile", "hosts", "train.py"], "`--hostfile hosts`"),
    ],
)
def test_other_machines_need_consent(words: list[str], reason: str):
    command = [*words, *TREE["command"][2:]]
    with pytest.raises(UserError, match=reason):
        spec_of(command=command)
    assert spec_of(command=command, script={"elsewhere": True}).script.elsewhere
    # A sweep that was made before there was such a rule can still be read.
    assert SweepSpec.from_dict({**TREE, "command": command}, is_stored=True).command == tuple(command)


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--nnodes=1", "--nproc-per-node=2", "train.py"],
        ["torchrun", "--nnodes", "1:1", "train.py"],
        ["accelerate", "launch", "--num_machines", "1", "train.py"],
        # A graph's nodes, and a script of that name.
        ["python", "train.py", "--num_nodes", "2000"],
        ["python", "ssh.py"],
        ["bash", "-c", "python train.py"],
    ],
)
def test_this_machine_alone_needs_none(words: list[str]):
    spec_of(command=[*words, *TREE["command"][2:]])


def test_neither_pipeline_nor_command():
    with pytest.raises(UserError, match="or `command`"):
        SweepSpec.from_dict({key: value for key, value in TREE.items() if key != "command"})


def test_a_script_without_a_command():
    with pytest.raises(UserError, match="`script` needs a `command`"):
        SweepSpec.from_dict({"name": "x", "pipeline": "p", "space": {}, "baseline": {}, "script": {}})


def test_a_specification_comes_back_from_plain_values():
    spec = spec_of(
        script={"files": {"a.yaml": {"template": "b"}, "c": "{lr}"}, "samples_per_step": "{batch_size}*2"}
    )
    assert SweepSpec.from_dict(spec.to_dict()) == spec


def test_templates_in_files_are_read_and_looked_at(tmp_path: Path):
    (tmp_path / "t").write_text("size: {batch_size}\n")
    script = spec_of(script={"files": {"c.yaml": {"template": "t"}}}).script_in(tmp_path)
    assert script is not None
    assert script.files == {"c.yaml": "size: {batch_size}\n"}
    with pytest.raises(UserError, match="a template that can be read"):
        spec_of(script={"files": {"c.yaml": {"template": "none"}}}).script_in(tmp_path)


def test_what_is_unprotected_must_be_there(tmp_path: Path):
    (tmp_path / "ckpt").mkdir()
    spec_of(script={"unprotected": ["ckpt"]}).script_in(tmp_path)
    with pytest.raises(UserError, match="but 'checkpoints' does not exist"):
        spec_of(script={"unprotected": ["ckpt", "checkpoints"]}).script_in(tmp_path)


def test_a_parameter_that_only_a_template_could_use_is_looked_for_there(tmp_path: Path):
    (tmp_path / "t").write_text("nothing\n")
    spec = spec_of(script={"files": {"c.yaml": {"template": "t"}}}, fix={"epochs": 3})
    with pytest.raises(UserError, match="`epochs` is not used"):
        spec.script_in(tmp_path)


def test_a_script_trains_to_no_loss():
    with pytest.raises(UserError, match=r"`confirm\.to_loss: true` is for pipelines, but got a `command`"):
        spec_of(confirm={"to_loss": True})


def test_a_scripts_data_cannot_be_dropped_from_memory():
    changes = {"measure": {"cold_cache": True}}
    with pytest.raises(UserError, match=r"`measure\.cold_cache: true` is for pipelines, but got a `command`"):
        spec_of(**changes)
    # A sweep that was made before there was such a rule can still be read.
    assert SweepSpec.from_dict({**TREE, **changes}, is_stored=True).measure.cold_cache


SPELLED = """
name: spelled
command: [python, train.py, "{amp}", "{other}", "{{amp}}", "{amp: true -> --on; False -> --off}"]
script: {env: {AMP: "is {amp}"}}
space: {amp: {type: categorical, choices: [True, False]}}
fix: {other: 1}
baseline: {amp: false}
"""


def received(tmp_path: Path, *changes: tuple[str, str], sets: tuple[str, ...] = ()) -> list[list[str]]:
    """What the script gets in the trials of the space."""
    text = SPELLED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "spelled.yaml").write_text(text)
    spec = load(tmp_path / "spelled.yaml", sets)
    trials = [spec.config({"amp": choice}).args or {} for choice in getattr(spec.space["amp"], "choices", ())]
    for args in trials:
        assert arguments([spec.script.env["AMP"]], args) == [f"is {arguments(spec.command, args)[2]}"]
    return [arguments(spec.command, args)[2:] for args in trials]


def test_a_script_gets_a_truth_value_as_the_file_spells_it(tmp_path: Path):
    assert received(tmp_path) == [["True", "1", "{amp}", "--on"], ["False", "1", "{amp}", "--off"]]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ("[true, false]", ["true", "false"]),
        ("[TRUE, False]", ["TRUE", "False"]),
        ("[True, False, null, auto, 3.0e-05]", ["True", "False", "null", "auto", "3.0e-05"]),
        ("['True', 'false']", ["True", "false"]),
        # A case of a template cannot name the third: all stay as they were.
        ("[True, False, a; b]", ["true", "false", "a; b"]),
    ],
)
def test_each_choice_is_spelled_alone(tmp_path: Path, choices: str, words: list[str]):
    changes = [("[True, False]", choices), ("baseline: {amp: false}", "baseline: {amp: 'false'}")]
    assert [got[0] for got in received(tmp_path, *changes)] == words


def test_an_override_and_every_section_are_spelled_too(tmp_path: Path):
    assert {got[1] for got in received(tmp_path, ("other: 1", "other: True"))} == {"True"}
    assert {got[1] for got in received(tmp_path, sets=("fix.other=True",))} == {"True"}
    assert {got[1] for got in received(tmp_path, ("other: 1", "other: True"), sets=("fix.other=true",))} == {
        "true"
    }
    lower = received(tmp_path, sets=("space.amp.choices=[true, false]",))
    assert [got[0] for got in lower] == ["true", "false"]


def test_names_and_values_are_those_of_any_spelling(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(SPELLED)
    (tmp_path / "b.yaml").write_text(SPELLED.replace("[True, False]", "[true, false]"))
    first, second = (load(tmp_path / name) for name in ("a.yaml", "b.yaml"))
    assert (first.space, first.baseline) == (second.space, second.baseline)
    assert second.command[2] == "{amp}"
    # As stored, the command still has its words.
    assert SweepSpec.from_dict(first.to_dict(), is_stored=True) == first


@pytest.mark.parametrize("parse", [ast.literal_eval, "True".__eq__, lambda text: click.BOOL(text)])
def test_usual_parsers_read_what_a_script_gets(tmp_path: Path, parse: Callable[[str], Any]):
    parser = argparse.ArgumentParser()
    parser.add_argument("amp", choices=["True", "False"])
    words = [parser.parse_args(got[:1]).amp for got in received(tmp_path)]
    assert [parse(word) for word in words] == [True, False]


def test_a_change_whose_value_is_empty_or_original_is_not_made():
    changes = {"loader": "{fast: true -> gathered}", "optimizer": "original", "batch_size": "64/64"}
    script = Script(command=("python", "train.py"), changes=changes)
    assert script.changes_for({"fast": True}) == {"loader": "gathered"}
    assert script.changes_for({"fast": False}) == {}
