"""The distribution `turbo-loader`: two kinds of loader; only `nitro` gives lines of a plain script."""

from __future__ import annotations

from pathlib import Path

from distributions import install
from extending import SHOWN

TRAITS = SHOWN["turbo_loader/__init__.py"]
LOADER = SHOWN["turbo_loader/loader.py"]
LINES = """\
def lines(settings, on_gpu):
    return ["import turbo"], f"batches = turbo.batches(dataset, {settings['batch_size']}, device)"
"""


def install_turbo(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    nitro = TRAITS.replace("turbo", "nitro", 1).replace('"tb"', '"n", python="turbo_loader.lines:lines"')
    return install(
        folder,
        "turbo-loader",
        {"sweeper.loaders": {"turbo": "turbo_loader:TRAITS", "nitro": "turbo_loader.nitro:TRAITS"}},
        {
            "turbo_loader/__init__.py": TRAITS,
            "turbo_loader/loader.py": LOADER,
            "turbo_loader/lines.py": LINES,
            "turbo_loader/nitro.py": nitro,
        },
    )
