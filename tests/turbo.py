"""The distribution `turbo-loader`: two kinds of loader; only `nitro` gives lines of a plain script."""

from __future__ import annotations

from pathlib import Path

from distributions import install

TRAITS = """\
from sweeper.core.loaders import LoaderTraits

TRAITS = LoaderTraits(
    kind="turbo", implementation="turbo_loader.loader:TurboLoader", why="it is turbo", label="tb"
)
"""
LOADER = """\
from itertools import count
from sweeper.trainer.data.loader import Handed

class TurboLoader:
    drain_steps = period_steps = 1

    def __init__(self, samples, order, config, device):
        self.samples, self.order, self.device = samples, order, device
        self.num_shapes, self.stream = order.num_shapes, self.batches()

    def batches(self):
        for number in count():
            for index, length in self.order.epoch(number).batches():
                yield Handed(self.samples.read(self.samples.tensors, index, length), len(index), length)

    def to_device(self, batch):
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def start(self): pass
    def next(self): return next(self.stream)
    def materialise(self, batch, length): return batch
    def close(self): self.stream = iter(())
"""
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
