"""Makes foreign text safe to show: escapes markup and spells out unprintable characters."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from sweeper.core.codec import encode

_MARKDOWN = re.compile(r"([\\*_\[\]|~$])")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


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


def as_html(text: object) -> Html:
    """Returns `text` as markup: itself where it is markup, else escaped."""
    return text if isinstance(text, Html) else Html(html.escape(make_printable(text)))


def as_lines(text: str) -> Html:
    """Returns `text` as markup that keeps its line ends, for a preformatted element."""
    return Html("\n".join(as_html(line) for line in text.splitlines()))


def element(tag: str, /, *children: object, **attributes: str | int | float | bool | None) -> Html:
    """Returns an element; children and attributes are escaped, unless they are `Html` themselves.

    Args:
        attributes: `class_` is `class`, `aria_label` is `aria-label`; None and False are left out.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{as_html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    inner = "".join(as_html(child) for child in children if child is not None)
    return Html(f"<{tag}{written}>{inner}</{tag}>")


_VOID = frozenset({"input", "meta", "br", "link"})


def join(*parts: object) -> Html:
    """Concatenates parts; those that are not markup are escaped."""
    return Html("".join(as_html(part) for part in parts if part is not None))


def as_json(value: Any) -> Html:
    """Returns `value` as JSON that is safe inside a script element; NaN is null."""
    text = json.dumps(encode(value), separators=(",", ":"), allow_nan=False)
    return Html(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


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
