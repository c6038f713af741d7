"""Writes a SLURM script whose run resumes after an interruption, with the resources that a trial used."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.core.config import Scalar
from sweeper.exports.document import origin, promise
from sweeper.exports.formats import Options
from sweeper.script.changes.environment import RETAIN

MEMORY_HEADROOM = 1.3
MIN_MEMORY_GIB = 2
TIME_HEADROOM = 1.3
MIN_MINUTES = 10
GRACE_SECONDS = 120
"""Seconds for a last checkpoint before the time limit."""

STOPPED = 143
"""Exit code of a run that SIGTERM stopped."""

_RESUMED = f"""\
code=$?

# Out of time: requeue this job, which resumes from its last checkpoint.
if [ "$code" -eq {STOPPED} ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
""".splitlines()


def job_script(value: Mapping[str, Any], options: Options) -> str:
    """Returns an export as a script for `sbatch`."""
    settings = _settings(value)
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {' '.join(origin(value).split())}: {promise(value)}.",
            *(f"# Warning: {' '.join(warning.split())}" for warning in value["warnings"]),
            *_directives(value, settings),
            "",
            *_environment(value, settings),
            f"srun {_command(value, options.runs)}",
            *(_RESUMED if "config" in value else []),
            "",
        ]
    )


def _settings(value: Mapping[str, Any]) -> Mapping[str, Scalar]:
    """Returns the settings that determine the resources of a run, by dotted name."""
    if "params" in value:
        params: Mapping[str, Scalar] = value["params"]
        return params
    config = value["config"]
    return {f"{head}.{name}": config[head][name] for head in ("loader", "device") for name in config[head]}


def _directives(value: Mapping[str, Any], settings: Mapping[str, Scalar]) -> Iterator[str]:
    measured, held = value["measurement"], value["conditions"]
    name = re.sub(r"[^\w.-]", "_", value["provenance"]["sweep"], flags=re.ASCII)
    yield f"#SBATCH --job-name={name}"
    yield f"#SBATCH --output={name}-%j.log"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --nodes=1"
    yield "#SBATCH --ntasks=1"
    if held.get("gpu"):
        yield f"#SBATCH --gres=gpu:{_whole_number(settings.get('device.count')) or 1}"
    if cpus := _cpus(held, settings):
        yield f"#SBATCH --cpus-per-task={cpus}"
    peak = max(measured.get("host_mem_peak_gib") or 0.0, measured.get("tree_mem_gib") or 0.0)
    if peak:
        larger = (value.get("production", {}).get("data_gib") or 0.0) - (held.get("data_gib") or 0.0)
        needed = math.ceil(MEMORY_HEADROOM * peak + max(0.0, larger))
        yield f"#SBATCH --mem={max(MIN_MEMORY_GIB, needed)}G"
    else:
        yield "##SBATCH --mem=16G            (peak unknown; set your own)"
    if hours := measured.get("projected_hours"):
        yield f"#SBATCH --time={_time(hours)}"
    else:
        yield "##SBATCH --time=1-00:00:00     (set your own; `production:` in the YAML gives an estimate)"
    if "config" in value:
        yield f"#SBATCH --signal=TERM@{GRACE_SECONDS}"
        yield "#SBATCH --requeue"
    else:
        # A script that starts over each time would never finish.
        yield "##SBATCH --requeue     (only if your script resumes from its own checkpoint)"
    yield "##SBATCH --partition=NAME     (and --account=NAME, if your cluster needs them)"


def _cpus(held: Mapping[str, Any], settings: Mapping[str, Scalar]) -> int:
    """Returns the number of cores that a run needs; 0 if unknown."""
    workers, threads = (
        _whole_number(settings.get("loader.num_workers")),
        _whole_number(settings.get("device.cpu_threads")),
    )
    # Each rank has its own.
    num_ranks = _whole_number(settings.get("device.count")) or 1
    if threads:
        return num_ranks * (workers + threads)
    # Without a setting, the trial's threads used every core, alongside its workers.
    used = held.get("usable_cpus") or held.get("cpu_threads") or 0
    return max(used, num_ranks * (workers + 1) if workers else 0)


def _whole_number(value: Scalar) -> int:
    return value if isinstance(value, int) else 0


def _time(hours: float) -> str:
    """Returns a time limit as SLURM reads it: `days-hours:minutes:seconds`."""
    minutes = max(MIN_MINUTES, math.ceil(60 * TIME_HEADROOM * hours))
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"


def _environment(value: Mapping[str, Any], settings: Mapping[str, Scalar]) -> Iterator[str]:
    if threads := _whole_number(settings.get("device.cpu_threads")) or value["conditions"].get("cpu_threads"):
        yield f"export OMP_NUM_THREADS={threads}"
    if "config" in value and settings["device.malloc"] == "retain":
        yield f"export {' '.join(f'{name}={number}' for name, number in RETAIN.items())}"
    # Since SLURM 22.05 a step does not inherit this from its job.
    yield 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"'


def reads_export(value: Mapping[str, Any]) -> bool:
    """Returns whether a job trains from the exported file; otherwise the script is run directly.

    Only `sweeper train` writes a script's files and makes changes at run time.
    """
    return "command" not in value or bool(value["files"] or value["changes"])


def _command(value: Mapping[str, Any], runs: str) -> str:
    if reads_export(value):
        return f"sweeper train {shlex.quote(runs)}"
    variables = [f"{name}={text}" for name, text in value["env"].items()]
    return shlex.join([*(["env", *variables] if variables else []), *value["command"]])
