"""Writes everything that sweeper says of fixed inputs: `python benchmarks/printed.py HOME OUT`.

A change of the code that must change nothing is checked by two calls with the same HOME, before and after it,
and `diff -r BEFORE AFTER`. HOME is filled by the first call: sweeps of pipelines and scripts on a
launcher that trains nothing. OUT gets a file for each specification (as it is written, fingerprint, labels,
dry run), and for each sweep (list, show, report, compare, export, MLflow and the closing lines).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import logging
import math
import os
import random
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT, TESTS
from measurements import measurement
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from replays import PIPELINE, SPEC, Watcher
from rich.console import Console
from schema_1.folders import lay_out
from thousand import write_sweep

from sweeper.cli import main
from sweeper.cli.judge import lines as judge_lines
from sweeper.cli.run import plan_lines
from sweeper.cli.summary import print_summary
from sweeper.core import export_formats
from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Measurement, Quality
from sweeper.judging.arms import Arm
from sweeper.judging.losses import LossAgreement, LossComparison
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.judging.verdict import RequiredSpeed, Verdict
from sweeper.results.decision_lines import decision_lines
from sweeper.results.numbers.labels import label, run_name
from sweeper.schema import SweepSpec, load
from sweeper.schema.enough_steps import with_enough_steps
from sweeper.schema.writer import to_yaml
from sweeper.search.distributions import distribution, draw_value
from sweeper.search.presets import presets
from sweeper.sweep.dry_run import dry_run
from sweeper.sweep.folder.catalog import journal_at
from sweeper.sweep.folder.journal import Journal, sweeps_folder
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.folder.past import find_past_sweep
from sweeper.sweep.publish import run_views, sweep_info
from sweeper.sweep.run import run_sweep
from sweeper.sweep.workloads import fingerprint
from sweeper.system.cpu import cpu_name
from sweeper.tracking import NullTracker
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.specification import specification

SCRIPT = """\
import argparse

parser = argparse.ArgumentParser()
for name in ("--bs", "--workers", "--amp", "--depth"):
    parser.add_argument(name)
"""
COMMAND = [
    "python",
    "train.py",
    "--bs",
    "{batch_size}",
    "--workers",
    "{loader.num_workers}",
    "--amp",
    "{amp}",
]
SCRIPT_SPEC: Mapping[str, Any] = {
    "name": "script",
    "command": COMMAND,
    "space": {
        "batch_size": {"type": "int", "low": 8, "high": 512, "log": True},
        "loader.num_workers": {"type": "categorical", "choices": [0, 2, 4]},
        "amp": {"type": "categorical", "choices": ["off", "bf16"]},
    },
    "baseline": {"batch_size": 32, "loader.num_workers": 0, "amp": "off"},
    "search": {"trials": 8, "minutes": None, "regret": None},
    "confirm": {"top": 2, "rounds": 3},
}
VAL_LOSS = {"val_loss": {"max_ratio_to_baseline": 1.02}}
DEVICE = "cpu EPYC"
VOLATILE = (
    "uid",
    "created_at",
    "finished_at",
    "seconds",
    "start_s",
    "folder",
    "cache",
    "prepared",
    "env",
    "at",
)


def merged(tree: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `tree` with keys replaced; sections that both have are merged, and None removes a key."""
    joint = {**tree, **more}
    for name in ("measure", "search", "confirm", "execution", "script", "production"):
        if isinstance(tree.get(name), Mapping) and isinstance(more.get(name), Mapping):
            joint[name] = {**tree[name], **more[name]}
    return {name: value for name, value in joint.items() if value is not None}


# -- specifications -------------------------------------------------------------------------------


VARIANTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"constraints": VAL_LOSS},
    {"constraints": None, "objectives": [{"maximize": "throughput"}, {"minimize": "val_loss"}]},
    {"search": {"sampler": "tpe", "trials": 5, "minutes": 3}},
    {"search": {"sampler": "climb", "warm_start": "off"}},
    {"search": {"sampler": "gp", "patience": 4}},
    {"search": {"sampler": "random", "regret": None, "seed": 7}},
    {"workload": "changes"},
    {"confirm": {"to_loss": True}},
    {"confirm": {"to_loss": False, "rounds": 0}},
    {"confirm": {"pick": "lowest_loss"}, "objectives": [{"minimize": "time_to_loss_s"}]},
    {"measure": {"cold_cache": True}},
    {"measure": {"quality_samples": 0, "trace": False}},
    {"measure": {"quality_samples": 4000}, "constraints": VAL_LOSS},
    {"measure": {"probes": ["nowhere:Probe"]}},
    {"production": {"samples": 1e9, "price_per_hour": 1.5}, "objectives": [{"minimize": "cost_per_run"}]},
    {"objectives": [{"minimize": "projected_hours"}]},
    {"execution": {"gpus": 0, "slots": 2}},
    {"execution": {"launcher": "slurm", "gpus": 2, "job": {"partition": "gpu"}}},
    {"execution": {"launcher": "ray"}},
    {"execution": {"isolation": "exec", "pass_env": ["MYLAB_*"]}},
    {"storage": "sqlite:///study.db"},
    {"fix": {"device.count": 2}},
    {"fix": {"seed": 3}},
    {"fix": {"model.width": 8, "optimizer.lr": 0.1}},
    {"also_try": [{"batch_size": 256}]},
    {"also_try": [{"loader.prefetch_factor": 4}]},
    {"data": {"path": "/nowhere"}},
    {"script": {"stop": "at_end", "watch": False}},
    {"script": {"elsewhere": True}},
    {"baseline": {"batch_size": 64, "model.depth": 2}},
    {"pipeline": "no_such_module"},
    {"command": ["srun", "python", "train.py", "--bs", "{batch_size}"]},
    {"storag": "a typo"},
)
"""Changes of a specification; those that break a rule show its message."""


