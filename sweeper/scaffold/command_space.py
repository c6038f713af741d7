"""Proposes a search space for a command line, from the options it recognises."""

from __future__ import annotations

import itertools
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.script import Script
from sweeper.core.template import names_in
from sweeper.errors import UserError
from sweeper.scaffold.known_options import (
    CHANGES_LEARNING,
    PREFETCH,
    WORKERS,
    Dimension,
    combine,
    fill_value,
    of_environment,
    recognise,
)
from sweeper.schema.rules import leads_elsewhere
from sweeper.script.run.command_line import (
    CommandLine,
    Option,
    Reading,
    group_words,
    is_negated,
    options_in,
    plain_name,
    readings,
)
from sweeper.script.run.first_look import FirstLook
from sweeper.script.run.sandbox import Sandbox, make_sandbox
from sweeper.script.run.scratch import scratch_folder
from sweeper.system.environment import script_env

HELP_SECONDS = 20.0
HELP_BYTES = 256 * 1024

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_COUNT = "device.count"
_COUNTING = frozenset({"nprocpernode", "numprocesses", "numgpus"})
"""Options of launchers that set the number of processes, one per GPU."""

_READS_ARGUMENTS = re.compile(
    r"\b(?:sys\.argv|argparse|\w*ArgumentParser|click|typer|fire|tyro|hydra|absl)\b"
    r"|\b\w*(?:parse|get)_(?:arg|opt)\w*"
)
_BRACES = re.compile(r"\{([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)\}")


