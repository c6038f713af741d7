"""A metric in a distribution of its own: aimed for, limited, shown, tracked, and still shown once gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cost_metrics import MODULE, install_cost_metrics
from replays import PIPELINE, Bench, spec_of

from sweeper.cli import main
from sweeper.core.metrics import METRICS, Metric, find_metric, metric_row
from sweeper.errors import UserError
from sweeper.spec import SweepSpec, load
from sweeper.testing.metric_conformance import MetricConformance
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import DATABASE

NAME = "usd_per_epoch"


class TestBuiltin(MetricConformance):
    @pytest.fixture(params=METRICS)
    def metric(self, request) -> Metric:
        return METRICS[request.param]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs the distribution, or one with another module, and returns its folder."""

    def make(module: str = MODULE) -> Path:
        folder = install_cost_metrics(tmp_path / "site", module)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "cost_metrics", raising=False)
        return folder

    return make


class TestUsdPerEpoch(MetricConformance):
    @pytest.fixture
    def metric(self, install) -> Metric:
        install()
        return find_metric(NAME)


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return Bench(tmp_path / "home")


@pytest.fixture
def cli(bench, monkeypatch, capsys):
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments, "--home", str(bench.home)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code in (None, 0), said.err
        return said.out

    return run


def cost(trial: dict) -> float:
    workers = trial["config"].get("loader.num_workers", 0)
    return (3 + 0.25 * workers) * trial["metrics"]["epoch_seconds"] / 3600


def test_it_has_less_than_30_lines():
    assert len([line for line in MODULE.splitlines() if line.strip()]) < 30


def test_a_misspelt_one_is_said_where_it_is_written(install, tmp_path):
    install()
    path = tmp_path / "f.yaml"
    text = "name: a\npipeline: p\nspace: {}\nbaseline: {}\nobjectives: [{minimize: %s}]\n"
    path.write_text(text % NAME)
    assert load(path).objectives[0].metric == NAME
    path.write_text(text % "usd_per_epok" + "constraints: {usd_per_epohc: {max: 3}}\n")
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(caught.value).splitlines() == [
        f"{path}:5:25: `usd_per_epok` is not a metric. Did you mean `{NAME}`?",
        f"{path}:6:15: `usd_per_epohc` is not a metric. Did you mean `{NAME}`?",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("from sweeper", "import nowhere_at_all\nfrom sweeper"), "cannot be loaded: ModuleNotFoundError"),
        (('Metric("usd_per_epoch"', 'Metric("usd"'), "of cost-metrics 1.0 provides `usd`. Rename one"),
    ],
)
def test_a_broken_one_is_a_mistake_of_the_specification(install, change, says):
    install(MODULE.replace(*change))
    tree = {"name": "a", "pipeline": "p", "space": {}, "baseline": {}, "objectives": [{"minimize": NAME}]}
    with pytest.raises(UserError) as caught:
        SweepSpec.from_dict(tree)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "it raised ZeroDivisionError: division by zero."),
        ("return 'much'", "it raised ValueError: could not convert string to float: 'much'."),
    ],
)
def test_one_that_fails_ends_the_sweep_and_names_its_distribution(install, bench, body, says):
    install(MODULE.replace("measured = record.measurement", body))
    with pytest.raises(UserError) as caught:
        bench.run(spec_of(objectives=[{"minimize": NAME}]))
    assert "the metric `usd_per_epoch` (cost-metrics 1.0) must return a number or None, but" in str(
        caught.value
    )
    assert says in str(caught.value)


def test_it_is_aimed_for_and_limited_like_a_built_in_one(install, bench, cli):
    folder = install()
    spec = spec_of(
        objectives=[{"minimize": NAME}, {"maximize": "throughput"}],
        constraints={NAME: {"max_ratio_to_baseline": 0.05}},
        search={"trials": 12},
    )
    bench.run(spec, tracker=MlflowTracker(bench.home))

    def report() -> str:
        cli("report", "toy")
        return (bench.home / "sweeps" / "toy" / "report.html").read_text()

    found = json.loads(cli("show", "toy", "--json"))
    measured = [trial for trial in found["trials"] if NAME in trial["metrics"]]
    assert len(measured) == len(found["trials"]) > 10
    for trial in measured:
        assert trial["metrics"][NAME] == pytest.approx(cost(trial), rel=0.01)
    bound = cost(found["trials"][0]) * 0.05
    assert {t["number"] for t in measured if t["feasible"]} == {
        t["number"] for t in measured if cost(t) <= bound
    }
    assert any(not t["feasible"] for t in measured[1:])
    told = json.loads((bench.home / "sweeps" / "toy" / "trials" / "0002" / "told.json").read_text())
    assert told["values"][0] == pytest.approx(cost(found["trials"][2]), rel=0.01)
    assert f"{NAME}, USD" in cli("show", "toy")
    assert "Not installed" not in cli("show", "toy")
    assert f"{NAME}: " in cli("show", "toy", "--trial", "2")
    rows = json.loads(cli("show", "toy", "--format", "json", "--out", "-"))
    assert {row["number"] for row in rows if row[NAME]} == {t["number"] for t in measured}
    assert f"{NAME}, USD" in report()
    points = mlflow_points(bench.home)
    prefix = "result" if found["trials"][2]["feasible"] else "infeasible"
    assert points[f"{prefix}/{NAME}"] == len([t for t in measured if t["feasible"] == (prefix == "result")])

    sys.path.remove(str(folder))
    assert metric_row(NAME).unit == ""
    assert cli("list").split()[:2] == ["toy", "finished"]
    gone = json.loads(cli("show", "toy", "--json"))
    assert gone["winner"]["number"] == found["winner"]["number"]
    assert not any(NAME in trial["metrics"] for trial in gone["trials"])
    # A searched trial that was beyond its limit is so still.
    now, before = ({t["number"]: t["feasible"] for t in each["trials"]} for each in (gone, found))
    searched = [t["number"] for t in found["trials"] if t["stage"] not in ("baseline", "reference")]
    assert [now[number] for number in searched] == [before[number] for number in searched]
    assert False in [now[number] for number in searched]
    assert f"Metrics not shown, because they are not installed here: {NAME}.\n" in cli("show", "toy")
    assert f"{NAME}, USD" not in report()
    cli("show", "toy", "--format", "csv", "--out", "-")
    with pytest.raises(UserError, match=r"`usd_per_epoch` is not a metric\. Known metrics: throughput, "):
        bench.run(spec_of(objectives=[{"minimize": NAME}]))


def mlflow_points(home: Path) -> dict[str, int]:
    """Returns how many runs have each metric."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{home / DATABASE}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    found: dict[str, int] = {}
    for run in client.search_runs(experiments):
        for key in run.data.metrics:
            found[key] = found.get(key, 0) + 1
    return found


def test_built_in_ones_are_found_without_a_scan():
    text = (
        "import sys\n"
        "from sweeper.spec import SweepSpec\n"
        "tree = {'name': 'a', 'pipeline': 'p', 'space': {}, 'baseline': {},\n"
        "        'objectives': [{'maximize': 'throughput'}], 'constraints': {'val_loss': {'max': 1}}}\n"
        "SweepSpec.from_dict(tree)\n"
        "from sweeper.core import registry\n"
        "print(registry._scanned.cache_info().currsize)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