def generated() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields specifications of all three kinds in many variants."""
    options = TuneOptions(command=("python", "train.py"), name="tune-train")
    bases = {
        "pipeline": dict(SPEC),
        "script": dict(SCRIPT_SPEC),
        "tune": specification(options, 5.0),
    }
    for (kind, base), (i, more) in itertools.product(bases.items(), enumerate(VARIANTS)):
        yield f"{kind}-{i:02d}", merged(base, more)
    goals: tuple[Mapping[str, Any], ...] = ({}, VARIANTS[1], VARIANTS[2], VARIANTS[12])
    samplers = ("auto", "climb", "tpe", "random")
    for (kind, base), goal, sampler in itertools.product(bases.items(), range(len(goals)), samplers):
        search = {"search": {"sampler": sampler, "trials": 6, "seed": goal}, "confirm": {"top": 1 + goal}}
        yield f"{kind}-{sampler}-goal-{goal}", merged(merged(base, goals[goal]), search)


def stored() -> Iterator[tuple[str, Path]]:
    """Yields the YAML files of the repository that may be specifications."""
    for folder in ("search_spaces", "benchmarks", "examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*.yaml")):
            yield f"{folder}-{path.stem}", path


def in_tests() -> Iterator[tuple[str, str]]:
    """Yields the texts in tests that may be specifications."""
    texts: dict[str, str] = {}
    for path in sorted([*TESTS.rglob("*.py"), *ROOT.glob("docs/*.md")]):
        quotes = '"""(.*?)"""' if path.suffix == ".py" else "```yaml\n(.*?)```"
        for text in re.findall(quotes, path.read_text(encoding="utf-8"), re.DOTALL):
            if "space:" in text and "baseline:" in text:
                texts.setdefault(textwrap.dedent(text.lstrip("\\\n")), path.stem)
    yield from ((f"text-{i:03d}-{stem}", text) for i, (text, stem) in enumerate(texts.items()))


def said_of_spec(spec: SweepSpec, home: Path) -> Iterator[str]:
    """Yields everything that is said of a specification before it runs."""
    yield to_yaml(spec.to_dict())
    yield attempt(lambda: json.dumps(fingerprint(spec, DEVICE), indent=1, default=list))
    yield attempt(lambda: repr(presets(spec)))
    yield repr(with_enough_steps(spec, 20_000)[1])
    yield attempt(lambda: repr(find_past_sweep(home, spec, fingerprint(spec, DEVICE))))
    draw = random.Random(0)
    params = [{n: draw_value(distribution(p), draw) for n, p in spec.space.items()} for _ in range(4)]
    for i, config in enumerate([*spec.references(), *map(spec.config, params)]):
        yield f"{run_name(i, 'search', config, tuple(spec.space))} | {label(config, tuple(spec.space))}"
        yield config.key()
        yield f"{config.quality_key()} {config.work_key()} {spec.params_of(config)}"
    yield attempt(lambda: "\n".join(plan_lines(dry_run(home, spec, new=False, launch=lambda _: replaying()))))


def attempt(ask: Callable[[], str]) -> str:
    """Returns what `ask` does, or its error, which may be a fault that must stay what it is."""
    try:
        return ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def specs(home: Path) -> Iterator[tuple[str, str]]:
    """Yields a text on each specification, by name."""
    sources: list[tuple[str, Any]] = [*generated(), *stored(), *in_tests()]
    for name, source in sources:
        path = source if isinstance(source, Path) else Path("text.yaml")
        if path != source:
            path.write_text(source if isinstance(source, str) else to_yaml(source), encoding="utf-8")
        with contextlib.chdir(path.parent):
            checked = command("check", path.name)
            said = said_of_spec(load(Path(path.name)), home) if checked.startswith("0") else ()
            yield name, "\n".join([checked, *said])


# -- sweeps ---------------------------------------------------------------------------------------


def replaying(speed: Callable[[TrialConfig], float] | None = None, **about: Any) -> ReplayLauncher:
    """Returns a launcher whose trials have a speed with reproducible noise."""
    faults: Mapping[float, FailureKind] = about.pop("faults", {})
    is_script, disturbed = about.pop("is_script", False), about.pop("disturbed", False)
    counts: dict[str, int] = {}

    def surface(config: TrialConfig) -> Measurement | Failure:
        key = config.key()
        counts[key] = counts.get(key, 0) + 1
        draw = random.Random(f"{key}{counts[key]}")
        share = random.Random(key).random()
        for limit, kind in faults.items():
            if counts[key] == 1 and share < limit and "000" not in key and config.batch_size > 64:
                return Failure(kind=kind, message=f"{kind} happened", stage="warmup")
        outcome = synthetic((speed or speed_of)(config) * draw.gauss(1, 0.01))
        flags = ("other processes took cores",) if disturbed and draw.random() < 0.4 else ()
        windows = tuple(dataclasses.replace(window, disturbances=flags) for window in outcome.windows)
        outcome = dataclasses.replace(outcome, windows=windows, seconds=4.0, gpu_mem_peak_gib=None)
        if is_script:
            loss = 0.5 + 0.001 * draw.random()
            quality = Quality(
                key=f"{config.quality_key()}-1000", samples=1000, seconds=1.0, train_loss=loss, val_loss=loss
            )
            outcome = dataclasses.replace(outcome, reported_by="its own lines", quality=quality)
        return outcome

    return ReplayLauncher(surface, **about)


def speed_of(config: TrialConfig) -> float:
    """Returns the speed of a pipeline's or a script's trial."""
    kind = {"rows": 1.0, "workers": 2.0, "resident": 4.0}.get(config.loader.kind, 1.0)
    amp = config.precision.amp == "bf16" or (config.args or {}).get("amp") == "bf16"
    return (
        1e2 * kind * math.sqrt(config.batch_size) * (1.1 if amp else 1.0) * (10 + config.loader.num_workers)
    )


SWEEPS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    "pipeline": (SPEC, {}, {}),
    "pipeline-again": (SPEC, {"search": {"trials": 10, "seed": 3}}, {}),
    "pipeline-failing": (SPEC, {}, {"faults": {0.3: FailureKind.OOM, 0.5: FailureKind.USER_ERROR}}),
    "pipeline-front": (SPEC, VARIANTS[2], {"loss": lambda config: 1 + config.batch_size / 1e4}),
    "pipeline-disturbed": (SPEC, {}, {"disturbed": True}),
    "pipeline-to-loss": (SPEC, {"confirm": {"to_loss": True}, "production": {"samples": 1e9}}, {}),
    "script": (SCRIPT_SPEC, {"constraints": VAL_LOSS}, {"is_script": True}),
    "script-failing": (
        SCRIPT_SPEC,
        {"search": {"trials": 12}},
        {"is_script": True, "faults": {0.3: FailureKind.TIMEOUT, 0.6: FailureKind.USER_ERROR}},
    ),
    "script-slower": (SCRIPT_SPEC, {}, {"is_script": True, "speed": lambda c: 100 / c.batch_size}),
    "script-disturbed": (
        SCRIPT_SPEC,
        {"measure": {"quality_samples": 900}},
        {"is_script": True, "disturbed": True},
    ),
}
"""The sweeps: a specification, changes of it, and how its trials go."""


def _same(launcher: ReplayLauncher, _folder: Path) -> ReplayLauncher:
    return launcher


def build(home: Path, out: Path | None = None) -> None:
    """Runs all sweeps in `home`; writes what is heard of them into `out`."""
    for name, (tree, more, about) in SWEEPS.items():
        spec = SweepSpec.from_dict({**merged(tree, {"constraints": None, **more}), "name": name})
        watcher, about = Watcher(), dict(about)
        launcher = replaying(about.pop("speed", None), **about)
        run_sweep(home, spec, NullTracker(), watcher, launch=partial(_same, launcher))
        if out is not None:
            heard = [
                *watcher.lines,
                *map(str, watcher.trials),
                *stored_files(Journal(sweeps_folder(home) / name)),
            ]
            write(out, f"built-{name}", "\n".join(heard))


def stored_files(journal: Journal) -> Iterator[str]:
    """Yields what a sweep has on disk, without clocks."""
    yield (journal.folder / "sweep.yaml").read_text(encoding="utf-8")
    for path in sorted(journal.folder.rglob("*.json")):
        tree = without_clocks(json.loads(path.read_text(encoding="utf-8")))
        yield f"{path.relative_to(journal.folder)}\n{json.dumps(tree, indent=1)}"


def without_clocks(tree: Any) -> Any:
    """Returns a plain tree without what differs from run to run."""
    if isinstance(tree, dict):
        return {key: without_clocks(value) for key, value in tree.items() if key not in VOLATILE}
    return [without_clocks(value) for value in tree] if isinstance(tree, list) else tree


def command(*words: str) -> str:
    """Returns what `sweeper WORDS` prints, and its exit code."""
    printed, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), ""
    sys.argv = ["sweeper", *words]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as error:
            code = str(error.code)
    printed.seek(0)
    return f"{code}\n{printed.read()}"


def closing(folder: Path) -> str:
    """Returns the closing lines of `run` on a sweep."""
    sweep, text = load_sweep(journal_at(folder)), io.StringIO()
    out = Console(file=text, width=100)
    print_summary(out, sweep.summary, "")
    decision = decision_lines(sweep.summary)
    return "\n".join([text.getvalue(), *decision])


def tracked(folder: Path) -> str:
    """Returns what MLflow is sent of a sweep."""
    sweep = load_sweep(journal_at(folder))
    views = [[record.uid, encode(view)] for record, view in run_views(sweep)]
    return json.dumps([encode(sweep_info(sweep)), views], indent=1, default=str)


def sweeps(home: Path) -> Iterator[tuple[str, str]]:
    """Yields what is printed of each sweep in `home`, by name."""
    at, names = ("--home", str(home)), sorted(path.name for path in sweeps_folder(home).iterdir())
    title = home.name
    yield f"{title}-list", command("list", *at) + command("list", "--json", *at)
    for name in names:
        folder = sweeps_folder(home) / name
        numbers = sorted(int(path.name) for path in (folder / "trials").iterdir())
        shows = [(), ("--json",), ("--why",), ("--format", "csv"), *(("--trial", str(n)) for n in numbers)]
        yield f"{title}-{name}-show", "".join(command("show", name, *at, *more) for more in shows)
        yield f"{title}-{name}-report", command("report", name, *at, "--format", "md", "--out", "-")
        yield f"{title}-{name}-page", command("report", name, *at, "--out", "-").replace("><", ">\n<")
        exports = itertools.product(export_formats.BUILTIN, ["", *map(str, numbers[:3])])
        yield (
            f"{title}-{name}-export",
            "".join(
                command("export", name, *at, "--format", form, "--out", "-", *["--trial", n] * bool(n))
                for form, n in exports
            ),
        )
        yield f"{title}-{name}-closing", attempt(partial(closing, folder))
        yield f"{title}-{name}-tracked", attempt(partial(tracked, folder))
        for other in names:
            yield f"{title}-{name}-compare-{other}", command("compare", name, other, *at)


def verdicts() -> Iterator[tuple[str, str]]:
    """Yields the closing lines of `judge` for each verdict."""
    arms = tuple(Arm(name=name, command=("python",), folder=Path()) for name in ("before", "after"))
    measured = measurement()
    for speed, losses, required in itertools.product(Speed, LossAgreement, [None, *RequiredSpeed]):
        compared = SpeedComparison(
            answer=speed, ratio=1.2, low=1.1, high=1.3, before=[measured] * 4, after=[measured] * 4
        )
        verdict = Verdict(
            arms=(arms[0], arms[1]), speed=compared, training=LossComparison(answer=losses, why="a")
        )
        yield f"judge-{speed}-{losses}-{required}", "\n".join(judge_lines(verdict, required))


# -- all of it ------------------------------------------------------------------------------------


def write(out: Path, name: str, text: str) -> None:
    """Writes a text without what differs between machines, folders and times."""
    for path, mark in PLACES.items():
        text = text.replace(path, mark)
    text = re.sub(rf"{re.escape(cpu_name().rpartition(',')[0])}, \d+ cores?", "CPU", text)
    text = re.sub(r"\d+(\.\d+)?(e-\d+)? (s|ms|seconds) ", "TIME ", text) if name.startswith("built") else text
    (out / f"{name}.txt").write_text(text + "\n", encoding="utf-8")


PLACES: dict[str, str] = {}


def record(home: Path, out: Path) -> None:
    """Writes everything into `out`; fills an empty `home`."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    work = home / "work"
    if not work.exists():
        work.mkdir(parents=True)
        (work / "toy_pipeline.py").write_text(PIPELINE, encoding="utf-8")
        (work / "train.py").write_text(SCRIPT, encoding="utf-8")
        with contextlib.chdir(work):
            build(home / "runs")
        for seed in range(2):
            write_sweep(home / "runs", f"on-gpu-{seed}", trials=14, seed=seed)
        lay_out(home / "old", "0.1.0")
    os.chdir(work)
    with tempfile.TemporaryDirectory() as fresh:
        PLACES.update({fresh: "FRESH", str(home): "HOME", str(ROOT): "ROOT"})
        build(Path(fresh) / "runs", out)
    texts = itertools.chain(
        specs(home / "runs"), sweeps(home / "runs"), sweeps(home / "old" / "mlruns"), verdicts()
    )
    for name, text in texts:
        write(out, name, text)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    os.environ.pop("SWEEPER_HOME", None)
    logging.disable()
    record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
