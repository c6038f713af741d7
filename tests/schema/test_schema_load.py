import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sweeper.errors import UserError
from sweeper.schema import SweepSpec, load, to_yaml


def errors(path, overrides=()):
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    return str(caught.value).splitlines()


def test_the_whole_example(whole):
    spec = load(whole)
    assert spec.name == "stocks-a10"
    assert spec.pipeline == "pipelines.stocks"
    assert spec.space["batch_size"].log is True
    assert spec.space["loader.num_workers"].when == {"loader.kind": "workers"}
    assert spec.objectives[0].metric == "throughput"
    assert spec.objectives[0].direction == "maximize"
    assert spec.constraints["val_loss"].max_ratio_to_baseline == 1.02
    assert spec.production.samples == 2e9
    assert spec.measure.quality_samples == "auto"
    assert (spec.measure.warmup_cap_seconds, spec.measure.reference_cap_seconds) == (20, 60)
    assert spec.execution.gpus == "all"


def test_json_gives_the_same(whole):
    Path("whole.json").write_text(json.dumps(yaml.safe_load(whole.read_text().replace("2.0e9", "2.0e+9"))))
    assert load(Path("whole.json")) == load(whole)


def test_what_is_left_out_has_a_default(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("name: a\npipeline: pipelines.tabular\nspace: {}\nbaseline: {}\n")
    spec = load(path)
    assert spec.objectives[0].metric == "throughput"
    assert (spec.search.sampler, spec.search.trials, spec.search.minutes, spec.search.seed) == (
        "auto",
        40,
        20,
        0,
    )
    assert (spec.confirm.top, spec.confirm.rounds) == (3, 4)
    assert (spec.execution.launcher, spec.execution.isolation) == ("local", "fork")
    assert spec.production is None
    assert load(path, ["search.minutes=null"]).search.minutes is None


HEAD = "name: a\npipeline: pipelines.tabular\n"
TAIL = "baseline: {}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "space:\n  batch_sze: {type: int, low: 1, high: 2}",
            "f.yaml:4:3: `batch_sze` is not a field of a trial. Did you mean `batch_size`?",
        ),
        (
            "space:\n  batch_size: {type: int, low: 1, hihg: 2, high: 2}",
            "f.yaml:4:35: `space.batch_size.hihg` is not a known key. Did you mean `high`?",
        ),
        (
            "space:\n  batch_size: {type: int, low: 64, high: 128.0}",
            "f.yaml:4:42: `batch_size` must be an integer, but got 128.0.",
        ),
        (
            "space:\n  batch_size: {low: 64, high: 128}",
            "f.yaml:4:3: `space.batch_size.type` is required, but it is missing.",
        ),
        (
            "space:\n  batch_size: {type: intt, low: 64, high: 128}",
            "f.yaml:4:22: `space.batch_size.type` must be one of int, float, categorical, but got 'intt'."
            " Did you mean `int`?",
        ),
        (
            "space:\n  batch_size: {type: float, low: 64, high: 128}",
            "f.yaml:4:22: `batch_size` is an integer, but got type 'float'. Use `type: int`.",
        ),
        (
            "space:\n  batch_size: {type: int, low: 9, high: 8}",
            "f.yaml:4:15: `space.batch_size` needs `low <= high`, but got"
            " {'type': 'int', 'low': 9, 'high': 8}.",
        ),
        (
            "space:\n  precision.amp: {type: categorical, choices: [fp32, bf61]}",
            "f.yaml:4:54: `precision.amp` must be one of fp32, bf16, fp16, fp8, but got 'bf61'."
            " Did you mean `bf16`?",
        ),
        (
            "space:\n  precision.tf32: {type: categorical, choices: [true, no]}",
            "f.yaml:4:55: `precision.tf32` must be one of default, true, false, but got 'no'.",
        ),
        (
            "space:\n  precision.tf32: {type: categorical, choices: [true], when: {precision.am: fp32}}\n"
            "  precision.amp: {type: categorical, choices: [fp32]}",
            "f.yaml:4:63: `space.precision.tf32.when` must name a parameter of the space, but got"
            " `precision.am`. Did you mean `precision.amp`?",
        ),
        (
            "space:\n  precision.tf32: {type: categorical, choices: [true], when: {precision.amp: [fp16]}}\n"
            "  precision.amp: {type: categorical, choices: [fp32, bf16]}",
            "f.yaml:4:78: `precision.amp` can never be 'fp16', so this condition never holds."
            " Did you mean `bf16`?",
        ),
        (
            "space:\n  seed: {type: int, low: 0, high: 1, when: {batch_size: 1}}\n"
            "  batch_size: {type: int, low: 1, high: 2, when: {seed: 0}}",
            "f.yaml:5:51: `when` conditions must not form a cycle, but got seed -> batch_size -> seed.",
        ),
        (
            "space:\n  model.width: {type: int, low: 1, high: 2}",
            "f.yaml:4:3: A space with `model.*` or `data.*` needs a constraint or an objective on val_loss,"
            " but got model.width without one. Add `constraints: {val_loss: {max_ratio_to_baseline: 1.02}}`.",
        ),
        (
            "space:\n  batch_size: {type: int, low: 1, high: 2}\nfix: {batch_size: 3}",
            "f.yaml:5:7: `batch_size` must not be both in `space` and in `fix`. Remove one.",
        ),
        (
            "space: {}\nfix: {optimizer.lr: fast}",
            "f.yaml:4:21: `optimizer.lr` must be a number, but got 'fast'.",
        ),
        (
            "space: {}\nfix:\n  optimizer: {lr: 1}",
            "f.yaml:5:3: `optimizer` is not a field of a trial. Did you mean `optimizer.lr`?",
        ),
        (
            "space: {}\nalso_try: [{batch_size: 1}, {seed: x}]",
            "f.yaml:4:36: `seed` must be an integer, but got 'x'.",
        ),
        (
            "space: {}\nobjectives: []",
            "f.yaml:4:13: `objectives` must be a list of at least one `{maximize: METRIC}` or"
            " `{minimize: METRIC}`, but got [].",
        ),
        (
            "space: {}\nobjectives: [{maximise: throughput}]",
            "f.yaml:4:15: `objectives[0].maximise` is not a known key. Did you mean `maximize`?",
        ),
        (
            "space: {}\nobjectives: [{maximize: thruput}]",
            "f.yaml:4:25: A metric must be a built-in name or an import string `module:name`, but got"
            " 'thruput'. Did you mean `throughput`?",
        ),
        (
            "space: {}\nobjectives: [{maximize: throughput, minimize: step_ms}]",
            "f.yaml:4:14: `objectives[0]` needs exactly one of `maximize` and `minimize`,"
            " but got {'maximize': 'throughput', 'minimize': 'step_ms'}.",
        ),
        (
            "space: {}\nconstraints: {val_los: {max: 1}}",
            "f.yaml:4:15: A metric must be a built-in name or an import string `module:name`, but got"
            " 'val_los'. Did you mean `val_loss`?",
        ),
        (
            "space: {}\nconstraints: {val_loss: {}}",
            "f.yaml:4:25: `constraints.val_loss` needs at least one of max, min, max_ratio_to_baseline,"
            " min_ratio_to_baseline, but got {}.",
        ),
        (
            "space: {}\nmeasure: {window_second: 3}",
            "f.yaml:4:11: `measure.window_second` is not a known key. Did you mean `window_seconds`?",
        ),
        (
            "space: {}\nmeasure: {repeats: true}",
            "f.yaml:4:20: `measure.repeats` must be a valid integer, but got True.",
        ),
        (
            "space: {}\nmeasure: {quality_samples: 1.5}",
            "f.yaml:4:28: `measure.quality_samples` must be `auto` or an integer >= 0, but got 1.5.",
        ),
        (
            "space: {}\nsearch: {sampler: tep}",
            "f.yaml:4:19: `search.sampler` must be a built-in name or an import string `module:name`,"
            " but got 'tep'. Did you mean `tpe`?",
        ),
        (
            "space: {}\nsearch: {minutes: 0}",
            "f.yaml:4:19: `search.minutes` must be greater than 0, but got 0.",
        ),
        (
            "space: {}\nexecution: {gpus: [0, 1.5]}",
            "f.yaml:4:19: `execution.gpus` must be `all`, a number of GPUs, or a list of indices or UUIDs,"
            " but got [0, 1.5].",
        ),
        ("space: {}\nserch: {trials: 3}", "f.yaml:4:1: `serch` is not a known key. Did you mean `search`?"),
        ("space: 3", "f.yaml:3:8: `space` must be a mapping of keys to values, but got 3."),
        (
            "space: {}\ndata: {a: {b: 1}}",
            "f.yaml:4:11: `data.a` must be a single value or a list of values, but got {'b': 1}.",
        ),
        (
            "space: {}\nscript: {}",
            "f.yaml:4:1: `script` needs a `command`, but got none. Add `command: [python, train.py, ...]`.",
        ),
        ("space: {}\nproduction: {}", "f.yaml:4:1: `production.samples` is required, but it is missing."),
    ],
)
def test_each_mistake_has_its_place_rule_value_and_remedy(tmp_path, monkeypatch, text, line):
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(f"{HEAD}{text}\n{TAIL}")
    assert errors(Path("f.yaml")) == [line]


