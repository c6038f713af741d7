"""Every search space we ship loads, its references build, and it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement
from sweeper.errors import UserError
from sweeper.launch.inline import InlineLauncher
from sweeper.schema import SweepSpec, load
from sweeper.schema.shipped import space_file
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.run import run_sweep
from sweeper.sweep.workloads import fingerprint
from sweeper.tracking import NullTracker

REPOSITORY = Path(__file__).parents[1]
SPACES = sorted((REPOSITORY / "search_spaces").glob("*.yaml"))


@pytest.fixture(params=SPACES, ids=lambda path: path.stem)
def spec(request, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    return load(request.param)


def test_there_is_one_for_each_class_of_gpu_and_for_each_workload():
    machines = {"a10", "a100_h100", "v100_3090", "rtx_20_30", "h200", "cpu"}
    workloads = {"kuairand", "sequence", "behaviour", "stocks", "sign_language"}
    assert {path.stem for path in SPACES} == {"quick", *machines, *workloads}


def test_its_references_build(spec):
    references = spec.references()
    assert len(references) == 1 + len(spec.also_try)
    assert len({each.key() for each in references}) == len(references)
    assert references[0].loader.kind == "rows"


def test_any_of_its_configurations_builds(spec):
    params = {name: parameter.first_value() for name, parameter in spec.space.items()}
    assert isinstance(spec.config(params), TrialConfig)
    assert spec.size() is None or spec.size() > spec.search.trials


def test_its_pipeline_is_there(spec):
    assert fingerprint(spec, "cpu")["code"]


def test_the_header_shows_commands_that_work(spec):
    path = next(path for path in SPACES if load(path).name == spec.name)
    lines = [line for line in path.read_text().splitlines() if line.startswith("#   sweeper run ")]
    assert lines
    for line in lines:
        words = line.removeprefix("#   ").split()
        assert space_file(words[2]).resolve() == path
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        # The reader's own pipeline.
        asked = load(path, [each for each in overrides if each != "pipeline=my.module"])
        if "path" in asked.data:  # The reader's own data.
            with pytest.raises(UserError, match=r"`data.path` must exist"):
                fingerprint(asked, "cpu")


SMALL = {
    "pipelines.tabular": {"data.rows": 3000},
    "pipelines.sequence": {"data.rows": 26_000, "data.columns": 2},
    "pipelines.stocks": {"data.stocks": 9, "data.days": 900},
    "pipelines.kuairand": {"data.rows": 90_000, "data.users": 50, "data.videos": 500},
    "pipelines.behaviour": {
        "data.recordings": 6,
        "data.seconds": 60,
        "baseline.model.hidden_size": 24,
    },
    "pipelines.sign_language": {"data.clips": 80, "data.glosses": 4, "data.max_frames": 40},
}
"""Data on which a trial is a matter of seconds."""

SHORT = {
    "search.trials": 2,
    "confirm.rounds": 0,
    "measure.window_seconds": 0.05,
    "measure.repeats": 1,
    "measure.warmup_cap_seconds": 0.1,
    "measure.quality_samples": 0,
    "measure.reference_cap_seconds": 1,
    "measure.trace": False,
    "constraints": {},
    "also_try": [],
    "fix.device.cpu_threads": 1,
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As trials have it here. A worker that is forked beside more of them waits for those it has not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# These differ from others of their pipelines in values that are tried on a GPU only.
GPUS = ("a10", "a100_h100", "h200", "rtx_20_30", "v100_3090")


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.soak if path.stem in GPUS else ())
        for path in SPACES
    ],
    indirect=True,
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_it_runs_for_two_trials(spec, tmp_path, one_thread):
    """As it is, but for the size of the data and of the measurements: whatever this machine lacks."""
    if spec.name == "quick":
        pytest.skip("tests/test_installed.py has it run by the program")
    tree = spec.to_dict()
    for name, value in {**SHORT, **SMALL[spec.pipeline]}.items():
        head, _, rest = name.partition(".")
        if rest:
            tree[head][rest] = value
        else:
            tree[head] = value
    tree["space"] = {
        name: parameter
        for name, parameter in tree["space"].items()
        if not name.startswith("model.") and name not in tree["fix"]
    }
    tree["space"]["batch_size"] = {"type": "categorical", "choices": [32, 64]}
    ran = run_sweep(
        tmp_path,
        SweepSpec.from_dict(tree),
        NullTracker(),
        QuietObserver(),
        launch=lambda folder: InlineLauncher(),
    )
    outcomes = [entry.outcome for entry in ran.journal.trials()]
    assert len(outcomes) == 3
    assert all(isinstance(outcome, Measurement) for outcome in outcomes), outcomes
