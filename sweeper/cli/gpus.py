"""What the commands that run a script as it is do about this machine's GPUs before they begin."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rich.console import Console

from sweeper.cli.screen import prose
from sweeper.telemetry.gpu_lines import build_of, gpu_lines
from sweeper.telemetry.nvml.devices import awake, gpu_uuids


@contextlib.contextmanager
def gpus_for(command: Sequence[str], out: Console) -> Iterator[Sequence[str]]:
    """Prints a line for each fault of the GPUs that a command would use, and keeps them initialised.

    Yields:
        The lines.
    """
    lines = gpu_lines(build_of(command))
    for line in lines:
        prose(out, line)
    # With persistence mode off, every process would wait for the driver to initialise them.
    with awake(gpu_uuids()):
        yield lines
