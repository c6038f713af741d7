"""What a script does outside of its folder is reported where that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hearing import run

from sweeper.script import inside

ASKED = {inside.OUTSIDE_VARIABLE: "1"}
SCRIPT = """
import multiprocessing, os, pathlib, socket, subprocess, sys, tempfile
import torch

outside = pathlib.Path(sys.argv[1])
pathlib.Path("inside.txt").write_text("x")
torch.save({}, "inside.pt")
(outside / "data.csv").read_text()
(outside / ".cache").mkdir()
(outside / ".cache" / "module.bin").write_text("x")
tempfile.mkdtemp()
torch.save({}, outside / "checkpoint.pt")
with open(outside / "log.txt", "a") as log:
    log.write("x")
os.rename("inside.txt", outside / "moved.txt")
os.remove(outside / "old.txt")
open("linked/in_data.txt", "w").close()
for host in ("localhost", "tracker.invalid"):
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        pass
for command in (["sbatch-not-there"], ["/not/there/sbatch", "-c", "8", "job.sh"]):
    try:
        subprocess.run(command)
    except OSError:
        pass
subprocess.run("exit 0; ssh node1 true", shell=True)
subprocess.run("exit 0; docker run -v .:/work image", shell=True)
multiprocessing.Array("d", 3)
print("done")
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The script's folder, and another one."""
    own, outside = tmp_path / "own", tmp_path / "outside"
    for each in (own, outside, tmp_path / "tmp"):
        each.mkdir()
    (outside / "data.csv").write_text("1")
    (outside / "old.txt").write_text("1")
    (own / "linked").symlink_to(outside)
    (own / "train.py").write_text(SCRIPT)
    return own, outside


def reported(own: Path, outside: Path, environ: Mapping[str, str]) -> list[str]:
    found = run(
        [sys.executable, "train.py", str(outside)],
        {"TMPDIR": str(own.parent / "tmp"), **environ},
        folder=own,
    )
    assert (found.status, found.output) == (0, "done\n"), found.errors
    assert not any("failed" in each for each in found.messages)
    return next((each["outside"] for each in reversed(found.messages) if "outside" in each), [])


def test_writes_hosts_and_jobs_are_reported(folders: tuple[Path, Path]) -> None:
    own, outside = folders
    assert reported(own, outside, ASKED) == [
        f"writes to {outside}/checkpoint.pt",
        f"writes to {outside}/log.txt",
        f"writes to {outside}/moved.txt",
        f"writes to {outside}/old.txt",
        f"writes to {outside}/in_data.txt",
        "connects to tracker.invalid",
        "starts `sbatch`",
        "starts `ssh`",
        "starts `docker`",
    ]


def test_other_runs_report_none_of_it(folders: tuple[Path, Path]) -> None:
    assert reported(*folders, {}) == []


@pytest.mark.slow
def test_reports_are_few(folders: tuple[Path, Path]) -> None:
    own, outside = folders
    (own / "train.py").write_text(
        "import sys, torch\n"
        "for i in range(100):\n"
        "    open(f'{sys.argv[1]}/{i}.txt', 'w').close()\n"
        "    __import__('time').sleep(0.01)\n"
        "print('done')\n"
    )
    assert len(reported(own, outside, ASKED)) == 20
