"""How the hook gets into a process, and where it cannot: the process runs as it is."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import hearing
import pytest
from services.processes import free_ports

from sweeper.script import inside
from sweeper.script.metering import METER_VARIABLE
from sweeper.script.run.sandbox import INSTEAD_OF

# Of interpreters that begin anew: how they begin is the point.
run = functools.partial(hearing.run, is_forked=False)

TORCHLESS = "import sys; print('_sweeper' in sys.modules, [p for p in sys.path if 'inside' in p])"
# A step by hand: an optimizer would import the compiler, which takes as long as torch itself.
TINY = textwrap.dedent("""
    import torch
    w = torch.nn.Linear(2, 1)
    for _ in range(50):
        w.zero_grad(); w(torch.randn(4, 2)).sum().backward()
        for p in w.parameters(): p.data.add_(p.grad, alpha=-0.1)
    print("done")
""")

# As setuptools writes it.
FINDER = textwrap.dedent("""
    import sys
    from importlib.util import spec_from_file_location
    MAPPING = {mapping}
    NAMESPACES = {{}}
    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name in MAPPING:
                return spec_from_file_location(name, MAPPING[name] + "/__init__.py")
    def install():
        sys.meta_path.append(Finder)
""")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("entry") / "tiny.py"
    path.write_text(TINY)
    return path


def steps(found):
    assert found.status == 0, found.errors
    return next((each["steps"] for each in reversed(found.messages) if "steps" in each), 0)


def test_a_script_without_torch_has_nothing_of_it(tmp_path):
    found = run([sys.executable, "-c", TORCHLESS])
    assert (found.output, found.messages) == ("False []\n", [])


def test_the_sitecustomize_names_variables_and_modes_as_sweeper_does():
    code = Path(inside.SITE, "sitecustomize.py").read_text()
    for name in (METER_VARIABLE, inside.HOOK_VARIABLE, inside.EXECUTE, INSTEAD_OF):
        assert f'"{name}"' in code


def test_the_hidden_sitecustomize_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['THEIRS'] = 'ran'")
    code = "import os, sys, sitecustomize; print(os.environ['THEIRS'], sitecustomize.__file__)"
    found = run([sys.executable, "-c", code], {"PYTHONPATH": str(tmp_path)})
    assert found.output == f"ran {tmp_path / 'sitecustomize.py'}\n"


@pytest.mark.parametrize("installed", ["path", "pth", "finder"])
def test_what_is_installed_from_a_folder_comes_from_its_mirror(tmp_path, installed):
    """As after `pip install -e`: the folder is on the path, in a .pth file, or known to a finder."""
    for place in ("repository", "mirror"):
        (tmp_path / place / "src" / "library").mkdir(parents=True)
        (tmp_path / place / "src" / "library" / "__init__.py").write_text(f"WHERE = {place!r}")
    source, environment = str(tmp_path / "repository" / "src"), tmp_path / "repository" / ".venv"
    # Its environment is in the folder, too, and is not mirrored.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "other.py").write_text("")
    environ = {**os.environ, "PYTHONPATH": inside.SITE}
    if installed == "path":
        environ["PYTHONPATH"] += os.pathsep + source
    elif installed == "pth":
        (packages / "library.pth").write_text(source)
    else:
        (packages / "library.pth").write_text("import __editable___library_finder as f; f.install()")
        mapping = {"library": f"{source}/library"}
        (packages / "__editable___library_finder.py").write_text(FINDER.format(mapping=mapping))

    def where() -> str:
        code = "import library, other; print(library.WHERE)"
        command = [environment / "bin" / "python", "-c", code]
        return subprocess.run(command, env=environ, capture_output=True, text=True).stdout

    assert where() == "repository\n"
    environ["SWEEPER_INSTEAD_OF"] = f"{tmp_path / 'repository'}\n{tmp_path / 'mirror'}"
    assert where() == "mirror\n"


def test_a_broken_sitecustomize_is_reported_as_ever(tmp_path, script):
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')")
    environ = {"PYTHONPATH": str(tmp_path)}
    found = run([sys.executable, str(script)], environ)
    assert steps(found) == 50
    plain = run([sys.executable, "-c", "pass"], environ, with_hook=False)
    assert plain.errors == found.errors != ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "{script}"],
        [sys.executable, "-m", "tiny"],
        ["sh", "-c", "exec {python} {script}"],
        ["make", "--eval=all:;@{python} {script}"],
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '{script}'])"],
        [
            sys.executable,
            "-c",
            "import importlib.util as u; u.find_spec('torch'); exec(open('{script}').read())",
        ],
    ],
    ids=["python", "module", "shell", "make", "child", "looked for first"],
)
def test_ways_in(command, script):
    filled = [each.replace("{script}", str(script)).replace("{python}", sys.executable) for each in command]
    assert steps(run(filled, folder=script.parent)) == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["uv", "run", "--no-project", "--python", sys.executable, "{script}"],
        ["accelerate", "launch", "--cpu", "{script}"],
        pytest.param(
            ["deepspeed", "--num_gpus", "1", "--master_port", "{port}", "{script}"], marks=pytest.mark.soak
        ),
        pytest.param(
            ["fabric", "run", "--accelerator", "cpu", "--devices", "1", "{script}"], marks=pytest.mark.soak
        ),
        ["jupyter", "nbconvert", "--to", "notebook", "--execute", "tiny.ipynb", "--output", "ran.ipynb"],
    ],
    ids=["uv", "accelerate", "deepspeed", "fabric", "notebook"],
)
def test_ways_in_of_other_tools(command, script, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    cell = {"cell_type": "code", "metadata": {}, "source": TINY, "outputs": [], "execution_count": None}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    notebook = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    script.with_suffix(".ipynb").write_text(json.dumps(notebook))
    filled = [
        each.replace("{script}", str(script)).replace("{port}", str(free_ports(1)[0])) for each in command
    ]
    assert steps(run(filled, {"DS_ACCELERATOR": "cpu"}, folder=script.parent)) == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-I", "{script}"],
        [sys.executable, "-S", "{script}"],
        [sys.executable, "-E", "{script}"],
        ["env", "-i", sys.executable, "{script}"],
        ["sh", "-c", "PYTHONPATH=. {python} {script}"],
    ],
    ids=["-I", "-S", "-E", "env -i", "PYTHONPATH=."],
)
def test_where_it_cannot_get_in_the_script_runs_as_it_is(command, script):
    filled = [each.replace("{script}", str(script)).replace("{python}", sys.executable) for each in command]
    found = run(filled, folder=script.parent)
    if "-S" in command:
        assert found.status in (0, 1)  # Without site-packages there may be no torch.
        return
    assert (steps(found), found.output) == (0, "done\n")


@pytest.mark.slow
def test_a_point_of_torch_that_is_gone_leaves_the_script_alone(tmp_path, script):
    broken = tmp_path / "broken.py"
    broken.write_text("import torch.optim.optimizer as o\n" + TINY)
    code = textwrap.dedent(f"""
        import sys, torch.utils.data.dataloader as d
        del d._BaseDataLoaderIter
        from _sweeper.inside import hook
        hook.install(torch)
        exec(open({str(script)!r}).read())
    """)
    found = run([sys.executable, "-c", code.replace("import sys, torch", "import sys, torch, torch")])
    assert found.status == 0, found.errors
    assert any("_BaseDataLoaderIter" in each for each in found.watched.failures)


@pytest.mark.slow
def test_an_observation_that_raises_ends_the_watching_and_nothing_else(script):
    code = textwrap.dedent(f"""
        import torch
        from _sweeper.inside.samples import SampleCounter
        def broken(self, *_): raise KeyError("ours")
        SampleCounter.count_step = broken
        before = torch.autograd.backward
        exec(open({str(script)!r}).read())
        assert torch.autograd.backward is not before
    """)
    found = run([sys.executable, "-c", code])
    assert (found.status, found.output) == (0, "done\n"), found.errors
    assert found.watched.failures == ["KeyError: 'ours'"]


def test_a_path_of_the_users_stays_behind_ours():
    found = inside.environment({"PYTHONPATH": "/theirs"})
    assert found["PYTHONPATH"] == f"{inside.SITE}{os.pathsep}/theirs"
    # An empty entry would be the current folder.
    assert inside.environment({"PYTHONPATH": ""})["PYTHONPATH"] == inside.SITE


def test_it_costs_a_script_without_torch_less_than_two_milliseconds():
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environ |= inside.environment(environ) | {"SWEEPER_METER": "nobody"}
    command = [sys.executable, "-X", "importtime", "-c", "import argparse, json, logging"]
    found = []
    for _ in range(5):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        # The hidden one, which may be none, is imported inside of it.
        lines = [line for line in done.stderr.splitlines() if line.endswith("sitecustomize")]
        found.append(int(lines[-1].split("|")[1]))
    assert min(found) < 2000


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13"])
def test_it_loads_in_other_pythons(version):
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    known = [*pyenv.glob(f"versions/{version}.*/bin/python"), shutil.which(f"python{version}") or "false"]
    # What pyenv puts into the PATH may lead nowhere.
    python = next((path for path in known if not subprocess.run([path, "-c", ""]).returncode), None)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    package = Path(inside.__file__).parents[1]
    code = textwrap.dedent(f"""
        import sys
        package = sys.modules["_sweeper"] = type(sys)("_sweeper")
        package.__path__ = [{str(package)!r}]
        from _sweeper.inside import hook
    """)
    subprocess.run([python, "-B", "-I", "-c", code], check=True)
