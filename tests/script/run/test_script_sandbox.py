"""The sandbox that a script runs in: where it may write, what happens to what it writes, what it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core.script import UNPROTECTED, Script
from sweeper.errors import UserError
from sweeper.script.inside import SITE
from sweeper.script.run import sandbox as sandboxes
from sweeper.script.run.sandbox import BeginAgainError, Sandbox, make_sandbox, remember, why_unguarded
from sweeper.system import landlock, seccomp

pytestmark = pytest.mark.skipif(bool(why_unguarded(Path("/"))), reason="this kernel guards nothing")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with code, results and data, a folder beside it, and one that a link leads to."""
    folder = tmp_path / "home" / "source"
    for name in ("train.py", "log.txt", "ckpt/last.pt", "../beside/x.txt", "../../far/y.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's")
    (folder / "linked").symlink_to("../../far")
    (folder / "data").mkdir()
    for i in range(2100):
        (folder / "data" / f"{i}").touch()
    return folder


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "_OPENED", {})


def run(box: Sandbox, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SITE}
    environment.update(box.environment(environment))
    process = box.start(box.translate(command), environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, output.decode())


def box_of(
    source: Path,
    *,
    values: dict[str, int] | None = None,
    cache: str = "",
    base: Path | None = None,
    **options,
) -> Sandbox:
    scratch = (base or source.parent.parent) / "scratch"
    scratch.mkdir(exist_ok=True)
    script = Script(command=("x",), folder=str(source), **options)
    return make_sandbox(script, values or {}, scratch / "work", scratch, cache)


@pytest.fixture
def box(source: Path) -> Iterator[Sandbox]:
    made = box_of(source)
    yield made
    made.close()
    made.remove()


def users(source: Path) -> dict[str, str]:
    """What is in the user's files."""
    folders = (source, source.parent / "beside", source.parent.parent / "far")
    return {str(path): path.read_text() for folder in folders for path in folder.rglob("*") if path.is_file()}


COMMANDS = (
    "echo new >> log.txt; cat log.txt",
    "echo new > data/0; cat data/0; test $(ls data | wc -l) = 2100",
    "mv log.txt log.old; echo new >> log.old; cat log.old",
    "rm data/3; echo new; test ! -e data/3; rmdir data/4 || test -e data/4",
)
MORE_COMMANDS = (
    "echo new > ckpt/last.pt; cat ckpt/last.pt",
    "cd data; echo new > 1; cat 1",
    "echo new > linked/y.txt; cat linked/y.txt",
    "echo new > ../beside/x.txt; cat ../beside/x.txt",
    "mkdir -p ckpt/a/b; echo new > ckpt/a/b/c; mv ckpt old; cat old/a/b/c",
    "ln -s log.txt again; echo new >> again; cat log.txt",
    "echo new > data/made; cat data/made",
    "sed -i 's/user/new/' log.txt; cat log.txt",
    "truncate -s 3 log.txt; echo new >> log.txt; cat log.txt",
    "chmod 600 log.txt; touch -d 2001-01-01 log.txt; stat -c 'new %a %Y' log.txt | grep 978",
    'python3 -c \'import os; os.remove("data/5"); print("new", os.listdir("data").count("5"))\' | grep 0',
    "echo new | dd of=log.txt conv=notrunc; cat log.txt",
)


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(pytest.param(command, marks=pytest.mark.slow) for command in MORE_COMMANDS)]
)
def test_what_a_script_writes_is_there_for_it_and_for_nobody_else(box: Sandbox, source: Path, command: str):
    before = users(source)
    times = {path: os.lstat(path).st_ctime_ns for path in before}
    done = run(box, "sh", "-ec", command)
    assert (done.returncode, "new" in done.stdout) == (0, True), done.stdout
    assert users(source) == before
    assert {path: os.lstat(path).st_ctime_ns for path in before} == times
    assert box.refused == []


def test_a_place_outside_is_refused_and_named(box: Sandbox, source: Path):
    done = run(box, "sh", "-c", f"echo new > {source}/made; echo new > {source.parent}/beside/x.txt")
    assert "Permission denied" in done.stdout
    assert box.refused == [f"{source}/made", f"{source.parent}/beside/x.txt"]
    assert box.describe_refused() == f"{source}/made, {source.parent}/beside/x.txt"


def test_modes_and_times_outside_are_refused_too(box: Sandbox, source: Path):
    log = source / "log.txt"
    before = (log.stat().st_mode, log.stat().st_ctime_ns)
    done = run(box, "sh", "-c", f"chmod 600 {log}; touch {log}; chmod 600 log.txt")
    assert done.stdout.count("ermission denied") == 2
    assert (log.stat().st_mode, log.stat().st_ctime_ns) == before
    code = "import os; d = os.open('data/0', os.O_RDONLY); os.fchmod(d, 0o600)"
    assert "PermissionError" in run(box_of(source), sys.executable, "-c", code).stdout
    assert (source / "data" / "0").stat().st_mode & 0o777 == 0o644


