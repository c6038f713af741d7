"""A first search space for a command line: it loads, and its baseline is the command as it was given."""

from __future__ import annotations

import os
import random
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from scripts import WILD

from sweeper.core.template import arguments, render
from sweeper.errors import UserError
from sweeper.scaffold import command_space, known_options
from sweeper.scaffold.command_space import help_of, propose
from sweeper.scaffold.command_yaml import yaml_of
from sweeper.scaffold.known_options import recognise
from sweeper.schema import SweepSpec, load
from sweeper.script.run.command_line import Option, parse_command

CORES = 12
Loaded = Callable[..., SweepSpec]

HELP = """\
usage: train.py [-h] [-b N] [--num-workers NUM_WORKERS] [--amp]
                [--compile | --no-compile] [--pin-mem]

options:
  -h, --help            show this help message and exit
  -b N, --batch-size N  samples a step (default: 32)
  -a, --arch ARCH       model (default: resnet18)
  --num-workers NUM_WORKERS
                        processes that load data, of which each takes a
                        core (default: 4)
  --gradient-accumulation-steps N
                        steps that are added up
  --prefetch-factor N   batches ahead [default: 2]
  --dtype {float32,bfloat16}
                        arithmetic, by default: float32.
  --hidden-dim N        width (default: 64)
  --epochs N            (default: 90)
  --fp16 [FP16]         half precision (default: False)
  --compile, --no-compile
                        compiled (default: True)
  --pin-mem             pinned
  --no-pin-mem
  --channels-last
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Loads what is proposed for a command line."""
    monkeypatch.setattr(known_options, "usable_cpus", lambda: CORES)

    def loaded(command: str, help_text: str = "", change: Callable[[str], str] = str) -> SweepSpec:
        path = tmp_path / "proposed.yaml"
        path.write_text(change(yaml_of(propose(parse_command(command), help_text))), encoding="utf-8")
        return load(path)

    return loaded


def baseline_of(spec: SweepSpec) -> list[str]:
    """The command line that the baseline runs."""
    return arguments(spec.command, {**spec.fix, **spec.baseline})


def in_use(text: str) -> str:
    """A search space with all of its comments that are YAML in use, whatever the user has to decide."""
    text = re.sub(r"^(space|baseline): \{\}.*$", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"^(  )?# (?=(  )?[\w.]+: |.*,(     #.*)?$|script:)", r"\1", text, flags=re.MULTILINE)
    while name := re.search(r"  (\S+): DEFAULT", text):
        low = re.search(rf"^ *{re.escape(name[1])}: .*(?:low: |choices: \[)(\w+)", text, re.MULTILINE)
        assert low
        text = text.replace(name[0], f"  {name[1]}: {low[1]}")
    return text


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --batch-size 64 --lr 0.1 --amp --epochs 3", {"batch_size": 64, "amp": True}),
        ("python train.py --Batch_Size=64 --batchSize 32", {"batch_size": 64}),
        (
            "python train.py --num_workers=4 --no-pin-memory --prefetch-factor 2 data",
            {"loader.num_workers": 4, "loader.pin_memory": False, "loader.prefetch_factor": 2},
        ),
        ("python train.py -b 256 -j8 data/imagenet", {"batch_size": 256, "loader.num_workers": 8}),
        (
            "python train.py eval.batch_size=512 +train.batch_size=32 data.num_workers=0 amp=true",
            {"batch_size": 32, "loader.num_workers": 0, "amp": True},
        ),
        ("python -u -m pkg.train --train_batch_size 8 --fp16", {"batch_size": 8, "precision.amp": "fp16"}),
        ("python train.py --bf16 False --fp16 True", {"precision.amp": "fp16"}),
        ("python train.py --fp16 --bf16", {"precision.amp": "fp16"}),
        (
            "python train.py --dtype float32 --torch-compile False",
            {"precision.amp": "fp32", "compile": False},
        ),
        ("python train.py --precision 16-mixed --amp 1", {"precision.amp": "fp16", "amp": True}),
        ("python train.py --mixed_precision bf16", {"precision.amp": "bf16"}),
        ("python train.py --amp data/ --use_compile", {"compile": True}),
        ("python train.py --accum 3 --seed 1 --steps 9 --lr=1e-3 --output_dir o", {"accumulate_steps": 3}),
        ("python train.py --batch-size auto --bs 0 -j four --dtype int8 --compile max", {}),
        ("python train.py --batch-size 99999999999999999999 --no-amp true", {}),
        ("python train.py --tag 🙂 --bs 8", {"batch_size": 8}),
        ("yolo train batch=16 workers=8 imgsz=640", {"batch_size": 16, "loader.num_workers": 8}),
        ("python train.py", {}),
    ],
)
def test_options_that_are_known_are_searched_from_their_own_values(loaded: Loaded, command: str, expected):
    spec = loaded(command)
    assert spec.baseline == expected
    assert spec.space.keys() == expected.keys()
    assert baseline_of(spec) == shlex.split(command)


