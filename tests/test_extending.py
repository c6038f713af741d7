"""The parts that docs/extending.md shows, run as printed from a folder that is not on the path; bad ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.cli import main
from sweeper.core.config import TrialConfig
from sweeper.core.job import PREPARE_RUNNER, Job, MeasurePlan, write_job
from sweeper.core.measurement import Failure, FailureKind, Measurement, Outcome, Report
from sweeper.core.progress import SilentProgress
from sweeper.launch.local import LocalLauncher
from sweeper.schema import load
from sweeper.sweep.folder.code import code_of
from sweeper.sweep.folder.fingerprint import digest_of_code
from sweeper.worker import trial

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SHOWN = dict(_BLOCK.findall(PAGE))
TITLED = dict(re.findall(r'^```yaml title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
(SPACE,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Twice the batch is faster without doubt, so that there is a winner.
EXTRA = 'name: mine\nalso_try: [{"loader.kind": "turbo_loader:TRAITS"}, {"batch_size": 200}]\n'
QUICK = [
    f"--set={option}"
    for option in (
        *("search.trials=3", "search.minutes=null", "confirm.rounds=1", "confirm.top=1", "execution.gpus=0"),
        *("measure.window_seconds=0.6", "measure.repeats=1", "measure.warmup_cap_seconds=0.2"),
        *("measure.quality_samples=0", "measure.trace=false"),
    )
]
METRIC = "cost_metrics:USD_PER_EPOCH"


def write_parts(folder: Path) -> None:
    for name, text in SHOWN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def sweeper(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as the console script does, without the current folder on the path."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "sweeper", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep with every part that is shown."""
    folder = tmp_path_factory.mktemp("here")
    write_parts(folder)
    (folder / "space.yaml").write_text(EXTRA + SPACE)
    done = sweeper(folder, "run", "space.yaml", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def shown(folder: Path, name: str = "mine") -> dict:
    done = sweeper(folder, "show", name, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_sweep_uses_every_part(swept: Path):
    home = swept / "mlruns" / "sweeps" / "mine"
    trials = shown(swept)["trials"]
    assert {row["outcome"] for row in trials} == {"measured"}
    for row in trials:
        seconds = row["metrics"]["epoch_seconds"]
        assert row["metrics"][METRIC] == pytest.approx(3 * seconds / 3600, rel=0.01)
    assert "turbo_loader:TRAITS" in {row["config"]["loader.kind"] for row in trials}
    assert "near the best so far" in {
        json.loads((folder / "config.json").read_text())["origin"] for folder in (home / "trials").iterdir()
    }
    outcome = json.loads((home / "trials" / "0001" / "outcome.json").read_text())
    assert outcome["telemetry"]["files_num_open"]["mean"] >= 3
    # The local launcher would have a server, whose log is there.
    assert not (home / "server.log").exists()
    text = sweeper(swept, "show", "mine").stdout
    assert f"{METRIC}, USD" in " ".join(text.split())
    assert f"{METRIC}: " in sweeper(swept, "show", "mine", "--trial", "1").stdout


@pytest.mark.slow
def test_an_export_has_the_format_that_is_shown(swept: Path):
    done = sweeper(swept, "export", "mine", "--format", "house_formats:COMPACT")
    assert done.returncode == 0, done.stderr
    path = swept / "mlruns" / "sweeps" / "mine" / "best.min.json"
    assert path.read_text().count("\n") == 1
    plain = sweeper(swept, "export", "mine", "--format", "json", "--out", "-").stdout
    assert json.loads(path.read_text())["config"] == json.loads(plain)["config"]


@pytest.mark.slow
def test_a_sweep_is_listed_shown_and_reported_without_its_parts(swept: Path):
    before = shown(swept)
    for name in SHOWN:
        (swept / name).rename(swept / f"{name}.gone")
    try:
        assert sweeper(swept, "list").stdout.split()[:2] == ["mine", "finished"]
        after = shown(swept)
        assert after["winner"]["number"] == before["winner"]["number"]
        assert not any(METRIC in row["metrics"] for row in after["trials"])
        said = sweeper(swept, "show", "mine").stdout
        assert f"Metrics not shown, because they cannot be imported here: {METRIC}.\n" in said
        assert sweeper(swept, "report", "mine").returncode == 0
        again = sweeper(swept, "run", "space.yaml")
        assert (again.returncode, len(again.stderr.splitlines())) == (2, 8)
        assert "Traceback" not in again.stderr
    finally:
        for name in SHOWN:
            (swept / f"{name}.gone").rename(swept / name)


STEPS = """\
import time

def train(batch_size):
    for step in range(10**6):
        time.sleep(0.002)
        yield batch_size
"""


@pytest.mark.slow
def test_a_kind_of_work_is_swept_confirmed_and_exported(tmp_path: Path):
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "function_work.py").write_text(SHOWN["function_work.py"])
    (tmp_path / "function.yaml").write_text(TITLED["function.yaml"])
    quick = [word for word in QUICK if "rounds" not in word]
    done = sweeper(tmp_path, "run", "function.yaml", *quick, "--set=confirm.rounds=3")
    assert done.returncode == 0, done.stdout + done.stderr
    result = shown(tmp_path, "function")
    assert result["winner"]["number"] == 1
    assert result["trials"][1]["config"] == {"batch_size": 64}
    assert "confirmed" in done.stdout
    plain = sweeper(tmp_path, "export", "function", "--format", "json", "--out", "-")
    assert plain.returncode == 0, plain.stderr
    exported = json.loads(plain.stdout)
    assert exported["params"] == {"batch_size": 64}
    assert "steps.train(**{'batch_size': 64})" in exported["command"][2]
    again = sweeper(tmp_path, "run", "function.yaml", *quick, "--set=confirm.rounds=3")
    assert "already finished" in again.stdout
    # Without its kind, it is still shown.
    (tmp_path / "function_work.py").unlink()
    assert shown(tmp_path, "function")["winner"]["number"] == 1
    assert sweeper(tmp_path, "report", "function").returncode == 0
    gone = sweeper(tmp_path, "run", "function.yaml")
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)
    assert "function.yaml:2:11: `workload`" in gone.stderr


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["local", "inline"])
def test_the_other_launchers_find_the_parts(swept: Path, launcher: str):
    more = (f"name={launcher}", f"execution.launcher={launcher}", "search.trials=1", "confirm.rounds=0")
    done = sweeper(swept, "run", "space.yaml", *QUICK, *(f"--set={option}" for option in more))
    assert done.returncode == 0, done.stdout + done.stderr
    folder = swept / "mlruns" / "sweeps" / launcher / "trials" / "0001"
    telemetry = json.loads((folder / "outcome.json").read_text())["telemetry"]
    # The inline launcher samples nothing.
    assert ("files_num_open" in telemetry) == (launcher == "local")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["fork", pytest.param("exec", marks=pytest.mark.soak)])
