"""Collects the advice of all rules on one script."""

from __future__ import annotations

import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sweeper.core.config import Scalar
from sweeper.errors import UserError
from sweeper.export.patch import loading, stepping, waiting
from sweeper.export.patch.change import Advice, rendered_advice
from sweeper.export.patch.source import Source

RULES: tuple[Callable[[Source, Mapping[str, Scalar]], Iterator[Advice]], ...] = (
    loading.data_loader,
    loading.moves,
    stepping.autocast,
    stepping.scaler,
    stepping.tf32,
    stepping.compiled,
    stepping.optimizer,
    stepping.zero_grad,
    stepping.memory_format,
    stepping.cudnn_benchmark,
    waiting.waits,
)
"""Every rule; a new one is a line here."""


def advice(source: str, filename: str, wanted: Mapping[str, Scalar]) -> list[Advice]:
    """Returns the changes, by line, that make a script run like a configuration.

    Args:
        source: The script.
        filename: Its name, for messages.
        wanted: The configuration by dotted names; absent ones get no advice.

    Raises:
        UserError: It is not Python, or does not train with PyTorch.
    """
    try:
        parsed = Source(source)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise _not_python(filename, f"{error.msg}{where}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _not_python(filename, str(error) or type(error).__name__) from error
    if parsed.torch_import is None:
        raise UserError(
            f"`--patch` must name a script that imports torch, but {filename} does not. "
            "Name the file with the training loop, or the one with the DataLoader."
        )
    found = [each for rule in RULES for each in rule(parsed, wanted)]
    return sorted(dict.fromkeys(found), key=lambda each: each.line)


def advice_on(path: Path, wanted: Mapping[str, Scalar]) -> str:
    """Returns the advice on a file as text.

    Raises:
        UserError: It cannot be read, is not Python, or does not train with PyTorch.
    """
    try:
        with tokenize.open(path) as file:
            source = file.read()
    except OSError as error:
        raise UserError(
            f"`--patch` must name a script that can be read, but got {str(path)!r}: {error.strerror}."
        ) from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise _not_python(str(path), str(error)) from error
    return rendered_advice(advice(source, str(path), wanted), str(path))


def _not_python(filename: str, reason: str) -> UserError:
    return UserError(f"`--patch` must name a Python script, but {filename} cannot be read as one: {reason}.")