def test_ranges(loaded: Loaded):
    command = "train.py --bs 64 -j 40 --accum 3 --prefetch 3 --pin_mem yes --bf16 --compile"
    space = loaded(command).to_dict()["space"]
    assert space["batch_size"] == {"type": "int", "low": 16, "high": 1024, "log": True, "step": 1}
    # More than there are cores in the baseline; a DataLoader without workers takes no prefetch factor.
    assert (space["loader.num_workers"]["low"], space["loader.num_workers"]["high"]) == (1, CORES)
    choices = {name: each["choices"] for name, each in space.items() if "choices" in each}
    assert choices == {
        "accumulate_steps": [1, 2, 3, 4, 8],
        "loader.prefetch_factor": [2, 3, 4, 8],
        "loader.pin_memory": [True, False],
        "precision.amp": ["fp32", "bf16"],
        "compile": [True, False],
    }
    assert loaded("train.py --bs 3").to_dict()["space"]["batch_size"]["low"] == 1
    without = loaded("train.py --num_workers 0 --prefetch_factor 2").space
    assert without["loader.num_workers"].contains(0)
    assert without["loader.prefetch_factor"].when["loader.num_workers"].min == 1


def test_what_changes_the_work_is_left_to_the_user(loaded: Loaded):
    command = "python train.py --hidden-size 128 --num_layers=2 --seq-len 512 --bs 8"
    spec = loaded(command)
    assert spec.space.keys() == {"batch_size"}
    assert baseline_of(spec) == shlex.split(command)
    spec = loaded(command, change=in_use)
    assert spec.space["model.hidden_size"].choices == (64, 128, 256)
    assert spec.baseline["model.num_layers"] == 2
    assert spec.constraints["val_loss"].max_ratio_to_baseline
    (line,) = (
        each
        for each in yaml_of(propose(parse_command(command))).splitlines()
        if "{model.hidden_size}" in each
    )
    assert line.endswith("# instead of the line above")
    # The later of the two holds.
    last = dict(zip(baseline_of(spec)[:-1], baseline_of(spec)[1:], strict=True))
    assert (last["--hidden-size"], last["--seq-len"]) == ("128", "512")
    assert arguments(spec.command, {**spec.baseline, "model.num_layers": 4})[-7] == "--num_layers=4"


def test_the_help_adds_options_with_what_they_are_by_default(loaded: Loaded):
    spec = loaded("python train.py -a vit", HELP)
    assert spec.baseline == {
        "batch_size": 32,
        "loader.num_workers": 4,
        "loader.prefetch_factor": 2,
        "precision.amp": "fp32",
        "compile": True,
    }
    assert spec.space["precision.amp"].choices == ("fp32", "bf16")
    added = "--batch-size 32 --num-workers 4 --prefetch-factor 2 --dtype float32 --compile"
    assert baseline_of(spec) == f"python train.py -a vit {added}".split()


def test_what_the_help_leaves_open_is_a_comment_that_comes_into_use(loaded: Loaded):
    # `(default: True)` of `--compile, --no-compile` is known; which of two flags holds is not.
    text = HELP.replace("compiled (default: True)", "compiled")
    assert "compile" not in loaded("python train.py --bs 8", text).space
    assert loaded("python train.py --bs 8", HELP).baseline["compile"] is True
    spec = loaded("python train.py --bs 8", text, change=in_use)
    added = {"accumulate_steps", "compile", "loader.pin_memory", "model.hidden_size"}
    assert added <= spec.space.keys()
    values = {**spec.baseline, "compile": False, "loader.pin_memory": True, "accumulate_steps": 4}
    words = arguments(spec.command, values)
    assert words[words.index("--gradient-accumulation-steps") + 1] == "4"
    assert {"--no-compile", "--pin-mem"} < {*words}
    assert not {"--compile", "--no-pin-mem"} & {*words}