def test_absolute_paths_of_the_command_lead_into_the_mirror(box: Sandbox, source: Path):
    code = "import sys; open(sys.argv[1], 'w').write('new'); print(open(sys.argv[2].split('=')[1]).read())"
    done = run(box, sys.executable, "-c", code, f"{source}/made.txt", f"--in={source}/log.txt")
    assert done.stdout == "the user's\n"
    assert (box.folder / "made.txt").read_text() == "new"
    assert not (source / "made.txt").exists()


def test_the_program_of_a_virtual_environment_stays_the_same(box: Sandbox, source: Path):
    (source / "env" / "bin").mkdir(parents=True)
    (source / "env" / "pyvenv.cfg").touch()
    assert box.translate(["env/bin/python", "train.py"]) == [f"{source}/env/bin/python", "train.py"]


def test_a_link_that_the_script_resolves_itself_is_copied_when_it_begins_again(source: Path):
    code = "import os; open(os.path.realpath('log.txt'), 'w').write('new'); print(open('log.txt').read())"
    box = box_of(source)
    assert "PermissionError" in run(box, sys.executable, "-c", code).stdout
    with pytest.raises(BeginAgainError) as again:
        box.check()
    assert again.value.place == source / "log.txt"
    cache = source.parent.parent / "cache"
    cache.mkdir()
    remember(source, str(cache), again.value.place)
    sandboxes._OPENED.clear()
    box = box_of(source, cache=str(cache))
    assert run(box, sys.executable, "-c", code).stdout == "new\n"
    box.check()
    assert (source / "log.txt").read_text() == "the user's"


def test_a_place_that_no_mirror_has_does_not_begin_again(box: Sandbox, source: Path):
    run(box, "sh", "-c", f"echo new > {source}/made")
    assert box.refused == [f"{source}/made"]
    box.check()


def test_what_is_unprotected_is_written(source: Path, monkeypatch: pytest.MonkeyPatch):
    box = box_of(source, unprotected=("ckpt",))
    assert run(box, "sh", "-c", "echo new > ckpt/last.pt; echo new > log.txt").returncode == 0
    assert (source / "ckpt" / "last.pt").read_text() == "new\n"
    assert (source / "log.txt").read_text() == "the user's"
    monkeypatch.setenv(UNPROTECTED, f"{source}/log.txt\n{source}/ckpt")
    run(box_of(source), "sh", "-c", "echo again > log.txt")
    assert (source / "log.txt").read_text() == "again\n"
    monkeypatch.setenv(UNPROTECTED, str(source))
    box = box_of(source)
    assert (box.folder, box.is_the_folder) == (source, True)


def test_a_temporary_folder_above_the_users_is_not_the_scripts(source: Path, tmp_path: Path):
    code = "import tempfile; print(tempfile.gettempdir()); open('/dev/null', 'w'); open('/dev/shm/x', 'w')"
    box = box_of(source)
    environment = dict(os.environ)
    folder = box.environment(environment)["TMPDIR"]
    assert run(box, sys.executable, "-c", code).stdout == f"{folder}\n"
    Path("/dev/shm/x").unlink()
    assert run(box, "touch", str(tmp_path / "x")).returncode == 1
    box.close()
    assert not Path(folder).exists()


