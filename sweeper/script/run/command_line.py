"""Parses the options of a command line and of an argparse help text into a common form."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sweeper.errors import UserError

_SHELL = frozenset({"&", "&&", "|", "||", ";", "<", ">", ">>", "2>", "2>&1", "&>"})
_STARTERS = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_ELSEWHERE = frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "inference", "predict"})
"""Sections of a configuration that are not about training."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_BEGINS = re.compile(r"--?[A-Za-z].*|\+{0,2}[A-Za-z_][\w.-]*=.*")
_SHORT = re.compile(r"(-[A-Za-z])(\d+)")
_HELP_LINE = re.compile(r" {1,8}(-\S.*?)(?: {2,}(\S.*))?")
_SPELLED = re.compile(r"(?<![\w-])(--?[A-Za-z][\w.-]*)(?:[ =](\{[^}]*\}|\[[^\]]*\]|[^\s,\[{-][^\s,]*))?")
_DEFAULT = re.compile(r"""\bdefaults?(?:\s*[:=]|\s+to|\s+is)\s*["']?([^\s)\],;"']+)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a script.

    Attributes:
        names: Its spellings; for a flag, also those that turn it off.
        value: Its value or default; `true` or `false` for a flag; None if unknown.
        is_flag: Whether it takes no value.
        choices: The values it takes; empty if unknown.
    """

    names: tuple[str, ...]
    value: str | None = None
    is_flag: bool = False
    choices: tuple[str, ...] = ()

    @property
    def long_names(self) -> tuple[str, ...]:
        """The spellings longer than a letter; all spellings if there are none."""
        return tuple(name for name in self.names if len(name.lstrip("-")) > 1) or self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line in its parts.

    Attributes:
        env: Variables set before the program.
        start: Everything up to the script: `torchrun --nproc_per_node 2 train.py`.
        options: The rest, each option together with the words after it.
    """

    env: Mapping[str, str]
    start: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]

    @property
    def script(self) -> str:
        """The script's file or module, or the program if there is neither."""
        return self.start[-1]

    def __str__(self) -> str:
        """Returns the line, quoted for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        words = [*self.start, *(word for group in self.options for word in group)]
        return " ".join([*variables, shlex.join(words)])


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the words of an option: its name, its value and the words around it."""

    name: str
    value: str | None
    before: tuple[str, ...]
    prefix: str
    after: tuple[str, ...]

    def fill(self, template: str) -> tuple[str, ...]:
        """Returns the words with the value, or the whole flag, replaced by a template."""
        return (*self.before, self.prefix + template, *self.after)


def as_typed(words: Sequence[str]) -> list[str]:
    """Returns the words of a command as a shell would take them, of what people type in their place.

    That is a command in quotes, variables before the program, or a script without its interpreter.

    Raises:
        UserError: The quotes within the only word do not match.
    """
    typed = list(words)
    if len(typed) == 1 and " " in typed[0].strip() and not os.path.exists(typed[0]):
        try:
            typed = shlex.split(typed[0])
        except ValueError as error:
            raise UserError(
                f"the command must be a command line, but got {words[0]!r} ({error}). Fix its quotes."
            ) from None
    at = next((at for at, word in enumerate(typed) if not _ASSIGNMENT.fullmatch(word)), len(typed))
    variables, program = typed[:at], typed[at:]
    if program and program[0].endswith(".py") and not os.access(program[0], os.X_OK):
        program.insert(0, "python" if shutil.which("python") else "python3")
    return ["env", *variables, *program] if variables and program else program or typed


def without_search_path(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Returns a command without the PYTHONPATH that `env` sets in it, and that path; None if it sets none.

    A process that is started with sweeper's hook must have both in its own: `env` would replace the hook.
    """
    end = next((at for at, word in enumerate(words) if at and not _ASSIGNMENT.fullmatch(word)), len(words))
    given = [word for word in words[1:end] if word.startswith("PYTHONPATH=")]
    if words[:1] != ["env"] or not given:
        return list(words), None
    kept = [word for word in words[1:end] if word not in given]
    return [*(["env", *kept] if kept else []), *words[end:]], given[-1].partition("=")[2]


def typed_command(command: str | Sequence[str]) -> list[str]:
    """Returns the words of a command, given as words or as one line that is split as a shell would.

    Raises:
        UserError: It names no program, or a script that does not exist, or it needs a shell.
    """
    words = as_typed([command] if isinstance(command, str) else command)
    if not "".join(words).strip():
        raise UserError(f"the command must name a program, but got {command!r}. Write `python train.py`.")
    script = parse_command(shlex.join(words)).script
    if script.endswith(".py") and not os.path.isfile(script):
        raise UserError(
            f"the command must name an existing script, but {script!r} is not in {os.getcwd()!r}."
            " Change to its folder, or give its path."
        )
    return words


def parse_command(command: str) -> CommandLine:
    """Splits a command line, as typed, into its parts.

    Raises:
        UserError: It is not a command line, or it needs a shell.
    """
    try:
        # As in a shell, a backslash at the end joins a line with the next.
        words = shlex.split(command.replace("\\\n", ""))
    except ValueError as error:
        raise UserError(
            f"`--command` must be a command line, but got {command!r} ({error}). Fix its quotes."
        ) from None
    env = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    if not words:
        raise UserError(
            f"`--command` must name a program, but got {command!r}. For example:"
            ' `--command "python train.py --batch-size 64"`.'
        )
    for word in (*env.values(), *words):
        if word in _SHELL:
            raise UserError(
                f"`--command` must be one command that needs no shell, but contains {word!r}. Remove it."
            )
        if not word.isprintable():
            raise UserError(
                f"`--command` must be printable text, but contains {word!r}. Pass it in a file instead."
            )
    end = _script_at(words) + 1
    return CommandLine(env=env, start=tuple(words[:end]), options=tuple(group_words(words[end:])))


def _script_at(words: Sequence[str]) -> int:
    for at, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return at
        module = words[at + 1] if word == "-m" and at + 1 < len(words) else ""
        if _MODULE.fullmatch(module) and module not in _STARTERS:
            return at + 1
    return 0


def group_words(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups the words of a command line: each option with the words that follow it."""
    groups: list[tuple[str, ...]] = []
    for word in words:
        if _BEGINS.fullmatch(word) or not groups:
            groups.append((word,))
        else:
            groups[-1] = (*groups[-1], word)
    return groups


def readings(words: Sequence[str]) -> Iterator[Reading]:
    """Yields the ways to read an option: `--k=v`, `k=v`, `-k8`, `--k v`, and `--k` alone."""
    first, rest = words[0], tuple(words[1:])
    name, joined, value = first.partition("=")
    short = _SHORT.fullmatch(first)
    if joined:
        yield Reading(name, value, (), f"{name}=", rest)
    elif short:
        yield Reading(short[1], short[2], (), short[1], rest)
    else:
        if rest:
            yield Reading(first, rest[0], (first,), "", rest[1:])
        yield Reading(first, None, (), "", rest)


def plain_name(name: str) -> str:
    """Normalises an option's name across scripts; returns "" if it is not for training.

    `--batch-size`, `train.batch_size` and `batchSize` become `batchsize`; `--no-amp` and
    `--use_amp` become `amp`.
    """
    *sections, last = name.lstrip("-+").lower().split(".")
    if _ELSEWHERE & set(sections):
        return ""
    return re.sub(r"[-_]", "", re.sub(r"^(?:no[-_])?(?:(?:use|enable)[-_])?", "", last))


def is_negated(name: str) -> bool:
    """Returns whether a flag turns something off: `--no-amp`."""
    return name.lstrip("-+").lower().rpartition(".")[2].startswith(("no-", "no_"))


def options_in(help_text: str) -> list[Option]:
    """Parses the options in argparse's `--help` output, with the defaults that it mentions."""
    blocks: list[tuple[str, str]] = []
    for line in help_text.splitlines():
        match = _HELP_LINE.fullmatch(line.rstrip())
        if match:
            blocks.append((match[1], match[2] or ""))
        elif blocks and line.startswith(" " * 9):
            blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]} {line.strip()}")
    options: dict[tuple[str, bool], Option] = {}
    for option in (_option(head, text) for head, text in blocks):
        key = (plain_name(option.long_names[0]), option.is_flag)
        first = options.setdefault(key, option)
        if option.is_flag:
            # `--amp` and `--no-amp` are one option, on one line or on two.
            options[key] = replace(first, names=tuple(dict.fromkeys(first.names + option.names)))
    return [_with_default(option) if option.is_flag else option for option in options.values()]


def _option(head: str, text: str) -> Option:
    spelled = _SPELLED.findall(head)
    metavar = next((word for _, word in spelled if word), "")
    default = _DEFAULT.search(text)
    return Option(
        names=tuple(name for name, _ in spelled) or (head,),
        value=default[1].rstrip(".") if default else None,
        is_flag=not metavar,
        choices=tuple(metavar[1:-1].split(",")) if metavar.startswith("{") else (),
    )


def _with_default(flag: Option) -> Option:
    """Returns a flag with its default: off if it can only be turned on, and on if only off."""
    ways = {is_negated(name) for name in flag.long_names}
    if len(ways) == 1:
        return replace(flag, value="true" if ways == {True} else "false")
    default = (flag.value or "").lower()
    return replace(flag, value=default if default in ("true", "false") else None)
