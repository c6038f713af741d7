"""The two distributions: the core with the code, and the whole, which brings what the core can use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sweeper
from sweeper.system.installed import CORE, WHOLE, missing_line

REPOSITORY = Path(__file__).parents[1]
WITHOUT = """
import sys
from importlib import import_module

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
for name in {modules}:
    import_module(name)
"""


def project(path: str) -> dict:
    return tomllib.loads((REPOSITORY / path).read_text())["project"]


def names(demands: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", demand)[0] for demand in demands}


def test_the_whole_is_the_core_with_all_that_it_can_use() -> None:
    core, whole = project("pyproject.toml"), project("distributions/sweeper-torch/pyproject.toml")
    assert core["name"] == CORE
    assert whole["version"] == sweeper.__version__
    assert whole["dependencies"] == [f"{CORE}[whole]=={sweeper.__version__}"]
    extras = core["optional-dependencies"].keys() - {"whole", "dev"}
    assert whole["optional-dependencies"] == {name: [f"{CORE}[{name}]"] for name in extras}
    assert names(core["optional-dependencies"]["whole"]) == WHOLE


@pytest.mark.parametrize(
    "command", ["watch", "tune", "judge", "exec", "show", "list", "export", "doctor", "mcp"]
)
def test_the_core_needs_nothing_of_the_whole(command: str) -> None:
    # With what runs a script, and the processes that hold its trials.
    others = ("sweeper.script.run.trial", "sweeper.worker.keeper", "sweeper.launch.server")
    text = WITHOUT.format(missing=sorted(WHOLE), modules=[f"sweeper.cli.{command}", *others])
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def closure(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yields a distribution and all that it requires without extras."""
    if canonicalize_name(name) in seen:
        return
    seen.add(canonicalize_name(name))
    distribution = metadata.distribution(name)
    yield distribution
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from closure(requirement.name, seen)


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """An environment with the core and what it requires; returns its `sweeper`."""
    site = tmp_path / "site"
    site.mkdir()
    for distribution in closure(CORE, set()):
        for path in {file.parts[0] for file in distribution.files or () if ".." not in file.parts}:
            source = Path(str(distribution.locate_file(path)))
            if source.exists() and not (site / path).exists():
                (site / path).symlink_to(source)
    venv.create(tmp_path / "core", symlinks=True)
    packages = next((tmp_path / "core" / "lib").glob("python*")) / "site-packages"
    (packages / "core.pth").write_text(f"{site}\n{REPOSITORY}\n")
    program = tmp_path / "core" / "bin" / "sweeper"
    program.write_text(f"#!{program.with_name('python')}\nfrom sweeper.__main__ import main\nmain()\n")
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_the_core_tunes_a_script_of_another_environment(core: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a prøject"
    folder.mkdir()
    (folder / "train.py").write_text((REPOSITORY / "benchmarks/unedited/mlp.py").read_text())
    (folder / ".venv").symlink_to(sys.prefix)
    environment = {
        "PATH": f"{core.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "COLUMNS": "200",
        "LANG": "C.UTF-8",
    }

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["sweeper", *words],
            executable=core,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )

    none = run("run", "quick")
    assert (none.returncode, none.stderr.count("\n")) == (2, 1), none.stderr
    assert "`pip install sweeper-torch`" in none.stderr
    done = run("tune", "--minutes", "0.3", "--", "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"`python` has no torch; using {folder}/.venv/bin/python" in done.stderr
    assert "`sweeper sync tune-train` sends them" in done.stdout
    shown = run("show", "tune-train")
    assert shown.returncode == 0, shown.stderr
    # A whole installation sends it, and draws its report.
    sent = subprocess.run(
        [sys.executable, "-m", "sweeper", "sync", "tune-train"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr


def test_what_needs_more_says_what_to_install() -> None:
    missing = ModuleNotFoundError("No module named 'optuna.trial'", name="optuna.trial")
    assert missing_line(missing) == (
        "optuna is not installed here. Install the whole of sweeper: `pip install sweeper-torch`"
    )
    for other in (ModuleNotFoundError("x", name="mine"), ModuleNotFoundError("x"), ValueError("optuna")):
        assert missing_line(other) == ""