@dataclass(frozen=True, slots=True)
class Argument:
    """Words of the command that belong together.

    Attributes:
        in_use: Whether they are in use rather than in a comment.
        instead: Whether they would replace the argument before them.
    """

    words: tuple[str, ...]
    in_use: bool = True
    instead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The content of a first search space.

    Attributes:
        source: The command line as it was given.
        name: Name of the sweep.
        arguments: The command, with templates.
        dimensions: The dimensions that the arguments use; those that the user must decide on are comments.
        fix: Values that are not searched.
        env: The script's own environment.
        gpus: The GPUs that the command line names; None if it names none.
        look: The findings from running it for a few seconds; None if it was not run.
    """

    source: str
    name: str
    arguments: tuple[Argument, ...]
    dimensions: tuple[Dimension, ...]
    fix: Mapping[str, Scalar]
    env: Mapping[str, str]
    gpus: tuple[int | str, ...] | None
    look: FirstLook | None = None

    @property
    def searched(self) -> tuple[Dimension, ...]:
        """The dimensions that are searched as proposed."""
        return tuple(dimension for dimension in self.dimensions if dimension.is_searched)

    @property
    def trains_differently(self) -> bool:
        """Whether the search changes what the model learns from the same samples."""
        return any(dimension.name in CHANGES_LEARNING for dimension in self.searched)

    @property
    def undecided(self) -> tuple[Dimension, ...]:
        """The dimensions that are comments."""
        return tuple(dimension for dimension in self.dimensions if not dimension.is_searched)


def help_of(line: CommandLine) -> str:
    """Returns what the script prints for `--help`; empty if it prints nothing in time or is not run.

    A script that never reads its arguments is not run: it would start to train. Nor is a command that
    starts work on other machines: it would submit a job. The script runs in a mirror of the folder, since
    some scripts make folders before they read their arguments.
    """
    if leads_elsewhere(line.start):
        return ""
    path = Path(line.script)
    if path.suffix == ".py":
        with suppress(OSError):
            if not _READS_ARGUMENTS.search(path.read_text(encoding="utf-8", errors="replace")):
                return ""
    elif line.start[-2:-1] != ("-m",):
        return ""
    with (
        suppress(OSError, UserError),
        scratch_folder() as place,
    ):
        sandbox = make_sandbox(Script(command=()), {}, place / "mirror", place)
        try:
            return _help_in(sandbox, line)
        finally:
            sandbox.close()
    return ""


def _help_in(sandbox: Sandbox, line: CommandLine) -> str:
    environment = {**script_env(os.environ), **line.env, "COLUMNS": "200", "NO_COLOR": "1"}
    process = sandbox.start(
        [*sandbox.translate(line.start), "--help"],
        {**environment, **sandbox.environment(environment)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        try:
            return _read(process.stdout.fileno()).decode("utf-8", "replace")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _read(descriptor: int) -> bytes:
    output, deadline = b"", time.monotonic() + HELP_SECONDS
    while len(output) < HELP_BYTES and (left := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left)[0] or not (piece := os.read(descriptor, 65536)):
            break
        output += piece
    return output


def propose(line: CommandLine, help_text: str = "", look: FirstLook | None = None) -> Proposal:
    """Returns a search space for a command line.

    Args:
        help_text: What its script prints for `--help`: more options, and details of those given.
        look: The findings from running it for a few seconds: values of options that were not given.

    Raises:
        UserError: A word looks like a template.
    """
    draft = _Draft(options_in(help_text), look.facts if look else {})
    draft.take_start(_escape(line.start))
    latest = {words[0].partition("=")[0]: words for words in line.options}
    for words in line.options:
        if latest[words[0].partition("=")[0]] is words:
            draft.take_given(_escape(words))
        else:
            # The script takes the last of several.
            draft.arguments.append(Argument(_escape(words)))
    draft.take_helped()
    stem = line.script.rpartition("/")[2].removesuffix(".py")
    if line.start[-2:-1] == ("-m",):
        stem = stem.rpartition(".")[2]
    env = dict(line.env)
    visible = env.pop(_VISIBLE, None)
    env = dict(zip(env, _escape(list(env.values())), strict=True))
    if look and look.facts:
        for name, (dimension, variables) in of_environment(look.facts).items():
            if not env.keys() & variables.keys():
                draft.dimensions[name] = dimension
                env.update(variables)
    return Proposal(
        source=str(line),
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:100] or "script",
        arguments=tuple(draft.arguments),
        dimensions=_relate(draft.dimensions),
        fix=draft.fix,
        env=env,
        gpus=None if visible is None else tuple(int(e) if e.isdecimal() else e for e in _gpus(visible)),
        look=look,
    )


def _gpus(visible: str) -> list[str]:
    # CUDA hides what follows an invalid entry.
    names = (name.strip() for name in visible.split(","))
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), names))


def _escape(words: Sequence[str]) -> tuple[str, ...]:
    """Returns words as templates that produce them unchanged."""
    templates = tuple(_BRACES.sub(r"{{\1}}", word) for word in words)
    for word in templates:
        if any(names_in(word)):
            raise UserError(
                f"`--command` must be a plain command line, but {word!r} is a template. Write a value."
            )
    return templates


@dataclass(slots=True)
class _Draft:
    """A proposal being built: each option is read once, and the first one for a parameter wins."""

    helped: list[Option]
    facts: Mapping[str, Any]
    arguments: list[Argument] = field(default_factory=list)
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    fix: dict[str, Scalar] = field(default_factory=dict)
    _given: set[str] = field(default_factory=set)

    def take_start(self, start: Sequence[str]) -> None:
        """Takes what precedes the options; a launcher's process count becomes the device count."""
        templates: list[str] = []
        for words in group_words(start):
            reading = next(readings(words))
            counts = plain_name(reading.name) in _COUNTING and re.fullmatch(
                "[1-9][0-9]{0,3}", reading.value or ""
            )
            if counts and not self.fix:
                self.fix[_COUNT] = int(reading.value or "")
                words = reading.fill(f"{{{_COUNT}}}")
            templates += words
        self.arguments.append(Argument(tuple(templates)))

    def take_given(self, words: tuple[str, ...]) -> None:
        """Takes an option of the command line."""
        templated = next(filter(None, (self._take_reading(reading) for reading in readings(words))), None)
        if templated is not None and templated.in_use:
            self.arguments.append(templated)
            return
        self.arguments.append(Argument(words))
        if templated is not None:
            self.arguments.append(replace(templated, instead=True))

    def _take_reading(self, reading: Reading) -> Argument | None:
        is_flag = reading.value is None
        helped = next((option for option in self.helped if reading.name in option.names), None)
        option = Option(names=(reading.name,), value=reading.value, is_flag=is_flag)
        self._given.update(helped.names if helped else option.names)
        if helped and helped.is_flag and not is_flag:
            # A flag takes no value.
            return None
        if is_flag and reading.after and not (helped and helped.is_flag):
            # What follows may be its value.
            return None
        if helped and helped.is_flag == is_flag:
            option = replace(helped, value=reading.value)
        if is_flag:
            spelled = reading.name if reading.name in option.long_names else option.long_names[0]
            option = replace(option, value="false" if is_negated(spelled) else "true")
        match = recognise(option)
        return self._add(match[0], reading.fill(match[1])) if match else None

    def take_helped(self) -> None:
        """Takes the options that appear only in the help."""
        for option in self.helped:
            match = recognise(option) or recognise(replace(option, value=None))
            if match and not self._given & {*option.names}:
                dimension, template = match
                words = (template,) if option.is_flag else (option.long_names[0], template)
                if argument := self._add(dimension, words):
                    self.arguments.append(argument)

    def _add(self, dimension: Dimension, words: tuple[str, ...]) -> Argument | None:
        dimension = fill_value(dimension, self.facts)
        previous = self.dimensions.get(dimension.name)
        both = dimension if previous is None else combine(previous, dimension)
        if both is None:
            return None
        self.dimensions[dimension.name] = both
        return Argument(words, both.is_searched)


def _relate(dimensions: Mapping[str, Dimension]) -> tuple[Dimension, ...]:
    """Returns the dimensions; a DataLoader without workers never gets a prefetch factor."""
    related = dict(dimensions)
    workers, prefetch = dimensions.get(WORKERS), dimensions.get(PREFETCH)
    if workers and prefetch and workers.is_searched and prefetch.is_searched:
        if workers.value == 0:
            related[PREFETCH] = replace(prefetch, at_least={WORKERS: 1})
        else:
            related[WORKERS] = replace(workers, low=1)
    return tuple(related.values())
