"""Starts the script of a trial: makes its working directory and environment, and runs its process."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sweeper.core.codec import encode
from sweeper.core.config import Scalar
from sweeper.core.job import ANYWHERE, RECORD, Job
from sweeper.core.measurement import DeviceInfo, FailureKind
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.core.script import FOLDER, Script
from sweeper.core.template import arguments, render
from sweeper.core.workload import script_of
from sweeper.errors import UserError
from sweeper.script import inside
from sweeper.script.changes import CHANGES_VARIABLE, variable_of
from sweeper.script.changes.rows.dataset_file import KEPT_FOLDER, KEPT_VARIABLE
from sweeper.script.inside.recorder import RECORD as RECORD_FILE
from sweeper.script.inside.recorder import RECORDING_VARIABLE
from sweeper.script.run.command_line import without_search_path
from sweeper.script.run.mirror import leads_out
from sweeper.script.run.output import Listener
from sweeper.script.run.ports import PORT_VARIABLES, reserved_port
from sweeper.script.run.process import ScriptProcess, StepRequest
from sweeper.script.run.sandbox import BeginAgainError, Sandbox, make_sandbox, remember
from sweeper.system.cpu import cpu_name
from sweeper.system.environment import script_env, secrets
from sweeper.system.files import write_json
from sweeper.system.secrets import strike_tree
from sweeper.telemetry.nvml.devices import first_gpu, full_uuid, name_and_memory_gib
from sweeper.worker import failures, stacks

OURS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOMP_SPINCOUNT")
"""Variables that are set for sweeper's own processes; a script gets only the values of its trial."""

OFFLINE = {
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
}
"""Variables that keep a trial from sending anything to a tracker or a hub, even if the user's runs do."""
WANDB_FOLDER = "WANDB_DIR"
QUIET = ("disabled", "dryrun")
"""Other modes of W&B that send nothing."""
HASH_SEED = "PYTHONHASHSEED"
MAX_BEGINNINGS = 6
P = ParamSpec("P")
T = TypeVar("T")
MLFLOW_SERVER = ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningScript:
    """A running script.

    Attributes:
        device: The first of the trial's devices, as far as NVML knows it.
        oom_kills: Number of processes on this machine that had been killed for memory before it started.
    """

    process: ScriptProcess
    listener: Listener
    sandbox: Sandbox
    device: DeviceInfo
    oom_kills: int


@contextlib.contextmanager
def started(
    job: Job, progress: Progress, *, is_trial: bool = True, reports_outside: bool = False
) -> Iterator[RunningScript]:
    """Runs the script of `job`, and ends it afterwards.

    Args:
        is_trial: Whether this run is the trial: it leaves a report and, if `script.keep` is set, its files.
            Its first steps are recorded if `job.recording` is set.
        reports_outside: Whether it is reported what the script does outside of its folder.

    Raises:
        UserError: It cannot be started.
    """
    script, place = script_of(job), Path(job.folder)
    mode = inside.RECORD if is_trial and job.recording is not None else inside.WATCH
    if mode == inside.RECORD:
        for earlier in place.glob(RECORD_FILE.format("*")):
            # Of an earlier beginning.
            earlier.unlink()
    values: dict[str, Scalar] = {**(job.config.args or {}), FOLDER: str(place)}
    command = arguments(script.command, values)
    if is_trial:
        progress.stage("build")
    sandbox = make_sandbox(script, values, place / ("work" if is_trial else "diagnosis"), place, job.cache)
    _check_paths(command, script, sandbox)
    command, searched = without_search_path(sandbox.translate(command))
    listener = Listener(script, job.config, place, job.reporter)
    variables = {**script.variables(values), **variable_of(script.changes_for(values))}
    if searched is not None:
        variables["PYTHONPATH"] = searched
    files = {path: render(text, values) for path, text in script.files.items()}
    record = {"command": command, "folder": str(sandbox.folder), "env": variables, "files": files}
    kills = failures.oom_kills()
    place.mkdir(parents=True, exist_ok=True)
    request = StepRequest(place / "request")
    try:
        with reserved_port() as port, _trackers(place) as trackers:
            environment = _environment(
                job, script, {**trackers, **variables, **listener.environment}, port, mode
            )
            environment.update(sandbox.environment(environment))
            environment.update(request.environment)
            if reports_outside and not sandbox.is_the_folder:
                environment[inside.OUTSIDE_VARIABLE] = "1"
            hidden = secrets(environment)
            if is_trial:
                write_json(place / RECORD, strike_tree(record, hidden))
            process = ScriptProcess(command, sandbox, environment, listener, request)
            try:
                device = _describe(job.device)
                if is_trial:
                    progress.device(device)
                    progress.stage("warmup")
                yield RunningScript(
                    process=process,
                    listener=listener,
                    sandbox=sandbox,
                    device=device,
                    oom_kills=kills,
                )
            finally:
                process.stop()
                process.close()
                if is_trial:
                    # The first loss in the output may be NaN.
                    heard = encode(listener.report())
                    write_json(place / RECORD, strike_tree({**record, "heard": heard}, hidden))
    finally:
        request.close()
        listener.close()
        sandbox.close()
        _keep_added(sandbox, listener)
        if not (script.keep and is_trial):
            sandbox.remove()