def test_a_job_looks_for_parts_in_its_own_folders_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
):
    """As on a cluster, where a worker's current folder may have anything."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    write_parts(own)
    for name in ("open_files", "turbo_loader", "jobs_loader"):
        (other / f"{name}.py").write_text("raise RuntimeError('not the job's')\n")
    text = SHOWN["turbo_loader.py"].replace("turbo_loader", "jobs_loader")
    (own / "jobs_loader.py").write_text(f"import os, sys\nassert os.getcwd() not in sys.path\n{text}")
    monkeypatch.chdir(other)
    launcher = LocalLauncher(tmp_path, isolation=isolation, environ={**os.environ, "PYTHONPATH": str(ROOT)})
    with contextlib.closing(launcher):

        def run(name: str, **about: object) -> Outcome | Report:
            job = Job(
                uid=name,
                pipeline="acme_nets.sums",
                import_paths=(str(own),),
                prepared=str(tmp_path / "prepared"),
                **about,
            )
            write_job(tmp_path / name, job)
            return launcher.submit(tmp_path / name).result(timeout=100)

        assert isinstance(run("prepare", runner=PREPARE_RUNNER), Report)
        plan = MeasurePlan(window_seconds=0.6, repeats=1, warmup_cap_seconds=0.1, diagnose=False)
        config = TrialConfig().replace({"loader.kind": "jobs_loader:TRAITS"})
        outcome = run("trial", config=config, probes=("open_files:FilesProbe",), plan=plan)
    assert isinstance(outcome, Measurement), outcome
    assert "files_num_open" in outcome.telemetry


# -- what is wrong -----------------------------------------------------------------------------------------

HEAD = "name: mine\npipeline: acme_nets.sums\nspace: {batch_size: {type: int, low: 1, high: 2}}\n"
SEAMS = {
    "baseline: {loader.kind: 'PART'}": ("4:25", "`loader.kind`", "LoaderTraits"),
    "also_try: [{loader.kind: 'PART'}]": ("4:26", "`loader.kind`", "LoaderTraits"),
    "fix: {loader.kind: 'PART'}": ("4:20", "`loader.kind`", "LoaderTraits"),
    "execution: {launcher: 'PART'}": ("4:23", "`execution.launcher`", "LauncherTraits"),
    "search: {sampler: 'PART'}": ("4:19", "`search.sampler`", "SamplerTraits"),
    "objectives: [{minimize: 'PART'}]": ("4:25", "A metric", "Metric"),
    "constraints: {'PART': {max: 1}}": ("4:15", "A metric", "Metric"),
    "measure: {probes: ['PART']}": ("4:20", "`measure.probes`", "Probe"),
}
WRONG = {
    "nowhere_at_all:PART": "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'.",
    "house_formats:NONE": "cannot be imported: AttributeError: module 'house_formats' has no attribute",
    "house_formats:json": "of `EXPECTED`, but 'house_formats:json' is of type `module`.",
    "builtins:int": "of `EXPECTED`, but 'builtins:int' is the class `int`.",
    "turbo": "an import string `module:name`, but got 'turbo'.",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the parts that are shown; it is not on the path."""
    write_parts(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    yield tmp_path
    for name in [module for module in sys.modules if f"{module.partition('.')[0]}.py" in SHOWN]:
        del sys.modules[name]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What a command that ends with 2 says in one line."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sweeper", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1), out + err
        return err.strip()

    return run


