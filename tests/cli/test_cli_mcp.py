"""`sweeper mcp`, driven by the official client: what an agent may do, and what it may not."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.cli.mcp import Runner

if importlib.util.find_spec("mcp") is None:
    pytest.skip("mcp is not installed (`make services`)", allow_module_level=True)

HERE = Path(__file__).parent
TRAINING = HERE.parent / "judging"
PATCH = "--- a/helper.py\n+++ b/helper.py\n@@ -1 +1 @@\n-PAUSE = 0.004\n+PAUSE = 0.002\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    for name in ("train.py", "helper.py"):
        shutil.copy(TRAINING / name, path)
    return path


@contextlib.asynccontextmanager
async def connected(folder: Path, *options: str) -> AsyncIterator[Any]:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    arguments = ["-m", "sweeper", "mcp", "--folder", str(folder), *options, "--", sys.executable, "train.py"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    async with Client(StdioServerParameters(command=sys.executable, args=arguments, env=env)) as client:
        yield client


async def asked(client: Any, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Returns whether a tool answered with an error, and its text."""
    found = await client.call_tool(tool, arguments)
    return bool(found.is_error), "".join(each.text for each in found.content)


def test_an_agent_sees_four_tools(folder: Path) -> None:
    async def talk() -> set[str]:
        async with connected(folder) as client:
            return {each.name for each in (await client.list_tools()).tools}

    assert asyncio.run(talk()) == {"watch", "tune", "judge", "show"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("judge", {}, "either `patch` or `ref`"),
        ("judge", {"patch": PATCH, "ref": "HEAD"}, "either `patch` or `ref`"),
        ("judge", {"patch": "x" * 300_000}, "at most 200,000 characters"),
        ("judge", {"patch": PATCH, "minutes": 1000}, "at most 10"),
        ("tune", {"minutes": -1}, "at most 10"),
        ("tune", {"minutes": "a lot"}, "minutes"),
        ("run", {"command": "rm -rf /"}, "run"),
    ],
)
def test_what_is_not_allowed_is_an_error(
    folder: Path, tool: str, arguments: dict[str, Any], why: str
) -> None:
    async def talk() -> str:
        async with connected(folder) as client:
            try:
                is_error, text = await asked(client, tool, **arguments)
            except Exception as error:
                return str(error)
            assert is_error
            return text

    assert why in asyncio.run(talk())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("judge", {"ref": "--output=stolen"}, "`--ref`"),
        ("judge", {"ref": "HEAD; touch stolen"}, "`--ref`"),
        ("judge", {"patch": "--- a/../x\n+++ b/../x\n@@ -0,0 +1 @@\n+stolen\n"}, "must apply"),
        ("judge", {"patch": "--- /dev/null\n+++ b//tmp/stolen\n@@ -0,0 +1 @@\n+stolen\n"}, "must apply"),
        ("show", {"name": "../../etc/passwd"}, "no sweep called"),
        ("show", {"name": "--home=/"}, "no sweep called"),
        ("show", {"name": "$(touch stolen)"}, "no sweep called"),
    ],
)
def test_a_hostile_argument_goes_nowhere(
    folder: Path, tool: str, arguments: dict[str, Any], why: str
) -> None:
    async def talk() -> str:
        async with connected(folder) as client:
            _, text = await asked(client, tool, **arguments)
            return text

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    text = asyncio.run(talk())
    assert why in text
    assert "(exit code 2)" in text
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in after} - {path.name for path in before} <= {"mlruns"}
    assert not list(folder.parent.rglob("*stolen*"))
    assert not Path("/tmp/stolen").exists()


@pytest.mark.slow
def test_a_thousand_requests_get_an_answer_each(folder: Path) -> None:
    async def talk() -> int:
        async with connected(folder) as client:
            count = 0
            for _ in range(10):
                found = await asyncio.gather(*(asked(client, "judge") for _ in range(100)))
                count += sum(is_error for is_error, _ in found)
            return count

    assert asyncio.run(talk()) == 1_000


@pytest.mark.soak
def test_a_tune_is_shown(folder: Path) -> None:
    async def talk() -> tuple[str, str]:
        async with connected(folder) as client:
            _, tuned = await asked(client, "tune", minutes=0.5)
            return tuned, (await asked(client, "show", name="tune-train"))[1]

    tuned, shown = asyncio.run(talk())
    assert "tune-train: " in tuned
    found = json.loads(shown)
    assert found["name"] == "tune-train"
    assert "baseline" in json.dumps(found)
    assert "trials" not in found


def test_of_a_long_answer_the_beginning_is_left_out(folder: Path) -> None:
    runner = Runner(folder=folder, command=("true",), max_minutes=1.0)
    text = asyncio.run(runner.run(["--help"], 0.5, max_chars=100))
    first, _, rest = text.partition("\n")
    assert first == "(the beginning is left out)"
    assert len(rest) == 100


@pytest.mark.slow
def test_a_script_is_watched_and_only_one_at_a_time(folder: Path) -> None:
    async def talk() -> tuple[str, tuple[bool, str]]:
        async with connected(folder) as client:
            first = asyncio.ensure_future(asked(client, "watch"))
            await asyncio.sleep(2)
            second = await asked(client, "judge", patch=PATCH)
            return (await first)[1], second

    text, second = asyncio.run(talk())
    found = json.loads(text[text.index("{") :])
    # It sleeps for 4 ms in each step.
    assert found["step_ms"] > 4.0
    assert second[0]
    assert "another measurement is running" in second[1]


@pytest.mark.soak
def test_a_patch_is_judged(folder: Path) -> None:
    async def talk() -> str:
        async with connected(folder) as client:
            return (await asked(client, "judge", patch=PATCH, minutes=0.3))[1]

    text = asyncio.run(talk())
    found = json.loads(text[text.index("{") :])
    assert (found["speed"], found["losses"]) == ("faster", "equal")
    assert found["low"] > 1.2
    assert found["before"]["memory_gib"] > 0
    assert (folder / "helper.py").read_text() == (TRAINING / "helper.py").read_text()


def test_without_the_package_it_says_what_to_install(folder: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'mcp' else find(name, *rest)\n"
        "import sweeper.__main__ as program\n"
        "sys.argv = sys.argv[1:]\n"
        "program.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "sweeper", "mcp", "--", "python", "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "pip install 'sweeper-torch[mcp]'" in done.stderr
