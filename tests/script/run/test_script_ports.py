"""Scripts side by side that each want a port for their process group."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from scripts import PLAN, job_of

from sweeper.core.job import write_job
from sweeper.core.measurement import Measurement
from sweeper.core.script import Script
from sweeper.script.run import ports
from sweeper.script.run.ports import reserved_port

HOLDS = """
import sys
from sweeper.script.run.ports import reserved_port
with reserved_port() as port:
    print(port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a port; the port is its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def few_ports(monkeypatch) -> range:
    """Ports of this test's own, on which nobody listens."""
    monkeypatch.setattr(ports, "PORTS", range(25000, 25003))
    return ports.PORTS


def test_no_two_have_the_same_port_and_when_one_ends_its_port_is_free(few_ports):
    with reserved_port() as first, reserved_port() as second:
        assert (first, second) == (25000, 25001)
        # What has it reserved can listen on it, in a process that it starts.
        socket.create_server(("", first)).close()
    with reserved_port() as again:
        assert again == 25000
    with contextlib.ExitStack() as stack:
        given = [stack.enter_context(reserved_port()) for _ in range(4)]
        assert given == [*few_ports, None]


def test_a_port_on_which_somebody_listens_is_passed_over(few_ports):
    with socket.create_server(("127.0.0.1", 25000)), reserved_port() as port:
        assert port == 25001


def test_a_port_is_anothers_until_its_process_is_gone_however_it_ends(holder):
    assert holder.stdout is not None
    theirs = int(holder.stdout.readline())
    with reserved_port() as ours:
        assert ours != theirs
    holder.kill()
    holder.wait()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        claim.bind(f"\0sweeper-port-{theirs}")


PRINTS = (
    "import os, time; print({name: os.environ.get(name) for name in ('PET_MASTER_PORT', 'MASTER_PORT')});"
    "[(time.sleep(0.01), print(f'step {i} loss 1.0')) for i in range(1, 100000)]"
)


@pytest.mark.parametrize(
    ("users", "own"),
    [({}, {}), ({"MASTER_PORT": "1234"}, {}), ({}, {"PET_MASTER_PORT": "4321", "MASTER_PORT": "4321"})],
    ids=["nobody", "the user", "the space"],
)
def test_a_script_has_a_port_of_its_own_unless_the_user_gave_it_one(run, tmp_path, users, own):
    script = Script(command=(sys.executable, "-c", "{code}"), env=own, samples_per_step="32")
    job = job_of(script, {"code": PRINTS}, env=users)
    assert isinstance(run(job), Measurement)
    said = re.search(r"\{.*\}", (tmp_path / "trial" / "worker.log").read_text())
    assert said is not None
    found = ast.literal_eval(said[0])
    for name in ports.PORT_VARIABLES:
        given = {**users, **own}.get(name)
        assert found[name] == given if given else int(found[name]) in ports.PORTS


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torchrun", "alone"])
def test_two_process_groups_run_side_by_side(launcher, tmp_path, how):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    through = ("-m", "torch.distributed.run", "--nproc-per-node=1") if how == "torchrun" else ()
    command = (sys.executable, *through, "distributed.py", str(meeting), "2")
    script = Script(command=command, unprotected=(str(meeting),))
    trials = []
    for name in ("one", "other"):
        job = job_of(script, {"batch_size": 32}, dataclasses.replace(PLAN, repeats=1))
        write_job(tmp_path / name, job)
        trials.append((tmp_path / name, launcher.submit(tmp_path / name)))
    found = []
    for folder, handle in trials:
        outcome = handle.result(timeout=90)
        assert isinstance(outcome, Measurement), outcome
        said = re.search(r"^.*port (\d+)$", (folder / "worker.log").read_text(), re.MULTILINE)
        assert said is not None
        found.append(int(said[1]))
    assert len({*found}) == 2
    assert all(port in ports.PORTS for port in found)