@pytest.mark.parametrize("part", WRONG)
@pytest.mark.parametrize("seam", SEAMS)
def test_a_part_that_cannot_be_used_is_said_where_it_is_written(here: Path, said, seam: str, part: str):
    place, setting, expected = SEAMS[seam]
    base = "" if seam.startswith("baseline") else "baseline: {}\n"
    Path("space.yaml").write_text(f"{HEAD}{seam.replace('PART', part)}\n{base}")
    line = said("run", "space.yaml")
    assert line.startswith(f"sweeper: space.yaml:{place}: {setting}")
    assert WRONG[part].replace("EXPECTED", expected) in line
    assert not Path("mlruns").exists()


@pytest.mark.parametrize("part", WRONG)
def test_a_format_that_cannot_be_used_is_said(here: Path, said, part: str):
    line = said("export", "mine", "--format", part)
    assert line.startswith("sweeper: `--format`")
    assert WRONG[part].replace("EXPECTED", "ExportFormat") in line
    assert not Path("mlruns").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spirals", "`pipeline` must name a module below the current folder, one that ships with sweeper, "),
        (
            "acme_nets.none",
            "one of an installed package, but got 'acme_nets.none': there is no acme_nets/none.py in",
        ),
        ("pipelines.tabula", "Did you mean `pipelines.tabular`?"),
        ("cost_metrics", "cost_metrics must define `prepare` and `build`; see docs/pipelines.md."),
        ("json", "json must define `prepare` and `build`; see docs/pipelines.md."),
        ("acme_nets:sums", "`pipeline` must be a module's dotted name such as `pipelines.stocks`, but got"),
    ],
)
def test_a_pipeline_that_cannot_be_used_is_said_where_it_is_written(here: Path, said, name: str, says: str):
    Path("space.yaml").write_text(HEAD.replace("acme_nets.sums", name) + "baseline: {}\n")
    line = said("run", "space.yaml")
    assert line.startswith("sweeper: space.yaml:2:11: ")
    assert says in line
    assert not Path("mlruns").exists()


# -- an installed pipeline -----------------------------------------------------------------------------------


def test_an_installed_pipeline_counts_and_is_sent_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site, empty = tmp_path / "site-packages", tmp_path / "here"
    (site / "nets").mkdir(parents=True)
    empty.mkdir()
    (site / "nets" / "__init__.py").write_text("import json\n")
    (site / "nets" / "deep.py").write_text("from nets import widths\nprepare = build = widths\n")
    (site / "nets" / "widths.py").write_text("import other\nWIDTH = 4\n")
    (site / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(empty)
    Path("space.yaml").write_text(HEAD.replace("acme_nets.sums", "nets.deep") + "baseline: {}\n")
    assert load(Path("space.yaml")).pipeline == "nets.deep"
    before = digest_of_code("nets.deep")
    assert set(code_of("nets.deep")) == {f"nets/{name}.py" for name in ("__init__", "deep", "widths")}
    (site / "nets" / "widths.py").write_text("import other\nWIDTH = 8\n")
    assert digest_of_code("nets.deep") != before
    assert "nets" not in sys.modules
    # To a pipeline of the user's, it is a library like any other.
    Path("own.py").write_text("from nets.widths import WIDTH\n")
    assert set(code_of("own")) == {"own.py"}
    # An error in it counts as the user's.
    (site / "nets" / "broken.py").write_text("build = None\ndef prepare(data):\n    return 1 / 0\n")
    job = Job(
        uid="p", runner=PREPARE_RUNNER, pipeline="nets.broken", import_paths=(str(empty),), prepared="x"
    )
    failure = trial.run(job, SilentProgress())
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.USER_ERROR
    assert failure.message.endswith(f"division by zero ({site}/nets/broken.py:3)")
