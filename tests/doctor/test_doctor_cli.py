"""`sweeper doctor` as a person meets it: what it prints, its exit code, its JSON, and a real run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stub_nvml
from rich.console import Console

from sweeper.cli import doctor as examining
from sweeper.cli import main
from sweeper.core.measurement import Report
from sweeper.doctor import Ceiling, Check, Examination, State, examine
from sweeper.doctor import gpus as nvidia
from sweeper.telemetry.nvml.devices import HANGS, GpuFacts

REPOSITORY = Path(__file__).parents[2]
OK, WARN, FAIL = State.OK, State.WARN, State.FAIL

VALUES = {
    "torch": {"version": "2.13.0", "cuda": "13.0", "problem": "", "arch_list": ["sm_80", "sm_90"]},
    "cpu": {"name": "CPU, 2 cores", "lacks": {}, "problem": ""},
    "gpus": [{"name": "NVIDIA A10", "capability": "8.6", "lacks": {}, "problem": ""}],
    "loader": {"problem": ""},
    "compile": {"device": "cuda", "seconds": 5.0, "cache": "warm", "problem": ""},
    "ceilings": [
        {"name": "cpu.memory_copy", "value": 12.345, "unit": "GiB/s"},
        {"name": "cuda:0.matmul_bf16", "value": 61.0, "unit": "TFLOP/s"},
    ],
}
FACTS = GpuFacts(index=0, name="NVIDIA A10", driver="580.1", cuda_driver_version="13.0")


@pytest.fixture(autouse=True)
def all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def examined(home: Path, measured=lambda cache, num_gpus: Report(values=VALUES), gpus=(FACTS,), problem=""):
    return examine(home, driver_problem=lambda: problem, describe_gpus=lambda: list(gpus), measured=measured)


def states(found: Examination) -> dict[str, State]:
    return {check.name: check.state for check in found.checks}


# -- the whole ------------------------------------------------------------------------------------------


def test_everything_is_looked_at(tmp_path):
    found = examined(tmp_path)
    assert list(states(found)) == [
        *("load", "cores", "quiet cores", "memory", "swap", "shared memory", "scripts", "open files"),
        *("python", "packages", "gpu 0"),
        *("home", "disk", "file system", "mlflow store", "torch", "cuda:0", "precision", "compile"),
    ]
    assert found.devices == {"cpu": "CPU, 2 cores", "cuda:0": "NVIDIA A10"}
    assert [each.name for each in found.ceilings] == ["cpu.memory_copy", "cuda:0.matmul_bf16"]
    assert all(check.remedy for check in found.checks if check.state is not OK)
    assert found.ok


def test_a_failed_measurement_is_one_failure_and_no_figures(tmp_path):
    found = examined(
        tmp_path, measured=lambda cache, num_gpus: Check("measuring", FAIL, "boom", "see the log")
    )
    assert not found.ok
    assert found.of(FAIL) == [Check("measuring", FAIL, "boom", "see the log")]
    assert found.ceilings == ()


def test_what_is_worth_keeping_goes_into_the_home(tmp_path):
    asked = []
    examined(tmp_path, measured=lambda cache, num_gpus: asked.append(cache) or Report(values=VALUES))
    (tmp_path / "file").write_text("")
    found = examined(
        tmp_path / "file", measured=lambda cache, num_gpus: asked.append(cache) or Report(values=VALUES)
    )
    assert asked == [tmp_path.resolve() / "cache" / "compile" / "doctor", None]
    assert states(found)["home"] is FAIL
    assert not found.ok


def test_a_driver_that_cannot_be_used_is_not_asked_for_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "has_gpu", lambda: True)
    values = {**VALUES, "gpus": []}
    found = examine(
        tmp_path,
        driver_problem=lambda: "it hangs",
        describe_gpus=lambda: pytest.fail("asked"),
        measured=lambda cache, num_gpus: Report(values=values),
    )
    assert states(found)["gpu"] is WARN
    assert states(found)["torch"] is OK


def test_of_a_driver_that_hangs_nothing_more_is_asked(tmp_path):
    asked = []
    found = examine(
        tmp_path,
        driver_problem=lambda: HANGS,
        describe_gpus=lambda: pytest.fail("asked"),
        measured=lambda cache, num_gpus: asked.append(num_gpus) or Report(values={**VALUES, "gpus": []}),
    )
    assert asked == [None]
    assert found.of(FAIL) == [check for check in found.checks if check.name == "gpu"]


def test_cuda_without_nvml_is_one_warning_and_its_gpu_is_measured(tmp_path):
    found = examined(tmp_path, gpus=(), problem="libnvidia-ml.so.1 was not found: no utility")
    checks = {check.name: check for check in found.checks}
    assert (checks["gpu"].state, checks["cuda:0"].state) == (WARN, OK)
    assert checks["gpu"].text.startswith("CUDA works, but NVML does not")
    assert "on the CPU" not in " ".join(check.text for check in found.checks)
    assert found.ok


def test_one_reading_that_cannot_be_taken_costs_no_other(tmp_path, monkeypatch):
    def broken() -> tuple:
        raise OSError("no /proc here")

    monkeypatch.setattr(os, "getloadavg", broken)
    found = examined(tmp_path)
    assert states(found)["load"] is WARN
    assert "no /proc here" in found.checks[0].text
    assert states(found)["torch"] is OK


def test_a_foreign_process_does_not_make_a_machine_unfit(tmp_path):
    found = examined(tmp_path, gpus=[GpuFacts(index=0, foreign=(4711,))])
    assert states(found)["gpu 0"] is WARN
    assert found.ok


def test_gpus_through_the_real_pynvml(tmp_path, monkeypatch):
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    busy = stub_nvml.Gpu(processes=[(4100001, 512), (4100002, 256)]).but(compute_mode=[3])
    scenario = stub_nvml.write(tmp_path / "scenario", [busy], cuda=12040)
    stub_nvml.loaded(monkeypatch, stub_nvml.build(tmp_path), scenario)
    torch = {"version": "2.13.0+cpu", "cuda": "", "problem": "", "arch_list": []}
    values = {**VALUES, "torch": torch, "gpus": [], "ceilings": []}
    found = examine(tmp_path, measured=lambda cache, num_gpus: Report(values=values))
    checks = {check.name: check for check in found.checks}
    assert checks["gpu 0"].state is WARN
    assert checks["gpu 0"].text == (
        "NVIDIA A10, 22.5 GiB, driver 550.54.15 (CUDA 12.4), compute mode exclusive process; "
        "other processes use it: 4100001, 4100002"
    )
    assert checks["torch"].state is FAIL
    assert "cu126" in checks["torch"].remedy
    assert not found.ok


@pytest.mark.parametrize(
    ("visible", "problem", "expected"),
    [(None, "", 3), ("0,2", "", 2), ("GPU-1", "", 1), ("", "", 0), ("-1", "", 0), (None, "no NVML", 1)],
)
def test_the_job_is_told_how_many_gpus_it_will_see(tmp_path, monkeypatch, visible, problem, expected):
    monkeypatch.setattr(nvidia, "has_gpu", lambda: True)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = []

    def measured(cache, num_gpus):
        asked.append(num_gpus)
        return Report(values=VALUES)

    examined(tmp_path, measured, gpus=[FACTS] * 3, problem=problem)
    assert asked == [expected]


# -- what is printed ------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs `sweeper doctor` in this process on a given examination: code, standard output."""
    monkeypatch.delenv("SWEEPER_HOME", raising=False)

    def run(found: Examination, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(examining, "examine", lambda home: found)
        monkeypatch.setattr(sys, "argv", ["sweeper", "doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert said.err == ""
        return int(ended.value.code or 0), said.out

    return run


def examination(*checks: Check) -> Examination:
    return Examination(
        checks=checks,
        ceilings=(
            Ceiling("cpu.matmul_fp32", 1234.5, "GFLOP/s"),
            Ceiling("cpu.small_operations", 412345.0, "1/s"),
            Ceiling("loader.rows", 187_000.0, "samples/s"),
            Ceiling("loader.whole_batches", 9_100_000.0, "samples/s"),
        ),
        devices={"cpu": "CPU, 2 cores"},
        seconds=12.3,
    )


FINE = Check("cores", OK, "all 2 cores are usable")
SMALL = Check("shared memory", WARN, "/dev/shm has 64 MiB", "Docker: `--shm-size=8g`")
BROKEN = Check("home", FAIL, "cannot write [there]", "Name another")


def test_a_fit_machine(cli):
    code, out = cli(examination(FINE))
    assert code == 0
    assert out.splitlines() == [
        "This machine is fit for sweeps (checked in 12 s).",
        "  ok   cores  all 2 cores are usable",
        "Measured ceilings:",
        "  cpu         CPU, 2 cores: matmul fp32 1.23 TFLOP/s, small operations 412k/s",
        "  loader      rows 187k samples/s, whole batches 9.1M samples/s: "
        "one row at a time is 49x slower (`loader.kind`)",
    ]


def test_warnings_are_allowed(cli):
    code, out = cli(examination(FINE, SMALL))
    assert code == 0
    assert out.splitlines()[0] == "This machine is fit for sweeps, with 1 warning (checked in 12 s)."
    assert "  warn shared memory  /dev/shm has 64 MiB\n" + " " * 22 + "-> Docker: `--shm-size=8g`.\n" in out


def test_a_failure_is_named_first_and_in_the_exit_code(cli):
    code, out = cli(examination(FINE, SMALL, BROKEN, BROKEN))
    assert code == 1
    assert out.splitlines()[0] == (
        "This machine is not fit for sweeps: home failed, 1 warning (checked in 12 s)."
    )
    # Square brackets are no markup.
    assert "  fail home           cannot write [there]\n" in out


@pytest.mark.parametrize("checks", [(FINE,), (FINE, BROKEN)])
def test_json(cli, checks):
    code, out = cli(examination(*checks), "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert found.keys() == {"ok", "checks", "ceilings"}
    assert (code == 0) is found["ok"] is (len(checks) == 1)
    assert found["checks"][0] == {
        "name": "cores",
        "state": "ok",
        "text": "all 2 cores are usable",
        "remedy": "",
    }
    assert found["ceilings"][0] == {"name": "cpu.matmul_fp32", "value": 1234.5, "unit": "GFLOP/s"}


def test_on_a_terminal_lines_hang_and_are_coloured(monkeypatch):
    out = Console(force_terminal=True, width=60, color_system="standard", highlight=False)
    with out.capture() as captured:
        examining._print(out, examination(FINE, Check("disk", WARN, "word " * 20, "do something " * 10)))
    lines = captured.get().splitlines()
    assert any("\x1b[33mwarn" in line for line in lines)
    assert all(len(line) <= 75 for line in lines)
    plain = [line for line in lines if "word" in line]
    assert len(plain) > 1
    assert all(line.startswith(" " * 14 + "word") for line in plain[1:])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "GiB/s", "0.0123 GiB/s"),
        (999.0, "GFLOP/s", "999 GFLOP/s"),
        (2345.0, "GFLOP/s", "2.35 TFLOP/s"),
        (187_123.0, "samples/s", "187k samples/s"),
        (205_000.0, "1/s", "205k/s"),
        (50.0, "1/s", "50/s"),
    ],
)
def test_amounts(value, unit, text):
    assert examining.amount(Ceiling("x.y", value, unit)) == text


# -- for real -------------------------------------------------------------------------------------------


def doctor(home: Path, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "doctor", "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", **environment},
    )
    return done, time.monotonic() - began


