"""The options of a tune, checked before anything runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.home import DEFAULT_HOME
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.schema.rules import leads_elsewhere
from sweeper.script.run.command_line import CommandLine, parse_command, typed_command


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What to tune, and what may be tried.

    Attributes:
        command: The command of the script.
        minutes: Time limit for everything.
        with_flags: Whether the script's own options that are recognised are searched, after the race.
        allow_batch_size: Whether larger batches are searched after it, within a limit on the loss.
        allow_other_draws: Whether changes with which rows draw other random numbers are tried.
        changes: File of the user's own changes.
        epochs: Epochs of a whole run, to say what it takes; None says nothing.
        price: Price of an hour, in any currency; None if it is of no interest.
        name: Name of the sweep.
        new: Whether to start over, under a new name.
        home: The state folder.
        uri: MLflow server or database; None for the one in the state folder.
    """

    command: tuple[str, ...]
    name: str
    minutes: float = 5.0
    with_flags: bool = False
    allow_batch_size: bool = False
    allow_other_draws: bool = False
    changes: Path | None = None
    epochs: float | None = None
    price: float | None = None
    new: bool = False
    home: Path = DEFAULT_HOME
    uri: str | None = None

    @classmethod
    def of(cls, command: str | Sequence[str], *, name: str | None = None, **options: Any) -> TuneOptions:
        """Returns the options of a tune, checked before anything runs.

        Args:
            command: The command, as a list of words or as one line that is split as a shell would.
            name: Name of the sweep; `tune-SCRIPT` by default.
            options: The other attributes.

        Raises:
            UserError: The command cannot be tuned, or an option is wrong.
        """
        line = typed_command(command)
        checked = cls(
            command=tuple(line), name=name or name_of(parse_command(shlex.join(line)).script), **options
        )
        checked.check()
        return checked

    def check(self) -> None:
        """Checks the options.

        Raises:
            UserError: The command cannot be tuned, or an option is wrong.
        """
        if self.changes is not None and not self.changes.is_file():
            raise UserError(f"`--changes` must be a Python file, but {str(self.changes)!r} is not.")
        # A wrong name must not come to light after minutes of racing.
        is_searched = self.with_flags or self.allow_batch_size
        name = f"{self.name}-{self.name_of_search}" if is_searched else self.name
        SweepSpec.from_dict({"name": name, "pipeline": "tune", "space": {}, "baseline": {}})
        if reason := leads_elsewhere(self.command):
            raise UserError(f"`sweeper tune` runs the command many times on this machine, but {reason}.")
        if not self.minutes > 0:
            raise UserError(f"`minutes` must be above 0, but got {self.minutes:g}.")

    @property
    def name_of_search(self) -> str:
        """What is searched after the race, as part of a name."""
        return "batch" if not self.with_flags else "options" if self.allow_batch_size else "flags"

    @property
    def line(self) -> CommandLine:
        """The command, split into its parts."""
        return parse_command(shlex.join(self.command))


def name_of(script: str) -> str:
    """Returns the name of a script's tune."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", script.rpartition("/")[2].removesuffix(".py")).strip("._-")
    return f"tune-{stem[:90] or 'script'}"