@pytest.mark.parametrize(
    ("text", "got"),
    [("", "nothing"), ("# nothing here\n", "nothing"), ("- a\n", "['a']"), ("a\n", "'a'")],
)
def test_a_specification_is_a_mapping(tmp_path, text, got):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    assert errors(path, ["a=1"]) == [
        f"{path}:1:1: A specification must be a mapping of keys, but got {got}.",
    ]


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "é", "a" * 129, "a\\n"])
def test_a_name_is_a_plain_word(whole, name):
    assert "`name` must be 1 to 128 letters" in errors(whole, [f'name="{name}"'])[0]


@pytest.mark.parametrize("module", ["pipelines/stocks.py", "a.", "3a", "a b"])
def test_a_pipeline_is_a_dotted_module(whole, module):
    assert "`pipeline` must be a module's dotted name" in errors(whole, [f"pipeline={module}"])[0]


def test_all_mistakes_come_at_once_in_the_order_of_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(
        "name: a b\n"
        "space:\n"
        "  batch_sze: {type: int, low: 1, high: 2}\n"
        "  batch_size: {type: int, low: 0, high: x, hihg: 1}\n"
        "  model.width: {type: categorical, choices: []}\n"
        "fix: {precision.amp: fp64, seed: .inf}\n"
        "baseline: {loader.kind: row}\n"
        "search: {trials: 0, trials: 0}\n"
        "confrim: &x {}\n"
    )
    got = errors(Path("f.yaml"), ["measure.repeats=0"])
    assert [line.split(" `")[0] for line in got] == [
        "--set measure.repeats=0:",
        "f.yaml:1:1:",
        "f.yaml:1:7:",
        "f.yaml:3:3:",
        "f.yaml:4:32:",
        "f.yaml:4:41:",
        "f.yaml:4:44:",
        "f.yaml:5:3: A space with",
        "f.yaml:5:45:",
        "f.yaml:6:22:",
        "f.yaml:6:34:",
        "f.yaml:7:25:",
        "f.yaml:8:21:",
        "f.yaml:9:10: Anchors and aliases are not supported, but got one at",
    ]


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("data.path=../x", lambda s: s.data, {"path": "../x"}),
        ("data.limit=100", lambda s: s.data, {"source": "synthetic", "limit": 100}),
        ("search.trials=3", lambda s: s.search.trials, 3),
        ("search.minutes=null", lambda s: s.search.minutes, None),
        ("space.batch_size.high=512", lambda s: s.space["batch_size"].high, 512),
        ("measure.window_seconds=0.5", lambda s: s.measure.window_seconds, 0.5),
        (
            "constraints.val_loss.max_ratio_to_baseline=1.05",
            lambda s: s.constraints["val_loss"].max_ratio_to_baseline,
            1.05,
        ),
        ("constraints.step_ms.max=9", lambda s: s.constraints["step_ms"].max, 9),
        ("fix.optimizer.lr=1e-3", lambda s: s.fix["optimizer.lr"], 1e-3),
        (
            "space.loader.kind.choices=[rows, workers]",
            lambda s: s.space["loader.kind"].choices,
            ("rows", "workers"),
        ),
        (
            "space.loader.prefetch_factor.when.loader.num_workers.min=2",
            lambda s: s.space["loader.prefetch_factor"].when["loader.num_workers"].min,
            2,
        ),
        (
            "space.loader.pin_memory={type: categorical, choices: [true, false]}",
            lambda s: s.space["loader.pin_memory"].choices,
            (True, False),
        ),
        (
            "space.model.num_layers={type: int, low: 1, high: 4}",
            lambda s: s.space["model.num_layers"].high,
            4,
        ),
        ("baseline.model.hidden_size=256", lambda s: s.baseline["model.hidden_size"], 256),
        ("also_try.0.batch_size=512", lambda s: s.also_try[0]["batch_size"], 512),
        ("also_try=[]", lambda s: s.also_try, ()),
        ("production=null", lambda s: s.production, None),
        ("execution.gpus=[0, GPU-1]", lambda s: s.execution.gpus, [0, "GPU-1"]),
    ],
)
def test_overrides(whole, override, read, expected):
    assert read(load(whole, [override])) == expected


