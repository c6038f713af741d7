"""The report that a user sends back: what it holds, and what it must not."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import stub_nvml

from sweeper.cli import doctor as examining
from sweeper.cli import main
from sweeper.core.measurement import Report
from sweeper.doctor import Check, Examination, State, examine, make_report
from sweeper.doctor.report import SCHEMA, clean_text
from sweeper.telemetry.nvml import capabilities
from sweeper.telemetry.nvml.capabilities import Capabilities
from sweeper.telemetry.nvml.devices import GpuFacts

USER, HOST, FOLDER, TOKEN = "jdoe-7731", "fuji-node-4410", "topsecret-thesis", "tok-9f8e7d6c5b4a39281706"
UUID = "GPU-5ec4e7aa-1234-4bbb-8ccc-0123456789ab"
VALUES = {
    "torch": {
        "version": "2.14.1+cu130",
        "cuda": "13.0",
        "problem": f"OSError: cannot map /home/{USER}/{FOLDER}/lib/libcudart.so",
        "arch_list": ["sm_80", "sm_90"],
    },
    "cpu": {"name": "CPU, 2 cores", "lacks": {}, "problem": "", "host_memory_gib": 23.5},
    "gpus": [{"name": "NVIDIA A10", "uuid": UUID, "capability": "8.6", "lacks": {}, "problem": f"at {UUID}"}],
    "loader": {"problem": f"FileNotFoundError: data/{FOLDER}/rows.npy"},
    "compile": {"device": "cuda", "seconds": 5.0, "cache": "warm", "problem": f"CppCompileError on {HOST}"},
    "ceilings": [{"name": "cuda:0.memory_copy", "value": 12.345, "unit": "GiB/s"}],
}


@pytest.fixture
def secretive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user, a host, a home and a token that must not leave this machine; returns the home."""
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, USER)
    monkeypatch.setenv("HOME", f"/home/{USER}")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setattr(capabilities, "PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUID)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{HOST}.example.org")
    monkeypatch.setattr(platform, "node", lambda: HOST)
    home = tmp_path / FOLDER / "mlruns"
    home.mkdir(parents=True)
    (home / "mlflow.db").write_bytes(b"no database " * 100)
    return home


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    library = stub_nvml.build(tmp_path)

    def play(*gpus: stub_nvml.Gpu, **how: object) -> None:
        stub_nvml.loaded(monkeypatch, library, stub_nvml.write(tmp_path / "scenario", gpus, **how))

    return play