@pytest.mark.parametrize(
    ("command", "help_text", "expected"),
    [
        # Short names and defaults are the help's matter.
        ("train.py -w 3", "  -w N, --workers N  processes", {"loader.num_workers": 3}),
        ("train.py -b 3", "  -b N, --beta N  momentum (default: 1)", {}),
        ("train.py --amp", "  --amp  mixed\n  --no-amp", {"amp": True}),
        ("train.py --amp data", "  --amp  mixed", {"amp": True}),
        ("train.py", "  --amp  mixed", {"amp": False}),
        ("train.py", "  --no-amp  not mixed", {"amp": True}),
        ("train.py", "  --fp16  half\n  --bf16  brain", {"precision.amp": "fp32"}),
        ("train.py --bf16", "  --fp16 [FP16]  half (default: False)\n  --bf16", {"precision.amp": "bf16"}),
        ("train.py", "  --fp16 [X]  (default: False)\n  --half  half", {"precision.amp": "fp32"}),
        ("train.py", "  --batch-size {8,16}  (default: 8)", {"batch_size": 8}),
        ("train.py", "  --batch-size N  (default: None)\n  --bs N  (default: auto)", {}),
        ("train.py --dtype int8", "  --dtype {float32,int8}  (default: float32)", {}),
        ("train.py", "  --mixed-precision {no,fp16,bf16}  (default: no)", {"precision.amp": "fp32"}),
        ("train.py", "  --dtype {float32,int8}  (default: float32)", {}),
        ("train.py", "  --dtype {int8,uint8}  (default: int8)", {}),
        ("train.py", "train.py: error: --batch-size 8\nTraining step 1 -- 5 samples/s\n", {}),
    ],
)
def test_the_help_says_what_an_option_is(loaded: Loaded, command: str, help_text: str, expected):
    spec = loaded(command, help_text)
    assert spec.baseline == expected
    assert baseline_of(spec)[: len(shlex.split(command))] == shlex.split(command)


def test_flags_of_both_formats_are_one_dimension(loaded: Loaded):
    spec = loaded("train.py", "  --fp16  half\n  --bf16  brain")
    assert spec.space["precision.amp"].choices == ("fp32", "bf16", "fp16")
    added = [arguments(spec.command, {"precision.amp": each})[1:] for each in ("fp32", "bf16", "fp16")]
    assert added == [[], ["--bf16"], ["--fp16"]]
    spec = loaded("train.py fp16=True bf16=False")
    assert arguments(spec.command, {"precision.amp": "bf16"})[1:] == ["fp16=False", "bf16=True"]
    spec = loaded("train.py --fp16", "  --fp16  half\n  --half  the same")
    assert arguments(spec.command, {"precision.amp": "fp16"})[1:] == ["--fp16"]


def test_choices_that_the_help_names_are_the_range(loaded: Loaded):
    spec = loaded("train.py --bs 16", "  --batch-size, --bs {8,16,24}  samples a step")
    assert spec.space["batch_size"].choices == (8, 16, 24)


def test_both_ways_of_a_flag_are_used_where_the_help_has_them(loaded: Loaded):
    spec = loaded("train.py --amp", "  --amp, --no-amp  mixed")
    assert arguments(spec.command, {"amp": False})[1:] == ["--no-amp"]
    assert arguments(loaded("train.py --amp").command, {"amp": False})[1:] == []
    spec = loaded("train.py -n", "  -n, --no-amp  all of it in fp32")
    assert (spec.baseline, baseline_of(spec)[1:]) == ({"amp": False}, ["--no-amp"])
    assert arguments(spec.command, {"amp": True})[1:] == []