def test_overrides_build_up_a_new_parameter(whole):
    spec = load(
        whole,
        ["space.accumulate_steps.type=int", "space.accumulate_steps.low=1", "space.accumulate_steps.high=4"],
    )
    assert spec.space["accumulate_steps"].size() == 4


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("search.trails=3", "`search.trails` is not a known key. Did you mean `trials`?"),
        ("serch.trials=3", "`serch` is not a known key. Did you mean `search`?"),
        ("search.trials=many", "`search.trials` must be a valid integer, but got 'many'."),
        ("search.trials.x=3", "`search.trials` has no keys, but got `x` below it."),
        ("space.batch_sizes.high=3", "`batch_sizes` is not a field of a trial. Did you mean `batch_size`?"),
        ("space.accumulate_steps.high=3", "`space.accumulate_steps.type` is required, but it is missing."),
        ("also_try.1.seed=3", "`also_try` has items 0 to 0, but got `1`."),
        ("fix.optimizer.lr=.inf", "The value must be a finite number, but got .inf."),
        (
            "data.path=[",
            "The value must be YAML, but got the end of the text (did not find expected node content).",
        ),
        ("nothing", "An override must be written `key=value`, but got 'nothing'."),
        ("=3", "An override must be written `key=value`, but got '=3'."),
    ],
)
def test_a_mistake_in_an_override_names_it(whole, override, text):
    assert errors(whole, [override]) == [f"--set {override}: {text}"]