def _check_paths(command: Sequence[str], script: Script, sandbox: Sandbox) -> None:
    """Checks that a command names no file that its mirror does not have.

    Raises:
        UserError: It does.
    """
    if not sandbox.is_the_folder and (path := leads_out(command, Path(script.folder))):
        raise UserError(
            "`command` must not contain a relative path that leads farther up than the folder around its"
            f" repository, but has {path!r}. Write the absolute path, or use `--unprotected`."
        )


def _keep_added(sandbox: Sandbox, listener: Listener) -> None:
    """Keeps for later runs what the script has added before it trained, such as a download."""
    began_s = listener.timeline.began_s
    if began_s is None:
        return
    for addition in sandbox.keep_added(time.time_ns() - round(1e9 * (time.perf_counter() - began_s))):
        size = f"{addition.num_bytes / 2**20:,.0f} MiB"
        print(f"sweeper: {addition.path} ({size}), which the script added, is kept for later runs.")


def begins_again(run: Callable[Concatenate[Job, P], T]) -> Callable[Concatenate[Job, P], T]:
    """Returns a function that runs a job's script, and again with another mirror if the script needs one.

    It raises a TrialFailedError if the script needs another mirror again and again.
    """

    def until_it_runs(job: Job, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run_again(job, lambda: run(job, *args, **kwargs))

    functools.update_wrapper(until_it_runs, run)

    return until_it_runs


def _run_again(job: Job, run: Callable[[], T]) -> T:
    script = script_of(job)
    places: list[Path] = []
    while len(places) < MAX_BEGINNINGS:
        try:
            return run()
        except BeginAgainError as again:
            places.append(again.place)
            remember(Path(script.folder).resolve(), job.cache, again.place)
            if len(places) < MAX_BEGINNINGS:
                print(f"sweeper: the script writes to {again.place}, so it starts again with a copy of that.")
    folder = Path(script.folder).resolve()
    names = ", ".join(min(str(place), os.path.relpath(place, folder), key=len) for place in places)
    raise TrialFailedError(
        FailureKind.USER_ERROR, f"the script started again too often: it writes to {names}"
    )


@contextlib.contextmanager
def _trackers(place: Path) -> Iterator[dict[str, str]]:
    """Yields variables that keep the script's own tracking on this machine, in a folder of the trial."""
    folder = place / "trackers"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        variables = {**OFFLINE, WANDB_FOLDER: str(folder.resolve())}
        if os.environ.get("WANDB_MODE") in QUIET:
            del variables["WANDB_MODE"]
        yield variables
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(
    job: Job, script: Script, variables: Mapping[str, str], port: int | None, mode: str
) -> dict[str, str]:
    left_out = {*OURS, *MLFLOW_SERVER} - {*job.env}
    given = script_env({**os.environ, **job.env})
    environment = {name: value for name, value in given.items() if name not in left_out}
    # Otherwise Python's output would arrive in blocks of several kB.
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault(stacks.FAULT_HANDLER_VARIABLE, "1")
    if port is not None:
        for name in PORT_VARIABLES:
            environment.setdefault(name, str(port))
    if job.device != ANYWHERE:
        environment["CUDA_VISIBLE_DEVICES"] = "" if job.device == "cpu" else job.device
    environment.update(variables)
    if environment.get(CHANGES_VARIABLE) and job.cache:
        kept = Path(job.cache, KEPT_FOLDER)
        with contextlib.suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            environment[KEPT_VARIABLE] = str(kept)
    if searched := environment.get("PYTHONPATH"):
        # From the mirror, a relative path beyond its surroundings would lead elsewhere or nowhere.
        source = Path(script.folder)
        folders = (str(source / e) if leads_out([e], source) else e for e in searched.split(os.pathsep))
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    if job.recording is not None and mode == inside.RECORD:
        environment[RECORDING_VARIABLE] = json.dumps(encode(job.recording))
        environment[HASH_SEED] = "0"
    if script.watch:
        all_losses = job.plan.quality_samples > 0
        environment.update(inside.environment(environment, mode, job.folder, all_losses=all_losses))
    return environment


def _describe(device: str) -> DeviceInfo:
    uuid = ""
    if device != "cpu":
        uuid = first_gpu() if device == ANYWHERE else full_uuid(device.partition(",")[0])
    if not uuid:
        return DeviceInfo(kind="cpu", name=cpu_name())
    name, memory_gib = name_and_memory_gib(uuid)
    return DeviceInfo(kind="cuda", name=name or uuid, uuid=uuid, memory_gib=round(memory_gib, 2))
