"""`export`: every format of a finished sweep, for a person, a shell, a scheduler and a script."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from parts.noop import synthetic
from replays import PIPELINE, Bench, spec_of

from sweeper.cli import main
from sweeper.core.measurement import DeviceInfo
from sweeper.exports import read


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs a command in this process: code, standard output, standard error."""
    monkeypatch.delenv("SWEEPER_HOME", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sweeper", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def home(finished_home) -> str:
    return str(finished_home)


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return Bench(tmp_path / "home")


def test_it_prints_what_production_needs(cli, home):
    code, out, _ = cli("export", "toy", "--home", home, "--out", "-", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["config"]["loader"]["kind"] == "resident"
    assert found["provenance"]["sweep"] == "toy"
    assert found["conditions"]["usable_cpus"] == 16


def test_of_several_slots_a_trial_had_its_share_of_the_cores(cli, bench):
    two = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=22.5) for i in "ab"]
    bench.run(devices=two)
    _, out, _ = cli("export", "toy", "--home", str(bench.home), "--out", "-", "--format", "json")
    assert json.loads(out)["conditions"]["usable_cpus"] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_it_writes_a_file_that_reads_back(cli, home, tmp_path):
    path = tmp_path / "best.yaml"
    code, out, _ = cli("export", "toy", "--home", home, "--out", path)
    assert code == 0
    assert str(path) in out.replace("\n", "")
    assert read(path)["config"]["loader"]["kind"] == "resident"


def test_the_size_of_the_prepared_data_is_known(cli, bench):
    from sweeper.core.measurement import Report

    bench.run(prepared=Report(values={"synthetic": False, "notes": [], "bytes": 3 * 2**29}))
    _, out, _ = cli("export", "toy", "--home", "home", "--out", "-", "--format", "json")
    assert json.loads(out)["conditions"]["data_gib"] == 1.5


def test_flags_are_printed_by_ones_own_names(cli, home, tmp_path):
    flags = tmp_path / "flags.yaml"
    flags.write_text("batch_size: --bs\n")
    asked = ["export", "toy", "--home", home, "--format", "args"]
    words = shlex.split(cli(*asked)[1])
    assert words[:2] == ["--batch-size", "1024"]
    assert shlex.split(cli(*asked, "--map", flags)[1]) == ["--bs", *words[1:]]


def test_a_job_script_comes_with_what_it_trains_from(cli, home, tmp_path):
    script = tmp_path / "my job.sh"
    code, out, _ = cli("export", "toy", "--home", home, "--format", "sbatch", "--out", script)
    assert (code, out.count("Written to")) == (0, 2)
    trained = tmp_path / "my job.yaml"
    assert f"srun sweeper train {shlex.quote(str(trained))}\n" in script.read_text()
    assert read(trained)["provenance"]["sweep"] == "toy"


