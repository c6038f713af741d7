"""A distribution as pip installs it: modules in a folder, and metadata that names its entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], files: Mapping[str, str]
) -> Path:
    """Writes the distribution `name` 1.0 into `folder`, which is to be on the path, and returns `folder`.

    What was imported of one that an earlier test had installed is forgotten: its folder is gone.
    """
    tops = {Path(path).parts[0].removesuffix(".py") for path in files}
    for each in [each for each in sys.modules if each.partition(".")[0] in tops]:
        del sys.modules[each]
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder
