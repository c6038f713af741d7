"""Makes foreign text safe to show: spells out unprintable characters and escapes Markdown."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\*_\[\]|~$])")


def make_printable(text: object) -> str:
    r"""Returns `text` on one line; control, bidirectional and zero-width characters as `\x1b`, `\u202e`."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character in "\n\r\t":
        return " "
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def as_markdown(text: object) -> str:
    """Escapes `text` for Markdown, also in a table's cell, and keeps it from mentioning users.

    Text between two backticks is code.
    """
    parts = make_printable(text).split("`")
    if len(parts) % 2 == 0:
        return "\\`".join(map(_prose, parts))
    return "".join(_code(part) if i % 2 and part else _prose(part) for i, part in enumerate(parts))


def _prose(text: str) -> str:
    escaped = _MARKDOWN.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return escaped.replace("@", "@<!-- -->")


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"