@pytest.mark.parametrize(
    "start",
    [
        "torchrun --nproc_per_node 2 train.py",
        "torchrun --standalone --nproc-per-node=2 -m pkg.train",
        "python -m torch.distributed.run --nproc_per_node 2 train.py",
        "accelerate launch --num_processes 2 --mixed_precision bf16 train.py",
    ],
)
def test_a_launcher_keeps_its_options_and_says_how_many_train_together(loaded: Loaded, start: str):
    spec = loaded(f"{start} --bs 3")
    assert (spec.fix, spec.baseline) == ({"device.count": 2}, {"batch_size": 3})
    assert baseline_of(spec) == shlex.split(f"{start} --bs 3")
    assert spec.baseline_config().global_batch == 6


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("python 'my/2nd train.py' --x a.py", "2nd-train"),
        ("python -m pkg.sub.main_v2 train.py", "main_v2"),
        ("python true.py", "true"),
        ("python 12.py", "12"),
        ("torchrun --log=a.py train.py", "train"),
        ("python 训练.py", "script"),
        ("./train.sh --bs 3", "train.sh"),
    ],
)
def test_the_name_is_the_scripts(loaded: Loaded, command: str, name: str):
    assert loaded(command).name == name


def test_variables_before_the_command_are_its_environment(loaded: Loaded):
    spec = loaded("CUDA_VISIBLE_DEVICES=1,GPU-ab OMP_NUM_THREADS=4 NO='{x} yes' python train.py --bs 3")
    assert spec.command[0] == "python"
    assert spec.execution.gpus == [1, "GPU-ab"]
    assert {k: render(v, {}) for k, v in spec.script.env.items()} == {"OMP_NUM_THREADS": "4", "NO": "{x} yes"}
    assert loaded("CUDA_VISIBLE_DEVICES= python train.py").execution.gpus == 0
    assert loaded("CUDA_VISIBLE_DEVICES=2,-1,1 python train.py").execution.gpus == [2]
    assert loaded("python train.py").execution.gpus == "all"


def test_lines_that_are_continued_are_one(loaded: Loaded):
    assert loaded("python train.py \\\n  --bs 8 \\\n  --amp").baseline == {"batch_size": 8, "amp": True}


WORDS = [
    *("64", "-1", "1e-3", "true", "No", "~", "", "a b", "#", "# x", "{x}", "{{x.y}}", "{", '{"a": {}}', "%d"),
    *(
        "-",
        "--",
        "---",
        "[1, 2]",
        "a: b",
        ":",
        "*",
        "&x",
        "!",
        "'",
        '"',
        "\\",
        "汉字",
        "é",
        "@",
        "`",
        "$HOME",
    ),
    *("--lr", "--k=", "=", "k=v", "--data=a=b", "-j", "-j8", "--no-amp", "--amp", "--bs", "--bf16", "bf16"),
    *("--hidden", "--fp16", "--dtype", "--num_workers", "--prefetch", "train.batch=2", "--pin_memory", "on"),
]


@pytest.mark.parametrize("seed", range(3))
def test_any_words_load_and_come_back(loaded: Loaded, seed: int):
    chance = random.Random(seed)
    for count in range(0, 30, 2):
        words = ["python", "train.py", *chance.choices(WORDS, k=count)]
        assert baseline_of(loaded(shlex.join(words))) == words
        proposed = baseline_of(loaded(shlex.join(words), HELP))
        assert proposed[: len(words)] == words
        loaded(shlex.join(words), HELP, change=in_use)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "must name a program"),
        ("OMP_NUM_THREADS=3", "must name a program"),
        ("python 'train.py", "No closing quotation"),
        ("cd x && python train.py", "needs no shell"),
        ("python train.py | tee log", "needs no shell"),
        ("python train.py --bell \x07", "printable"),
        ("python train.py --bs '{bs: 1 -> 2}'", "is a template"),
    ],
)
def test_what_is_no_command_line_is_refused(command: str, words: str):
    with pytest.raises(UserError, match=words):
        propose(parse_command(command))


def test_a_missing_batch_size_is_spoken_of(loaded: Loaded):
    def said(command: str, help_text: str = "") -> bool:
        return "Its batch size is unknown" in yaml_of(propose(parse_command(command), help_text))

    assert not said("python train.py --bs 8")
    assert not said("python train.py", HELP)
    assert said("python train.py --amp")
    assert said("python train.py", "  --bs N  samples a step")


# -- the help of scripts ------------------------------------------------------------------------------