def test_a_job_script_does_not_write_over_another_file(cli, home, tmp_path):
    own = tmp_path / "train.yaml"
    own.write_text("lr: 0.1\n")
    asked = ["export", "toy", "--home", home, "--format", "sbatch", "--out"]
    code, _, said = cli(*asked, tmp_path / "train.sh")
    assert (code, own.read_text()) == (2, "lr: 0.1\n")
    assert "is not an export" in said
    assert not (tmp_path / "train.sh").exists()
    # An earlier export is replaced.
    assert [cli(*asked, tmp_path / "job.sh")[0] for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("command", ["export", "report"])
def test_what_is_no_regular_file_is_not_replaced(cli, home, tmp_path, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, _, said = cli(command, "toy", "--home", home, "--out", pipe)
    assert (code, "`--out` must be a file in a folder" in said) == (2, True)
    assert pipe.is_fifo()


def test_a_printed_job_script_trains_from_the_sweeps_own_file(cli, bench):
    bench.run()
    _, out, _ = cli("export", "toy", "--home", "home", "--format", "sbatch", "--out", "-")
    own = bench.home / "sweeps" / "toy" / "best.yaml"
    assert out.startswith("#!/bin/bash\n")
    assert f"srun sweeper train {own}\n" in out
    assert "Written to" not in out
    assert read(own)["schema"] == 3


def test_lines_to_paste_say_what_was_measured(cli, home):
    code, out, _ = cli("export", "toy", "--home", home, "--format", "python")
    assert code == 0
    compile(out, "lines", "exec")
    said = " ".join(line.removeprefix("# ") for line in out.splitlines())
    assert "instead costs" in said
    assert "of the speed (" in said
    baseline = cli("export", "toy", "--home", home, "--format", "python", "--trial", "0")[1]
    assert "instead costs" not in baseline
    assert "num_workers=4," in baseline


def test_a_rule_picks_another_trial_of_the_front(cli, bench):
    goals = [{"maximize": "throughput"}, {"minimize": "val_loss"}]
    spec = spec_of(objectives=goals, constraints={}, search={"trials": 24}, confirm={"rounds": 0})
    bench.run(spec, loss=lambda config: 1 + math.log2(config.batch_size / 64) ** 3 / 100)
    asked = ["export", "toy", "--home", "home", "--out", "-", "--format", "json"]
    picked = {
        rule: json.loads(cli(*asked, "--rule", rule)[1])["provenance"]["trial"]
        for rule in ("knee", "lowest_loss")
    }
    shown = json.loads(cli("show", "toy", "--home", "home", "--json")[1])
    assert picked["knee"] == shown["picked"]
    assert picked["lowest_loss"] in shown["front"]
    assert picked["lowest_loss"] != picked["knee"]
    code, _, err = cli(*asked, "--rule", "knee", "--trial", "3")
    assert (code, "Leave one of them out" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--trial", "99"], 2, "`toy` has no trial 99"),
        (["--format", "yml"], 2, "Did you mean `yaml`?"),
        (["--format", "toml"], 2, "python, or an import string `module:name`, but got 'toml'"),
        (["--out", "no/such/folder/best.yaml"], 2, "`--out` must be a file in a folder"),
        (["--out", "."], 2, "`--out` must be a file in a folder"),
        (["--out", "/proc/best.yaml"], 6, "cannot write in /proc"),
        (["--format", "sbatch", "--out", "best.yaml"], 2, "must not end in .yaml"),
        (["--map", "flags.yaml"], 2, "`--map` needs `--format args`, but got `--format yaml`"),
        (["--format", "args", "--map", "no.yaml"], 2, "no.yaml: cannot be read"),
        (["--format", "patch"], 2, "`--format patch` needs a tune that has a winner, but 'toy' is not one."),
        (["--rule", "kne"], 2, "must be one of knee, lowest_loss, but got 'kne'. Did you mean `knee`?"),
        (["--rule", "knee"], 2, "needs a sweep with several objectives, but `toy` has one: throughput."),
    ],
)
def test_a_mistake_is_one_line(cli, home, arguments, code, says):
    got, out, err = cli("export", "toy", *arguments, "--home", home)
    assert got == code, err
    assert says in err
    assert err.count("\n") == 1
    assert err.startswith("sweeper: ")
    assert out == ""


def test_a_sweep_that_has_just_begun_has_nothing_to_export(cli, bench):
    bench.run()
    (folder,) = (bench.home / "sweeps").iterdir()
    shutil.rmtree(folder / "trials")
    (folder / "result.json").unlink()
    code, _, err = cli("export", "toy", "--home", "home")
    assert (code, err.count("\n")) == (4, 1)
    assert "has no winner to export" in err


def test_without_a_winner(cli, bench):
    bench.run(answer=lambda config: synthetic(10.0))
    code, _, err = cli("export", "toy", "--home", "home")
    assert code == 4
    assert "--trial N" in err
    assert cli("export", "toy", "--home", "home", "--trial", "3", "--out", "-")[0] == 0
