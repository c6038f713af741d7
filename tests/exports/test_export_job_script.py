"""A job script that bash and SLURM take, that asks for what the trial took, and that resumes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from exports import A10, export_of
from replays import spec_of

from sweeper.core.measurement import Stats
from sweeper.exports import Options, Setting, render_export

DIRECTIVE = re.compile(r"#SBATCH --([a-z-]+)(?:=(\S+))?")
HOSTILE = "/tmp/it's $(id) `id`/best.yaml"


def directives(text: str) -> dict[str, str | None]:
    """The options SLURM reads: those before the first command."""
    found = {}
    for line in text.splitlines()[1:]:
        if not line.startswith("#") and line:
            break
        if line.startswith("#SBATCH"):
            whole = DIRECTIVE.fullmatch(line)
            assert whole, line
            assert whole[1] not in found
            found[whole[1]] = whole[2]
    return found


def run(text: str, folder: Path, code: int = 0) -> list[list[str]]:
    """Runs the script with stand-ins for SLURM's own programs; returns what they were called with."""
    log = folder / "calls"
    for name, ends in (("srun", code), ("scontrol", 0)):
        program = folder / name
        program.write_text(
            "#!/bin/sh\n"
            f'{{ echo {name}; for a in "$@"; do echo "$a"; done; '
            'echo "OMP=$OMP_NUM_THREADS CPUS=$SRUN_CPUS_PER_TASK ARENA=$MALLOC_MMAP_MAX_"; echo --; } '
            f'>> "{log}"\nexit {ends}\n'
        )
        program.chmod(0o755)
    (folder / "job.sh").write_text(text)
    env = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "5",
    }
    assert subprocess.run(["bash", "-n", str(folder / "job.sh")]).returncode == 0
    assert subprocess.run(["bash", str(folder / "job.sh")], env=env).returncode == code
    calls = log.read_text().split("--\n")[:-1]
    log.unlink()
    return [call.splitlines() for call in calls]


def gpu(
    settings: dict[str, Any], production: dict[str, float] | None = None, **measured: Any
) -> dict[str, Any]:
    spec = spec_of(production=production) if production else None
    hours = production["samples"] if production else None
    return export_of(
        settings,
        spec,
        device=A10,
        setting=Setting(data_gib=1.0, usable_cpus=12),
        about={"production_samples": hours},
        **measured,
    )


def test_it_asks_for_what_the_trial_took():
    value = gpu(
        {"device.count": 2, "loader.kind": "workers", "loader.num_workers": 6, "device.cpu_threads": 3},
        {"samples": 3.6e6 * 30},
        host_mem_peak_gib=3.0,
        telemetry={"tree_mem_gib": Stats(mean=8.0, p50=8.0, p95=10.0)},
    )
    assert directives(render_export(value, "sbatch")) == {
        "job-name": "toy",
        "output": "toy-%j.log",
        "open-mode": "append",
        "nodes": "1",
        "ntasks": "1",
        "gres": "gpu:2",
        "cpus-per-task": "18",
        "mem": "13G",
        "time": "1-15:00:00",
        "signal": "TERM@120",
        "requeue": None,
    }


def test_without_threads_of_its_own_it_takes_the_cores_there_were():
    assert directives(render_export(gpu({}, cpu_threads=12), "sbatch"))["cpus-per-task"] == "12"
    many = gpu({"loader.kind": "rows", "loader.num_workers": 16})
    assert directives(render_export(many, "sbatch"))["cpus-per-task"] == "17"


def test_larger_data_needs_more_memory():
    asked = {"loader.kind": "stream"}
    found = gpu(asked, {"samples": 1.0, "data_gib": 21.0}, host_mem_peak_gib=3.0)
    assert directives(render_export(found, "sbatch"))["mem"] == "24G"
    assert directives(render_export(found, "sbatch"))["time"] == "0-00:10:00"


def test_what_is_not_known_is_left_to_the_user():
    text = render_export(export_of({}), "sbatch")
    assert directives(text).keys().isdisjoint({"gres", "mem", "time", "cpus-per-task"})
    assert "\n##SBATCH --time=" in text
    assert "\n##SBATCH --mem=" in text


@pytest.mark.parametrize("runs", ["best.yaml", HOSTILE])
def test_it_trains_from_the_file_and_passes_its_end_on(tmp_path, runs):
    text = render_export(gpu({"device.cpu_threads": 3}), "sbatch", Options(runs=runs))
    ((*call, env),) = run(text, tmp_path)
    assert call == ["srun", "sweeper", "train", runs]
    assert env == "OMP=3 CPUS=5 ARENA=0"
    assert len(run(text, tmp_path, code=1)) == 1


def test_a_run_out_of_time_waits_for_its_next_turn(tmp_path):
    text = render_export(gpu({"device.malloc": "default"}), "sbatch")
    first, then = run(text, tmp_path, code=143)
    assert first[-1].endswith("ARENA=")
    assert then[:3] == ["scontrol", "requeue", "7"]


SCRIPT = {
    "command": ["python", "my train.py", "$(id)", "--bs", "3"],
    "changes": {},
    "env": {"A": "it's `id`"},
    "files": {},
    "params": {"batch_size": 3, "loader.num_workers": 4},
}


def test_a_script_runs_as_it_is(tmp_path):
    value = {**gpu({}), **SCRIPT}
    del value["config"]
    text = render_export(value, "sbatch")
    ((*call, _),) = run(text, tmp_path)
    assert call == ["srun", "env", "A=it's `id`", *SCRIPT["command"]]
    assert "TERM" not in text
    assert directives(text).keys().isdisjoint({"signal", "requeue"})
    # It might begin anew each time.
    assert len(run(text, tmp_path, code=143)) == 1
    with_files = {**value, "files": {"config.yaml": "x"}}
    ((*call, _),) = run(render_export(with_files, "sbatch"), tmp_path)
    assert call == ["srun", "sweeper", "train", "best.yaml"]


def test_a_tunes_changes_are_made_by_what_trains_from_its_export(tmp_path):
    value = {**gpu({}), **SCRIPT, "changes": {"optimizer": "fused"}}
    del value["config"]
    ((*call, _),) = run(render_export(value, "sbatch"), tmp_path)
    assert call == ["srun", "sweeper", "train", "best.yaml"]