def test_the_help_of_real_scripts(loaded: Loaded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(WILD)
    line = f"{sys.executable} with_argparse.py --batch-size 16"
    spec = loaded(line, help_of(parse_command(line)))
    assert spec.baseline == {"batch_size": 16, "amp": False}
    assert loaded(line, help_of(parse_command(line)), change=in_use).space["loader.num_workers"].high == CORES
    line = f"{sys.executable} -m with_trainer --output_dir out --per_device_train_batch_size=4"
    spec = loaded(line, help_of(parse_command(line)), change=in_use)
    assert spec.space.keys() == {"batch_size", "accumulate_steps"}
    for name in ("with_overrides.py 3", "evil.py x", "not_there.py"):
        assert propose(
            parse_command(f"{sys.executable} {name}"), help_of(parse_command(f"{sys.executable} {name}"))
        )
    assert help_of(parse_command("no-such-program train.py")) == ""


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return f"{sys.executable} {folder / 'train.py'}"


def test_a_script_that_looks_at_no_arguments_is_not_started(tmp_path: Path):
    line = script(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\nprint('  --bs N')\n")
    assert help_of(parse_command(line)) == ""
    assert not (tmp_path / "ran").exists()
    assert help_of(parse_command(script(tmp_path, "import argparse\nprint('  --bs N')\n"))) == "  --bs N\n"


def test_being_asked_for_help_a_script_leaves_nothing_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "import argparse, os\nos.mkdir('runs')\nprint('  --bs N')\n")
    assert help_of(parse_command(f"{sys.executable} train.py")) == "  --bs N\n"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    # A mirror has no virtual environment.
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert help_of(parse_command(".venv/bin/python train.py")) == "  --bs N\n"


def test_a_command_that_starts_work_elsewhere_is_not_asked_for_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "srun").write_text(f"#!/bin/sh\ntouch {tmp_path / 'submitted'}\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert help_of(parse_command(f"srun -N4 {script(tmp_path, 'import argparse')}")) == ""
    assert not (tmp_path / "submitted").exists()


@pytest.mark.parametrize("text", ["def f(*args, **kwargs): ...", '"""Trains.\n\nArgs:\n    x: y\n"""'])
def test_words_that_look_like_arguments_are_none(tmp_path: Path, text: str):
    assert help_of(parse_command(script(tmp_path, f"{text}\nprint('  --bs N')\n"))) == ""


def test_other_programs_than_python_are_not_started(tmp_path: Path):
    (tmp_path / "train.sh").write_text("#!/bin/sh\necho '  --bs N'\n")
    (tmp_path / "train.sh").chmod(0o755)
    assert help_of(parse_command(f"{tmp_path / 'train.sh'} --lr 3")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "while True: print('--bs ' * 10000)",
        "import time; print('--bs', flush=True); time.sleep(60)",
        "import subprocess; print('--bs', flush=True); subprocess.run(['sleep', '61.5'])",
        "import subprocess; print('--bs', flush=True); subprocess.Popen(['sleep', '61.5'])",
    ],
)
def test_a_script_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setattr(command_space, "HELP_SECONDS", 0.5)
    line = parse_command(script(tmp_path, f"import argparse\n{text}\n"))
    began = time.monotonic()
    found = help_of(line)
    assert found.startswith("--bs")
    assert len(found) < 2 * command_space.HELP_BYTES
    assert time.monotonic() - began < 5
    time.sleep(0.1)
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert ["sleep", "61.5"] not in commands
    assert not any(line.script in each for each in commands)


def test_of_an_option_given_twice_the_last_is_searched(loaded: Loaded):
    """As argparse takes the last."""
    command = "python train.py --batch-size 32 --shift 0.5 --batch-size 64"
    spec = loaded(command)
    assert baseline_of(spec) == shlex.split(command)
    assert spec.baseline["batch_size"] == 64
    assert spec.command[-2:] == ("--batch-size", "{batch_size}")


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ((), ["True", "False"]),
        (("True", "False"), ["True", "False"]),
        (("true", "false"), ["true", "false"]),
        (("0", "1"), ["1", "0"]),
        (("auto", "yes", "no"), ["yes", "no"]),
    ],
)
def test_a_switch_whose_value_is_unknown_has_the_words_that_the_help_names(choices, words: list[str]):
    found = recognise(Option(names=("--compile",), choices=choices))
    assert found is not None
    assert [render(found[1], {found[0].name: value}) for value in found[0].choices] == words


def test_other_choices_make_no_switch():
    assert recognise(Option(names=("--compile",), choices=("default", "fast"))) is None
