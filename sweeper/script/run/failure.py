"""Says why a script ended without a measurement, from its exit status and its last lines."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import NoReturn

from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.errors import UserError
from sweeper.script.run.output import Listener
from sweeper.script.run.process import ScriptProcess
from sweeper.system.environment import secrets
from sweeper.system.secrets import strike
from sweeper.worker import failures

_OFFLINE = re.compile(r"HF_HUB_OFFLINE|OfflineMode|outgoing traffic has been disabled")
_PORT_IS_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_OUT_OF_MEMORY = (FailureKind.HOST_OOM, FailureKind.OOM, FailureKind.SHM)
_RAISED = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)")
_BY_ANOTHER_RANK = re.compile(r"ChildFailedError|ProcessRaisedException|Connection (closed|reset) by peer")


def is_for_want_of_room(kind: str, message: str) -> bool:
    """Returns whether a script may have failed because another copy of it is running.

    Two copies may not fit into memory, or may want the same port.
    """
    return kind in _OUT_OF_MEMORY or _PORT_IS_TAKEN.search(message) is not None


def explain(
    process: ScriptProcess, listener: Listener, source: str, oom_kills: int, refused: str = ""
) -> NoReturn:
    """Raises the failure of a script that has exited.

    Args:
        source: Source that reports the baseline's speed.
        oom_kills: Number of processes that the kernel had killed for memory before the script started.
        refused: What the script could not write, in words.

    Raises:
        TrialFailedError: It failed, or reported no speed.
        UserError: A setting that is needed to use its reports is missing.
    """
    status = process.status
    assert status is not None
    lines = [line for line in listener.last_lines if line.strip()]
    if status == 0:
        _explain_silence(process, listener, source)
    kind, message = failures.of_exit(status, "\n".join(lines), failures.oom_kills() - oom_kills)
    raised = _raised(lines)
    message = message.replace("the trial", "the script").replace(" without a result", "")
    if kind is FailureKind.CRASH and os.WIFEXITED(status):
        kind = FailureKind.USER_ERROR
    last = raised or (lines[-1].strip() if lines else "it printed nothing")
    text = f"{message}: {strike(last, secrets(os.environ))[:300]}"
    if any(map(_OFFLINE.search, lines)):
        text += (
            ". A trial cannot reach the Hugging Face hub: run the script once outside of sweeper, so that"
            " its files are in the cache, or set `script: {env: {HF_HUB_OFFLINE: '0'}}`"
        )
    if refused:
        text += f". The script may not write to {refused} here; `--unprotected PATH` allows it"
    raise TrialFailedError(kind, text)


def _raised(lines: Sequence[str]) -> str:
    """Returns the error that ended a script; empty if its lines do not say. Where a rank fails, others do."""
    errors = [match[1] for line in lines if (match := _RAISED.match(line.strip()))]
    first = [error for error in errors if not _BY_ANOTHER_RANK.search(error)]
    return (first or errors or [""])[-1]


def _explain_silence(process: ScriptProcess, listener: Listener, source: str) -> NoReturn:
    """Raises the failure of a script that exited successfully, but reported nothing that can be timed."""
    if missing := listener.missing_setting():
        raise UserError(missing)
    if other := listener.other_source():
        why = f"its speed is reported by {other}, but the baseline's by {source}: the two cannot be compared"
    elif steps := listener.watched.steps:
        why = f"the script ended after {steps:,} steps, too few to time. Let it train for longer"
    else:
        seconds = time.perf_counter() - process.started_s
        why = (
            f"the script exited with status 0 after {seconds:.3g} s without reporting its speed: no meter,"
            f" and no count or speed in its {listener.num_lines} lines of output."
            " Name the command that trains"
        )
    raise TrialFailedError(FailureKind.NO_RESULT, why)
