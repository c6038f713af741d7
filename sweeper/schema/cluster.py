"""Defines the sections of `execution` for clusters: a job's request, and the files for a scheduler's TLS."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sweeper.schema.space import Section

_MEMORY = re.compile(r"([1-9]\d*(?:\.\d+)?) ?([KMGT])(i?)B")


def _time(value: Any) -> Any:
    """Checks a time: `H:MM:SS`, `D-HH:MM:SS` or minutes; returns minutes as `H:MM:SS`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return f"{value // 60}:{value % 60:02d}:00"
    if not isinstance(value, str) or not re.fullmatch(r"(\d{1,3}-)?\d{1,4}(:[0-5]\d){2}", value):
        raise ValueError("must be a time such as `4:00:00` (hours, minutes, seconds), or whole minutes")
    return value


def _memory(value: Any) -> Any:
    if not isinstance(value, str) or not _MEMORY.fullmatch(value):
        raise ValueError("must be an amount with its unit, such as `16GB`")
    return value


def _line(value: str) -> str:
    if "\n" in value or "\r" in value:
        raise ValueError("must be one line")
    return value


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of lines, such as `[module load cuda]` or `[--qos=high]`")
    return value


_Line = Annotated[str, BeforeValidator(lambda value: _line(value) if isinstance(value, str) else value)]
_Lines = Annotated[tuple[_Line, ...], Field(strict=False), BeforeValidator(_list)]


class BatchJob(Section):
    """The request for each job of a batch system; a job is a worker with one trial at a time.

    Attributes:
        partition: The partition (SLURM) or queue; empty for the site's default.
        account: The account to charge (a project, for LSF and SGE).
        constraint: Requirement on the node in the system's syntax, such as `a100` with SLURM.
        time: A job's time limit: `4:00:00`, or whole minutes. New jobs replace those that have
            ended.
        cores: Cores per job.
        memory: Memory per job.
        exclusive: Whether a job has its node to itself.
        interface: The network interface over which workers reach this machine, such as `ib0`.
        python: The interpreter on the nodes; the path of this one by default.
        directives: More directives for the job script, without `#SBATCH` or the like.
        prologue: Shell lines that run before the worker, such as `module load cuda`.
    """

    partition: _Line = ""
    account: _Line = ""
    constraint: _Line = ""
    time: Annotated[str, BeforeValidator(_time)] = "1:00:00"
    cores: Annotated[int, Field(ge=1)] = 4
    memory: Annotated[str, BeforeValidator(_memory)] = "16GB"
    exclusive: bool = False
    interface: _Line = ""
    python: _Line = ""
    directives: _Lines = ()
    prologue: _Lines = ()

    @property
    def time_seconds(self) -> float:
        """The time limit of a job in seconds."""
        days, _, clock = self.time.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return int(days or 0) * 86_400.0 + hours * 3600 + minutes * 60 + seconds

    @property
    def memory_bytes(self) -> float:
        """The memory of a job in bytes."""
        match = _MEMORY.fullmatch(self.memory)
        assert match is not None
        step = 1024.0 if match[3] else 1000.0
        return float(match[1]) * step ** (1 + "KMGT".index(match[2]))


class Tls(Section):
    """The files for reaching a cluster's scheduler over TLS."""

    ca_file: str
    cert_file: str
    key_file: str
