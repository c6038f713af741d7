"""Writes plain values as YAML that reads back equal, even in YAML 1.1 readers."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sweeper.schema.scalars import FLOAT, INT


class _Dumper(yaml.SafeDumper):
    """Quotes strings that are numbers in YAML 1.1 or 1.2, and never writes an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        """Returns True: every value is written out."""
        return True


_Dumper.add_implicit_resolver(
    "number of YAML 1.2", re.compile(rf"({INT.pattern}|{FLOAT.pattern})\Z"), list("-+.0123456789")
)


def to_yaml(value: Any) -> str:
    """Returns a JSON-like value as block YAML with its innermost collections on one line."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100
    )
    return text