def written(home: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(examining, "examine", lambda place: examine(place, measured=_measured))
    monkeypatch.setattr(sys, "argv", ["sweeper", "doctor", *arguments, "--home", str(home)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def _measured(cache: Path | None, num_gpus: int | None) -> Report:
    return Report(values=VALUES)


def test_nothing_private_leaves_the_machine(play, secretive, monkeypatch, tmp_path, capsys):
    play(stub_nvml.Gpu(UUID, processes=[(4100001, 512)]), cuda=13000)
    monkeypatch.chdir(tmp_path)
    assert written(secretive, monkeypatch, "--report") == 1
    said = capsys.readouterr().out
    # It is there, for the user to see.
    assert FOLDER in said
    assert (
        "Report:  sweeper-doctor.json. It holds these checks and figures and what NVML reports, but" in said
    )
    text = (tmp_path / "sweeper-doctor.json").read_text()
    for private in (
        USER,
        HOST,
        FOLDER,
        TOKEN,
        UUID,
        UUID.removeprefix("GPU-"),
        str(tmp_path),
        str(Path.home()),
    ):
        assert private not in text, private
    assert "5ec4e7aa" not in text
    assert not [value for value in os.environ.values() if len(value) >= 8 and value in text]


def test_it_holds_what_was_found_and_measured(play, secretive, monkeypatch, tmp_path):
    play(stub_nvml.Gpu(UUID, processes=[(4100001, 512)]).but(util_gpu=None), cuda=13000, driver="580.65.06")
    written(secretive, monkeypatch, "--report", str(tmp_path / "mine.json"))
    report = json.loads((tmp_path / "mine.json").read_text(), parse_constant=pytest.fail)
    assert report["schema"] == SCHEMA
    assert report["torch"]["version"] == "2.14.1+cu130"
    assert report["torch"]["problem"] == "OSError: cannot map <path>"
    assert report["packages"].keys() == {"torch", "optuna", "mlflow", "nvidia-ml-py"}
    assert [device["name"] for device in report["cuda"]] == ["NVIDIA A10"]
    (gpu,) = report["nvml"]["gpus"]
    assert (gpu["driver"], gpu["cuda_driver_version"], gpu["foreign"]) == ("580.65.06", "13.0", 1)
    assert gpu["power_w"]["default"] == 150
    assert "gpu_power_w" in gpu["series"]
    assert gpu["missing"]["gpu_util_pct"] == "not reported by this GPU (Not Supported)"
    assert {"gpu 0", "torch", "cuda:0", "home", "cores"} <= {check["name"] for check in report["checks"]}
    assert report["ceilings"] == [{"name": "cuda:0.memory_copy", "value": 12.345, "unit": "GiB/s"}]


def test_a_machine_without_a_gpu_has_a_report(monkeypatch, tmp_path):
    failed = Check(
        "measuring", State.FAIL, "boom (crash, in stage `cpu`). x = secret_function(7)", "see /tmp/x"
    )
    examination = Examination(checks=(failed,), ceilings=(), devices={}, seconds=1.0, problem="no library")
    report = make_report(examination)
    assert report["nvml"] == {"problem": "no library", "gpus": []}
    # What a job printed last may be code.
    assert report["checks"] == [
        {"name": "measuring", "state": "fail", "text": "boom (crash, in stage `cpu`)"}
    ]
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_other_processes_are_counted_and_not_named():
    gpu = GpuFacts(index=0, name="NVIDIA A10", uuid=UUID, foreign=(4711, 4712))
    examination = Examination(checks=(), ceilings=(), devices={}, seconds=1.0, gpus=(gpu,))
    asked: list[str] = []
    report = make_report(examination, lambda uuid: (asked.append(uuid), Capabilities())[1])
    assert asked == [UUID]
    (described,) = report["nvml"]["gpus"]
    assert described["foreign"] == 2
    assert "uuid" not in described


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("matmul at 12.3 GiB/s and 5k samples/s", "matmul at 12.3 GiB/s and 5k samples/s"),
        ("/dev/shm has 64 MiB", "/dev/shm has 64 MiB"),
        ("devices are/is: `is/are busy`", "devices <path>: `is/are busy`"),
        ("OSError: [Errno 2] '/mnt/my thesis' is gone", "OSError: [Errno 2] <path> is gone"),
        ("see ~/x.py:12, data/rows.csv", "see <path>, <path>"),
        ("CUDA_VISIBLE_DEVICES='GPU-1,0' hides all", "CUDA_VISIBLE_DEVICES=<value> hides all"),
        ("A_TOKEN=abc def", "A_TOKEN=<value> def"),
        (f"device {UUID} of MIG-GPU-5ec4/1/0", "device <uuid> of <uuid>"),
        ("made by jdoe on node-7", "made by <private> on <private>"),
        ("jdoes are many", "jdoes are many"),
        ("hf_abcdefghijklmnopqrstuvwx", "***"),
    ],
)
def test_texts_are_cleaned(text, cleaned):
    assert clean_text(text, {"jdoe", "node-7"}) == cleaned


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(examining, "examine", lambda home: pytest.fail("measured"))
    for place in (tmp_path, tmp_path / "none" / "report.json"):
        monkeypatch.setattr(sys, "argv", ["sweeper", "doctor", "--report", str(place)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        says = f"sweeper: `--report` must be a file in a folder that exists, but got {str(place)!r}.\n"
        assert capsys.readouterr().err == says


def test_with_json_only_json_goes_to_standard_output(play, secretive, monkeypatch, tmp_path, capsys):
    play(stub_nvml.Gpu(UUID))
    monkeypatch.chdir(tmp_path)
    written(secretive, monkeypatch, "--report", "--json")
    said = capsys.readouterr()
    assert json.loads(said.out).keys() == {"ok", "checks", "ceilings"}
    assert said.err.startswith("Report:  sweeper-doctor.json. ")
    assert (tmp_path / "sweeper-doctor.json").exists()
