"""sweeper as a user has it: from a wheel and as an editable install, started in an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SHIPPED = ("sweeper", "pipelines", "search_spaces")
NEEDED = (*SHIPPED, "pyproject.toml", "setup.py", "README.md", "LICENSE")

pytestmark = pytest.mark.slow

SMALL = {
    "data.rows": 3000,
    "search.trials": 2,
    "confirm.rounds": 0,
    "measure.window_seconds": 0.05,
    "measure.warmup_cap_seconds": 0.1,
    "measure.quality_samples": 4000,
    "measure.repeats": 1,
    "baseline.loader.num_workers": 1,
    "execution.gpus": 0,
}

MINE = """
from sweeper.trainer.pipeline import Pipeline
from pipelines.tabular import build, prepare
"""
BESIDE = """
from ._options import options
from .tabular import build, prepare

assert options("data", {}, {"a": 1}) == {"a": 1}
"""
DIGESTS = """
import json
from sweeper.core.modules import shipped_pipelines
from sweeper.sweep.folder.fingerprint import digest_of_code
print(json.dumps({name: digest_of_code(name) for name in shipped_pipelines()}))
"""


@dataclass(frozen=True)
class Installed:
    """An environment with sweeper in it.

    Attributes:
        pipelines: Where its shipped pipelines are.
        packages: Its site-packages.
        home: For state; sweeps leave nothing in the folder they are started in.
    """

    python: Path
    pipelines: Path
    packages: Path
    home: Path

    @property
    def is_wheel(self) -> bool:
        return self.pipelines.is_relative_to(self.packages)

    def run(self, *command: str, code: int = 0) -> str:
        """Runs a program of the environment in the current folder; returns what it printed."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.python.with_name(command[0])), *command[1:]],
            env={**environment, "SWEEPER_HOME": str(self.home), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def sweeper(self, *arguments: str, sets: Mapping[str, object] | None = None, code: int = 0) -> str:
        """Runs `sweeper ARGUMENTS`."""
        options = [part for key, value in (sets or {}).items() for part in ("--set", f"{key}={value}")]
        return self.run("sweeper", *arguments, *options, code=code)


def pip(*arguments: object) -> None:
    """Runs this environment's pip; it needs no network."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["wheel", pytest.param("editable", marks=pytest.mark.soak)])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp(request.param)
    source = folder / "source"
    source.mkdir()
    for name in NEEDED:
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, source)
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    packages = next((folder / "venv/lib").glob("python*")) / "site-packages"
    # What sweeper needs is in the environment of the tests.
    (packages / "needed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    here = ("--python", python)
    if request.param == "wheel":
        pip("wheel", *offline, "--wheel-dir", folder, source)
        (wheel,) = folder.glob("*.whl")
        pip(*here, "install", *offline, "--ignore-installed", wheel)
        shutil.rmtree(source)
        return Installed(python, packages / "sweeper/pipelines", packages, folder / "home")
    pip(*here, "install", *offline, "--ignore-installed", "--editable", source)
    return Installed(python, source / "pipelines", packages, folder / "home")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# A whole sweep for the wheel; what is its own for the editable install is met by the pipelines built below.
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_a_shipped_space_runs_by_its_name_and_leaves_nothing_in_the_folder(installed: Installed, here: Path):
    out = installed.sweeper("run", "quick", sets=SMALL)
    assert "quick" in out
    found = json.loads(installed.sweeper("show", "quick", "--json"))
    assert found["state"] == "finished"
    assert len(found["trials"]) == 3
    assert found["trials"][0]["stage"] == "baseline"
    assert found["baseline"]["metrics"]["val_loss"] > 0
    assert list(here.iterdir()) == []
    # Its templates, style and script are in the wheel.
    assert (installed.home / "sweeps/quick/report.html").read_text().startswith("<!doctype html>")


def test_spaces_are_listed_checked_and_written(installed: Installed, here: Path):
    assert "a10 " in installed.sweeper("spaces")
    assert "is valid: stocks-a10, pipelines.stocks" in installed.sweeper("check", "a10")
    installed.sweeper("init", "stocks")
    assert [path.name for path in here.iterdir()] == ["stocks.yaml"]
    assert "stocks.yaml is valid: stocks, pipelines.stocks" in installed.sweeper("check", "stocks")
    said = installed.sweeper("run", "quik", code=2)
    assert "Did you mean `quick`?" in said


def test_a_pipeline_of_the_users_own_runs_beside_the_shipped_ones(installed: Installed):
    Path("mine.py").write_text(MINE)
    Path("pipelines").mkdir()
    Path("pipelines/mine.py").write_text(BESIDE)
    # Where installations differ, in both; what does not depend on that, in one.
    for name in ("pipelines.mine", "mine" if installed.is_wheel else "pipelines.tabular"):
        out = installed.sweeper("check", "quick", "--deep", sets={"pipeline": name, **SMALL})
        assert f"quick, {name}" in out
        assert "The baseline" in out


def test_an_error_in_a_shipped_pipeline_is_told_with_its_file_and_line(installed: Installed):
    path = installed.pipelines / "tabular.py"
    text = path.read_text()
    line = '    raise KeyError("price")\n'
    start = text.index("def build(")
    at = text.index("\n    opt = ", start) + 1
    number = text[:at].count("\n") + 1
    path.write_text(text[:at] + line + text[at:])
    try:
        out = installed.sweeper("check", "quick", "--deep", sets=SMALL, code=1)
    finally:
        path.write_text(text)
    assert f"user_error: KeyError: 'price' ({path}:{number})" in out


def test_the_same_code_has_the_same_digest_here_and_in_the_repository(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
):
    found = installed.run("python", "-c", DIGESTS)
    assert len(json.loads(found)) == 6
    monkeypatch.chdir(REPOSITORY)
    assert installed.run("python", "-c", DIGESTS) == found


def test_matplotlib_is_an_extra(installed: Installed):
    code = "import importlib.metadata as m; print(*m.requires('sweeper-torch-core'), sep='\\n')"
    lines = installed.run("python", "-c", code).splitlines()
    extras = [line.partition(" extra == ")[2] for line in lines if line.startswith("matplotlib")]
    assert sorted(extras) == ['"dev"', '"figures"']


def test_no_package_of_a_general_name_is_installed(installed: Installed):
    code = "import importlib.util as u; print([u.find_spec(n) for n in ('pipelines', 'search_spaces')])"
    assert installed.run("python", "-c", code) == "[None, None]\n"
    assert not (installed.packages / "pipelines").exists()