@pytest.mark.slow
def test_a_real_examination_of_a_damaged_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    # Without a compiler: the real one takes its time, and has a test of its own.
    done, seconds = doctor(home, "--json", PATH="", CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert seconds < 60
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    checks = {check["name"]: check for check in found["checks"]}
    assert [name for name, check in checks.items() if check["state"] == "fail"] == ["mlflow store"]
    assert not found["ok"]
    assert "no C compiler was found" in checks["compile"]["text"]
    ceilings = {each["name"]: each for each in found["ceilings"]}
    assert {"cpu.matmul_fp32", "cpu.memory_copy", "loader.rows", "home.disk_read"} <= ceilings.keys()
    assert not any(name.startswith("cuda") for name in ceilings)
    assert all(each["value"] > 0 for each in ceilings.values())
    assert ceilings["loader.whole_batches"]["value"] > 2 * ceilings["loader.rows"]["value"]
    # Nothing but the folder for compiled code is left, and that is empty.
    left = {str(path.relative_to(home)) for path in home.rglob("*")}
    assert left == {"mlflow.db", "cache", "cache/compile", "cache/compile/doctor"}


@pytest.mark.soak
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_a_real_examination_compiles_and_is_faster_the_second_time(tmp_path):
    home = tmp_path / "home"
    first, seconds = doctor(home, CUDA_VISIBLE_DEVICES="-1")
    again, later = doctor(home, CUDA_VISIBLE_DEVICES="-1")
    assert (first.returncode, again.returncode) == (0, 0), first.stdout + again.stdout
    assert (first.stderr, again.stderr) == ("", "")
    assert seconds < 60
    assert later < seconds
    assert "(cold cache)" in first.stdout
    assert "(warm cache)" in again.stdout
    assert first.stdout.startswith("This machine is fit for sweeps")
    assert "\x1b" not in first.stdout
