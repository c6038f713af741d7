"""The trial's side of a worker: runs the job and sends its outcome to the keeper."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sweeper.core import job as jobs
from sweeper.core import modules
from sweeper.core.codec import encode
from sweeper.core.job import Job, read_job
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Measurement, Report, Window
from sweeper.core.progress import Progress, Steps, TrialFailedError
from sweeper.errors import UserError
from sweeper.system.environment import secrets
from sweeper.system.secrets import strike
from sweeper.worker import failures, stacks
from sweeper.worker.step_counter import SharedSteps

RUNNERS: Mapping[str, str] = {
    jobs.TRIAL_RUNNER: "sweeper.trainer.measure:run",
    jobs.QUALITY_RUNNER: "sweeper.trainer.quality:run",
    jobs.PREPARE_RUNNER: "sweeper.trainer.prepare:run",
    jobs.PROBE_RUNNER: "sweeper.trainer.probe:run",
    jobs.TRACE_RUNNER: "sweeper.trainer.trace:run",
    jobs.GPU_CHECK_RUNNER: "sweeper.trainer.gpu_check:run",
    jobs.DRY_STEP_RUNNER: "sweeper.trainer.dry_step:run",
    jobs.PREFLIGHT_RUNNER: "sweeper.trainer.preflight:run",
    jobs.CEILINGS_RUNNER: "sweeper.trainer.ceilings:run",
    jobs.SCRIPT_RUNNER: "sweeper.script.run.trial:run",
    jobs.SCRIPT_QUALITY_RUNNER: "sweeper.script.run.trial:run_for_loss",
    jobs.TRAINING_RUNNER: "sweeper.trainer.production:run",
}
"""Import strings of the functions that run jobs; a module is imported only when it is needed."""

_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))

# torch passes on an error from a loader's worker or pinning thread as text: one line, then its traceback.
_IN_WORKER = re.compile(r"Caught \w+ in (DataLoader worker process|pin memory thread)")
_FRAME = re.compile(r'File "(.+?)", line (\d+)')


class PipeProgress:
    """Sends progress to the keeper as JSON lines; the keeper answers a window with what disturbed it."""

    def __init__(self, descriptor: int, steps: Steps) -> None:
        self._descriptor = descriptor
        self._answers = open(descriptor, "rb", closefd=False)  # noqa: SIM115
        self.reached = "start"
        self.steps = steps

    def send(self, **message: Any) -> None:
        """Writes one complete line."""
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def stage(self, name: str) -> None:
        """Reports the stage that the job has reached."""
        self.reached = name
        self.send(stage=name)

    def device(self, info: DeviceInfo) -> None:
        """Reports the device that the job runs on."""
        self.send(device=encode(info))

    def window(self, window: Window) -> Sequence[str]:
        """Reports the end of a window and waits for the keeper's answer."""
        self.send(window=encode(window))
        answer: list[str] = json.loads(self._answers.readline() or "[]")
        return answer


def runner_of(job: Job) -> Callable[[Job, Progress], Measurement | Report]:
    """Returns the function that `job.runner` names.

    Raises:
        ImportError: There is no such module.
        AttributeError: There is no such function in the module.
    """
    if job.runner not in RUNNERS:
        modules.search_first(job.import_paths)
    module, _, function = RUNNERS.get(job.runner, job.runner).partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def run(job: Job, progress: Progress) -> Measurement | Report | Failure:
    """Runs the job's runner in this process; an exception becomes a Failure."""
    try:
        result = runner_of(job)(job, progress)
        assert isinstance(result, Measurement | Report)
        return result
    except TrialFailedError as error:
        return _failure(FailureKind(error.kind), str(error), progress)
    except UserError as error:
        # A shipped pipeline's errors are about its options; the user does not edit its code.
        place = _place(error, job, but_shipped=True)
        if place:
            traceback.print_exc()
        return _failure(
            FailureKind.USER_ERROR, str(error).rstrip(".") + place if place else str(error), progress
        )
    except (Exception, SystemExit) as error:
        place = _place(error, job)
        if isinstance(error, SystemExit) and not place:
            raise
        # The message is one line; the traceback is in the log.
        traceback.print_exc()
        first = _as_raised(error)
        text_kind = failures.of_text(f"{type(error).__module__}.{first}")
        kind = text_kind or (FailureKind.USER_ERROR if place else FailureKind.CRASH)
        return _failure(kind, _first_sentence(first) + place, progress)


def _as_raised(error: BaseException) -> str:
    """Returns `Type: message`; for an error in a loader's worker or thread, as it was raised there."""
    text = f"{type(error).__name__}: {error}"
    if not _IN_WORKER.search(text):
        return text
    # After the last frame, whose source is indented. What CUDA raises has several lines.
    after = text.rstrip().rpartition('\n  File "')[2].splitlines()[1:]
    return "\n".join(itertools.dropwhile(lambda line: line.startswith(" "), after)) or text


def _first_sentence(text: str) -> str:
    """Returns the first sentence of an exception; the rest is in the log."""
    # Secrets are removed before the cut: half a secret would not be recognised.
    return strike(text.splitlines()[0], secrets(os.environ)).partition(". ")[0][:300]


def _failure(kind: FailureKind, message: str, progress: Progress) -> Failure:
    return Failure(kind=kind, message=message, stage=progress.reached, finished_at=time.time())


def _place(error: BaseException, job: Job, *, but_shipped: bool = False) -> str:
    """Returns the innermost line of the user's own code, as ` (file:line)`.

    Files next to the pipeline come before those that it imports from elsewhere.

    Args:
        but_shipped: Whether the pipelines that ship with sweeper count as a library.
    """
    frames = [
        (filename, line)
        for filename, line in reversed(list(_frames(error)))
        if (not but_shipped if modules.is_shipped_pipeline(filename) else _is_users(filename))
        or modules.belongs_to(filename, job.pipeline, job.import_paths)
    ]
    for filename, line in frames:
        for path in job.import_paths:
            if filename.startswith(os.path.join(path, "")):
                return f" ({os.path.relpath(filename, path)}:{line})"
    return f" ({frames[0][0]}:{frames[0][1]})" if frames else ""


def _is_users(filename: str) -> bool:
    """Returns whether a file is neither sweeper's nor installed."""
    is_installed = "-packages" + os.sep in filename or filename.startswith(_LIBRARIES)
    return os.path.isabs(filename) and not is_installed and not modules.is_sweepers(filename)


def _frames(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yields file and line of each call that led to `error`, outermost first."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, str(frame.lineno)
    if _IN_WORKER.search(str(error)):
        yield from _FRAME.findall(str(error))
    # A process pool passes on an exception of one of its processes in this form.
    if error.__cause__ is not None and type(error.__cause__).__name__ in (
        "_RemoteTraceback",
        "RemoteTraceback",
    ):
        yield from _FRAME.findall(str(error.__cause__))
    if isinstance(error, SyntaxError) and error.filename:
        yield error.filename, str(error.lineno)


def main(job: Job, descriptor: int, steps: int) -> NoReturn:
    """Runs the job, sends its result, and exits immediately.

    Exit handlers of compilers and loaders are skipped: nothing after the result matters.
    """
    status = 1
    try:
        stacks.enable()
        modules.set_import_paths(job.import_paths)
        progress = PipeProgress(descriptor, SharedSteps(steps))
        # The counter is mapped; processes that the trial starts do not need it.
        os.close(steps)
        result = run(job, progress)
        progress.send(result={"type": type(result).__name__.lower(), **encode(result)})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(read_job(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
