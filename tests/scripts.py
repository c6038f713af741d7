"""Scripts in the styles of the wild (tests/script/run/wild), with command lines, jobs and spaces for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.core.config import TrialConfig
from sweeper.core.job import SCRIPT_RUNNER, Job, MeasurePlan
from sweeper.core.script import Script

REPOSITORY = Path(__file__).parents[1]
WILD = Path(__file__).parent / "script" / "run" / "wild"
PLAN = MeasurePlan(window_seconds=0.3, repeats=3, warmup_cap_seconds=5.0, cap_seconds=20.0, diagnose=False)
YAML = "train: {batch_size: {batch_size}, epochs: 1000}\ndata: {samples: 9600}\n"

SCRIPTS: Mapping[str, Script] = {
    "with_argparse": Script(
        command=(sys.executable, "with_argparse.py", "--batch-size", "{batch_size}", "{amp: true -> --amp}")
    ),
    "with_overrides": Script(command=(sys.executable, "with_overrides.py", "--batch_size={batch_size}")),
    "with_yaml": Script(command=(sys.executable, "with_yaml.py"), files={"config.yaml": YAML}),
    "in_chinese": Script(
        command=(sys.executable, "in_chinese.py", "--batch_size", "{batch_size}"), samples_per_epoch=3200
    ),
    "with_trainer": Script(
        command=(
            *(sys.executable, "with_trainer.py", "--per_device_train_batch_size", "{bs}"),
            *("--gradient_accumulation_steps", "{accumulate}", "--output_dir", "out"),
        ),
        samples_per_step="{bs}*{accumulate}",
    ),
}
EVIL = Script(command=(sys.executable, "evil.py", "{how}", "{batch_size}"))
PARAMS: Mapping[str, Mapping[str, Any]] = {
    name: {"batch_size": 32, "amp": False} if name == "with_argparse" else {"batch_size": 32}
    for name in SCRIPTS
} | {"with_trainer": {"bs": 16, "accumulate": 2}}


def job_of(script: Script, params: Mapping[str, Any], plan: MeasurePlan = PLAN, **changes: Any) -> Job:
    """A job that runs a script of the folder `wild`."""
    return Job(
        uid="script",
        runner=SCRIPT_RUNNER,
        script=replace(script, folder=str(WILD), env={**script.env, "PYTHONPATH": str(REPOSITORY)}),
        config=TrialConfig(args={}).replace(params),
        plan=plan,
        timeout_seconds=60,
        **changes,
    )


QUICK: dict[str, Any] = {
    "measure": {"window_seconds": 0.2, "repeats": 1, "warmup_cap_seconds": 1},
    "search": {"trials": 3, "minutes": None},
    "confirm": {"top": 1, "rounds": 2, "precision": 0.5},
}
SIZES = {"type": "int", "low": 8, "high": 512, "log": True}
LOSS = {"val_loss": {"max_ratio_to_baseline": 1.5}}

SPACES: dict[str, dict[str, Any]] = {
    "with_argparse": {
        "command": [
            *("python", "with_argparse.py", "--batch-size", "{batch_size}"),
            *("{amp: true -> --amp}", "--hidden-size={model.hidden_size}", "--steps", "{steps}"),
        ],
        "space": {"batch_size": SIZES, "amp": {"type": "categorical", "choices": [True, False]}},
        "fix": {"steps": 2000},
        "baseline": {"batch_size": 16, "amp": False, "model.hidden_size": 64},
        "constraints": LOSS,
    },
    "with_overrides": {
        "command": ["python", "with_overrides.py", "--batch_size={batch_size}", "--log_interval={interval}"],
        "script": {"env": {"NO_METER": "1"}},
        "space": {"batch_size": SIZES},
        "fix": {"interval": 10},
        "baseline": {"batch_size": 16},
        "constraints": LOSS,
    },
    "with_yaml": {
        "command": ["python", "with_yaml.py"],
        "script": {"env": {"NO_METER": "1"}, "files": {"config.yaml": {"template": "config.yaml.in"}}},
        "space": {"batch_size": SIZES},
        "baseline": {"batch_size": 16},
    },
    "in_chinese": {
        "command": ["python", "in_chinese.py", "--batch_size", "{batch_size}"],
        "script": {"env": {"NO_METER": "1"}, "samples_per_epoch": 3200},
        "space": {"batch_size": SIZES},
        "baseline": {"batch_size": 16},
    },
    "with_trainer": {
        "command": [
            *("python", "with_trainer.py", "--per_device_train_batch_size", "{bs}"),
            *(
                "--gradient_accumulation_steps",
                "{accumulate}",
                "--output_dir",
                "out",
                "--max_steps",
                "{steps}",
            ),
        ],
        "script": {"samples_per_step": "{bs}*{accumulate}"},
        "space": {"bs": SIZES, "accumulate": {"type": "categorical", "choices": [1, 2, 4]}},
        "fix": {"steps": 100_000},
        "baseline": {"bs": 16, "accumulate": 1},
    },
}