def test_missing_caches_are_sweepers_own(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    torch_home = tmp_path / "home" / ".cache" / "torch"
    assert "TORCH_HOME" not in box_of(source).environment(os.environ)
    kept = box_of(source, cache=str(tmp_path / "cache")).environment(os.environ)["TORCH_HOME"]
    assert Path(kept).is_relative_to(tmp_path / "cache")
    torch_home.mkdir(parents=True)
    box = box_of(source)
    assert "TORCH_HOME" not in box.environment(os.environ)
    assert run(box, "touch", str(torch_home / "weights"), str(tmp_path / "home" / "x")).returncode == 1
    assert (torch_home / "weights").exists()
    assert not (tmp_path / "home" / "x").exists()


def test_a_cache_may_be_written_where_its_variable_says(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "elsewhere" / "uv"
    cache.mkdir(parents=True)
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    assert run(box_of(source), "touch", str(cache / "lock"), str(cache.parent / "x")).returncode == 1
    assert (cache / "lock").exists()
    assert not (cache.parent / "x").exists()


def test_the_home_is_a_mirror_too(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    (home / ".config").mkdir()
    (home / "notes.txt").write_text("the user's")
    monkeypatch.setenv("HOME", str(home))
    box = box_of(source)
    words = (
        "mkdir ~/.config/x; echo new > ~/notes.txt; cat ~/notes.txt; cd ~/source; echo new > log.txt; pwd -P"
    )
    done = run(box, "sh", "-ec", words)
    assert done.stdout.split() == ["new", str(box.folder)]
    assert (box.folder / "log.txt").read_text() == "new\n"
    assert (home / "notes.txt").read_text() == "the user's"
    assert not any((home / ".config").iterdir())
    box.remove()
    assert {path.name for path in (tmp_path / "scratch").iterdir()} <= {"tmp"}
    (home / "train.py").touch()
    box = box_of(home, base=tmp_path)
    assert box.environment({"HOME": str(home)})["HOME"] == str(box.folder)


def test_a_daemon_that_outlives_the_script_writes_nothing(box: Sandbox, source: Path):
    run(box, "sh", "-c", "(sleep 0.3; echo new > ckpt/last.pt; echo new > made) >/dev/null 2>&1 &")
    box.close()
    time.sleep(0.5)
    assert (source / "ckpt" / "last.pt").read_text() == "the user's"
    assert not (source / "made").exists()


def test_terminals_may_be_written_and_disks_may_not(tmp_path: Path):
    names = {str(path) for path in sandboxes._devices(Path("/dev"))}
    assert {"/dev/null", "/dev/zero", "/dev/full", "/dev/pts", "/dev/tty"} <= names
    assert "/dev/shm" not in names
    assert not any(Path(name).is_block_device() for name in names)


def test_no_descriptor_of_the_users_is_handed_on(box: Sandbox, source: Path):
    with open(source / "log.txt", "a", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        done = run(box, "sh", "-c", f"echo new >&{file.fileno()}")
    assert done.returncode != 0
    assert (source / "log.txt").read_text() == "the user's"


def test_this_process_may_still_write_everywhere(box: Sandbox, source: Path):
    run(box, "true")
    assert os.getcwd() != str(box.folder)
    (source / "log.txt").write_text("the user's")
    (source / "made").touch()


def test_what_cannot_be_started_is_named(box: Sandbox):
    with pytest.raises(FileNotFoundError):
        run(box, "no-such-program")


def test_the_oldest_landlock_promises_the_same(source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(landlock, "version", lambda: 1)
    box = box_of(source)
    code = f"""
import os
os.makedirs("a/b"); open("a/x", "w").write("new"); os.rename("a/x", "a/b/y"); print(open("a/b/y").read())
for change in (lambda: os.truncate("{source}/log.txt", 0), lambda: os.rename("a/b/y", "{source}/log.txt"),
               lambda: os.open("{source}/log.txt", os.O_RDONLY | os.O_TRUNC)):
    try:
        change()
    except PermissionError:
        print("refused")
"""
    assert run(box, sys.executable, "-c", code).stdout.split() == ["new", *3 * ["refused"]]
    assert (source / "log.txt").read_text() == "the user's"


def test_inside_of_another_sandbox_the_folder_is_copied(source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(seccomp, "is_available", lambda: False)
    assert "filtered" in why_unguarded(source)
    box = box_of(source)
    assert (
        run(box, "sh", "-c", f"echo new > log.txt; cat log.txt; echo new > {source}/log.txt").returncode == 2
    )
    assert (source / "log.txt").read_text() == "the user's"


def test_without_landlock_the_folder_is_copied(source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert "Landlock" in why_unguarded(source)
    box = box_of(source)
    assert run(box, "sh", "-c", "echo new > log.txt; echo new > data/0").returncode == 0
    assert (source / "log.txt").read_text() == "the user's"
    assert (source / "data" / "0").read_text() == ""


def test_shared_memory_must_be_written_by_all():
    assert "/dev/shm" in why_unguarded(Path("/dev/shm/project"))


def test_files_are_written_from_templates_never_through_a_link(source: Path):
    files = {"log.txt": "size: {size}", "new/config.yaml": "{size}"}
    box = box_of(source, files=files, values={"size": 3})
    assert (box.folder / "log.txt").read_text() == "size: 3"
    assert (source / "log.txt").read_text() == "the user's"
    assert (box.folder / "new" / "config.yaml").read_text() == "3"
    with pytest.raises(UserError, match="leads through a link"):
        box_of(source, files={"linked/run.yaml": "3"})
    assert not (source / "linked" / "run.yaml").exists()


def test_working_here_removes_nothing(source: Path):
    box = box_of(source, workdir="here")
    assert box.folder == source
    assert run(box, "touch", "made").returncode == 0
    box.remove()
    assert (source / "made").exists()


def test_places_in_a_mirror_are_given_from_its_folder(source: Path):
    box = box_of(source)
    assert box.mirror is not None
    root, installed = box.mirror.root, str(source / "sub" / "helper.py:4")
    facts = {
        "threads": 2,
        "places": {
            "loader": f"{root}/source/sub/data.py:3",
            "optimizer": f"{root}/common.py:9",
            "x": installed,
        },
    }
    places = {"loader": "sub/data.py:3", "optimizer": "../common.py:9", "x": installed}
    assert box.relative_facts(facts) == {"threads": 2, "places": places}
    assert box.relative_facts({"threads": 2}) == {"threads": 2}