def test_an_override_mends_a_value_in_the_file(whole):
    whole.write_text(whole.read_text().replace("trials: 40", "trials: none"))
    assert errors(whole) == ["whole.yaml:22:34: `search.trials` must be a valid integer, but got 'none'."]
    assert load(whole, ["search.trials=7"]).search.trials == 7


def test_from_dict_reads_to_dict_back(whole):
    spec = load(whole, ["search.minutes=null", "objectives=[{maximize: throughput}, {minimize: val_loss}]"])
    tree = spec.to_dict()
    assert SweepSpec.from_dict(tree) == spec
    assert SweepSpec.from_dict(json.loads(json.dumps(tree, allow_nan=False))) == spec
    Path("again.yaml").write_text(to_yaml(tree))
    assert load(Path("again.yaml")) == spec
    assert SweepSpec.from_dict({**tree, "confirm": {"top": 4, "rounds": 4}}) != spec


def test_reading_imports_neither_the_pipeline_nor_heavy_libraries(whole):
    Path("pipelines").mkdir()
    Path("pipelines/stocks.py").write_text("prepare = build = None\nraise SystemExit('imported')")
    code = (
        "import sys, pathlib; from sweeper.schema import load; load(pathlib.Path('whole.yaml'));"
        "print(*sorted({'torch', 'optuna', 'mlflow', 'pandas', 'numpy', 'pipelines'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize("written", ["off", "auto", "before"])
def test_an_earlier_sweep_is_named_or_left_aside(whole, written):
    assert load(whole, [f"search.warm_start={written}"]).search.warm_start == written


def test_tuples_of_python_count_as_lists():
    tree = {
        "name": "toy",
        "command": ("python", "train.py", "--bs", "{batch_size}"),
        "space": {"batch_size": {"type": "categorical", "choices": (32, 64)}},
        "baseline": {"batch_size": 32},
    }
    assert load(tree).space["batch_size"].size() == 2
    tree["command"] = ("torchrun", "--nnodes", "4", "train.py", "--bs", "{batch_size}")
    with pytest.raises(UserError, match="elsewhere"):
        load(tree)
