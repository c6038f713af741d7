"""The parts that docs/extending.md shows, by the file that each is."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
_BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

SHOWN = dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))
