"""Which folder a command works on: the fingerprint, --new, --extend, and a home that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from replays import PIPELINE, Bench, failing, spec_of, surface

from sweeper.core.measurement import FailureKind
from sweeper.errors import EnvironmentStopError, SweepConflictError, UserError
from sweeper.sweep.folder.catalog import all_sweeps, find_sweep
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.lock import SweepLock
from sweeper.sweep.workloads import fingerprint
from sweeper.system.files import cannot_write

CHANGED = PIPELINE.replace("return {}", "return {'rows': 1}")


class Killed(BaseException):
    pass


def cut_off(bench: Bench, searched: int = 3, **changes) -> None:
    left = [2 + searched]

    def answer(config):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return surface(config)

    with pytest.raises(Killed):
        bench.run(answer=answer, **changes)


def names(bench: Bench) -> set[str]:
    return {path.name for path in (bench.home / "sweeps").iterdir()}


def searched(bench: Bench, name: str = "toy") -> int:
    return sum(e.job.stage == "search" for e in Journal(bench.home / "sweeps" / name).trials())


def test_a_comment_changes_nothing(bench):
    cut_off(bench)
    Path("toy_pipeline.py").write_text("# Another comment.\n" + PIPELINE.replace("):\n", "):  # here\n"))
    bench.run()
    assert bench.watcher.lines[0] == "Continuing `toy`: 5 trials are done."
    assert names(bench) == {"toy"}


def test_changed_code_under_an_unfinished_sweep_is_refused(bench):
    cut_off(bench)
    before = {path: path.read_bytes() for path in bench.home.rglob("*.json")}
    Path("toy_pipeline.py").write_text(CHANGED)
    with pytest.raises(SweepConflictError, match=r"`toy` is unfinished.*\(code: .* -> .*\).*--new"):
        bench.run()
    assert {path: path.read_bytes() for path in bench.home.rglob("*.json")} == before
    Path("toy_pipeline.py").write_text(PIPELINE)
    assert bench.run().was_run


def test_the_refusal_names_each_key_with_both_values(bench):
    cut_off(bench)
    changed = spec_of(constraints={"val_loss": {"max_ratio_to_baseline": 1.1}})
    with pytest.raises(
        SweepConflictError, match=r"constraints.val_loss.max_ratio_to_baseline: 1.02 -> 1.1\)"
    ):
        bench.run(changed)


def test_new_begins_a_sweep_of_its_own_which_the_plain_command_then_continues(bench):
    cut_off(bench)
    Path("toy_pipeline.py").write_text(CHANGED)
    cut_off(bench, new=True)
    assert bench.watcher.lines[0] == "`toy` is a different sweep, so this one is called `toy-2`."
    assert names(bench) == {"toy", "toy-2"}
    bench.run()
    assert bench.watcher.lines[0] == "Continuing `toy-2`: 5 trials are done."
    assert (searched(bench), searched(bench, "toy-2")) == (4, 8)  # The fourth was cut off.
    Path("toy_pipeline.py").write_text(PIPELINE)
    bench.run()
    assert bench.watcher.lines[0] == "Continuing `toy`: 5 trials are done."


def test_new_of_an_unchanged_finished_sweep(bench):
    bench.run()
    assert bench.run(new=True).journal.name == "toy-2"
    assert searched(bench, "toy-2") == 8


def test_a_finished_sweep_is_kept_and_the_changed_one_is_called_otherwise(bench):
    bench.run()
    folder = bench.home / "sweeps"
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    Path("toy_pipeline.py").write_text(CHANGED)
    assert bench.run().journal.name == "toy-2"
    assert bench.watcher.lines[0] == "`toy` is a different sweep, so this one is called `toy-2`."
    assert (
        before.items()
        <= {path: path.read_bytes() for path in (bench.home / "sweeps").rglob("*.json")}.items()
    )
    assert not bench.run().was_run
    Path("toy_pipeline.py").write_text(PIPELINE)
    again = bench.run()
    assert not again.was_run
    assert again.journal.name == "toy"


def test_without_any_measurement_it_starts_anew(bench):
    left = failing(FailureKind.USER_ERROR)

    def killed_at_once(config):
        raise Killed

    with pytest.raises(Killed):
        bench.run(answer=killed_at_once)
    Path("toy_pipeline.py").write_text(CHANGED)
    bench.run(answer=left)
    assert bench.watcher.lines[0] == "The earlier `toy` has no measurements, so it starts over."
    assert names(bench) == {"toy"}
    assert searched(bench) == 8


def test_what_starts_anew_is_removed_before_another_supervisor_may_begin(bench, monkeypatch):
    bench.run()
    folder = bench.home / "sweeps/toy"
    for path in ("result.json", *(f"trials/{name}/outcome.json" for name in os.listdir(folder / "trials"))):
        (folder / path).unlink()
    Path("toy_pipeline.py").write_text(CHANGED)
    left: list[bool] = []
    release = SweepLock.release

    def noted(lock: SweepLock) -> None:
        left.append((folder / "sweep.yaml").exists())
        release(lock)

    monkeypatch.setattr(SweepLock, "release", noted)
    bench.run()
    # The second time is the end of the new sweep.
    assert left == [False, True]


def test_extend_adds_trials_and_confirms_anew(bench):
    bench.run()
    first = {path.name for path in (bench.home / "sweeps/toy/trials").iterdir()}
    assert bench.run(extend=3).was_run
    assert len(bench.jobs("search")) == 3
    assert len(bench.jobs("race")) == 9
    assert searched(bench) == 11
    assert first < {path.name for path in (bench.home / "sweeps/toy/trials").iterdir()}
    assert not bench.run().was_run


def test_an_extension_that_was_cut_off_ends_where_it_was_to_end(bench):
    bench.run()
    left = [2]

    def answer(config):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return surface(config)

    with pytest.raises(Killed):
        bench.run(answer=answer, extend=5)
    assert searched(bench) == 11
    bench.run(extend=5)  # The same command again.
    assert searched(bench) == 13
    assert not bench.run().was_run


def test_an_extension_has_no_limit_in_time(bench):
    spec = spec_of(search={"minutes": 1e-5})
    bench.run(spec)
    before = searched(bench)
    assert before < 8
    bench.run(spec, extend=4)
    assert searched(bench) == before + 4


def test_extending_what_has_not_ended_is_said_to_have_no_effect(bench):
    cut_off(bench)
    bench.run(extend=5)
    assert "`toy` has not finished yet, so --extend has no effect." in bench.watcher.lines
    assert searched(bench) == 8


def test_a_missing_pipeline_is_the_users_mistake(bench):
    with pytest.raises(UserError, match=r"there is no toy_other\.py in "):
        bench.run(spec_of(pipeline="toy_other"))
    assert not bench.home.exists()


def test_a_missing_data_path_is_the_users_mistake(bench):
    with pytest.raises(UserError, match=r"`data.path` must exist, but got 'nowhere'"):
        bench.run(spec_of(data={"path": "nowhere"}))


def test_the_fingerprint_follows_imports_absolute_and_relative(bench):
    Path("deep").mkdir()
    for name, text in {
        "__init__": "from . import one\nfrom .two import value\nimport numpy\n",
        "one": "",
        "two": "from deep.three import value\n",
        "three": "value = 1\n",
        "unused": "value = 1\n",
    }.items():
        Path(f"deep/{name}.py").write_text(text)
    spec = spec_of(pipeline="deep")
    seen = {fingerprint(spec, "cpu")["code"]}
    for name in ("__init__", "one", "two", "three"):
        path = Path(f"deep/{name}.py")
        path.write_text(path.read_text() + "\nother = 2\n")
        code = fingerprint(spec, "cpu")["code"]
        assert code not in seen, name
        seen.add(code)
    Path("deep/unused.py").write_text("value = 2\n")
    assert fingerprint(spec, "cpu")["code"] in seen


def test_a_pipeline_that_is_not_python(bench):
    Path("toy_pipeline.py").write_text("def prepare(:\n")
    with pytest.raises(UserError, match=r"toy_pipeline\.py:1: .* must be Python"):
        bench.run()


def test_changed_data_changes_the_fingerprint(bench):
    Path("data").mkdir()
    Path("data/a.csv").write_text("1")
    spec = spec_of(data={"path": "data"})
    first = fingerprint(spec, "cpu")
    assert differences(first, json.loads(json.dumps(fingerprint(spec, "cpu")))) == []
    Path("data/b.csv").write_text("1")
    (line,) = differences(first, fingerprint(spec, "cpu"))
    assert line.startswith("data.files: ")


def test_finding_sweeps(bench):
    assert all_sweeps(bench.home) == []
    with pytest.raises(UserError, match=r"no sweep called 'toy' .*`sweeper run SPACE.yaml` starts one"):
        find_sweep(bench.home, "toy")
    bench.run()
    bench.run(new=True)
    assert [journal.name for journal in all_sweeps(bench.home)] == ["toy-2", "toy"]
    assert find_sweep(bench.home, "toy").name == "toy"
    with pytest.raises(UserError, match=r"Did you mean `toy`\?"):
        find_sweep(bench.home, "tay")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EROFS, "--home"), (errno.EACCES, "--home")],
)
def test_a_disk_that_takes_no_more_is_one_line(number, remedy):
    text = str(cannot_write(OSError(number, "why"), Path("/x")))
    assert "cannot write in /x: why" in text
    assert remedy in text
    assert "\n" not in text


def test_a_disk_that_fills_up_in_the_middle_keeps_what_was_measured(bench, monkeypatch):
    from sweeper.system import files

    real, left = files.os.fsync, [60]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(EnvironmentStopError, match="No space left on device"):
            bench.run()
    assert not list(bench.home.rglob("*.tmp"))
    assert bench.run().was_run
    assert searched(bench) == 8


FULL = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from replays import Bench
from sweeper.errors import EnvironmentStopError
bench = Bench(Path("mounted/home"))
if {fill}:
    with open("mounted/filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
try:
    bench.run()
except EnvironmentStopError as error:
    print(error)
left = [str(path) for path in Path("mounted").rglob("*") if path.is_file() and path.name != "filler"]
print("left:", left)
"""


@pytest.mark.parametrize(
    ("options", "says"),
    [("size=256k", "No space left on device"), ("size=256k,ro", "Read-only file system")],
)
def test_a_full_and_a_read_only_file_system_at_the_start(bench, options, says):
    """Real ones, mounted in a namespace of our own."""
    Path("mounted").mkdir()
    script = FULL.format(paths=[str(Path(__file__).parents[2])], fill="ro" not in options)
    Path("script.py").write_text(textwrap.dedent(script))
    command = f"mount -t tmpfs -o {options} none mounted && exec {sys.executable} script.py"
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, left = done.stdout.splitlines()
    assert says in first
    assert first.startswith("cannot write in ")
    assert left == "left: []"


def test_a_sweep_of_an_earlier_version_is_neither_continued_nor_removed(bench: Bench):
    folder = bench.home / "sweeps" / "toy"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("about: {}\n")
    with pytest.raises(SweepConflictError, match="only that version can continue it"):
        bench.run()
    assert bench.run(new=True).journal.name == "toy-2"
    # From now on, it is in no one's way.
    assert bench.run(spec_of(search={"trials": 1, "seed": 7})).journal.name == "toy-3"
    assert (folder / "sweep.yaml").read_text() == "about: {}\n"
