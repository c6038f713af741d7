"""Loaders: the same batches in the same order, read by rows, in workers, resident, or streamed.

`sweeper.core.loaders` has the table of kinds; this package has their implementations.

          next()                          to_device()        in the step
rows      rows collated, in workers       copy
workers   batches gathered, in workers    copy
resident  some batches gathered together                     (graph: gather)
stream    gathered and copied by a thread, ahead of the step
"""

from __future__ import annotations

import torch

from sweeper.core import loaders
from sweeper.core.config import LoaderConfig
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.core.registry import resolve
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.pipeline import Samples


def make_loader(
    samples: Samples,
    config: LoaderConfig,
    batch_size: int,
    seed: int,
    device: torch.device,
    *,
    index_only: bool = False,
    share: tuple[int, int] = (0, 1),
    begin: int = 0,
) -> Loader:
    """Returns the loader of `config`.

    Args:
        index_only: Whether to return only indices, if the loader can, for a step that gathers by itself.
        share: `(rank, size)` of a group that takes batches together.
        begin: Number of batches taken before.

    Raises:
        UserError: Its kind is unknown here.
        TrialFailedError: There is not one full batch, or the data cannot be loaded this way.
    """
    traits = loaders.KINDS.get(config.kind)
    if traits.is_resident and samples.on_host:
        raise TrialFailedError(
            FailureKind.UNSUPPORTED,
            f"`loader.kind: {config.kind}` needs samples in tensors, but this pipeline reads from a Source",
        )
    order = Order(
        samples.length,
        batch_size,
        seed,
        # Ranks step together, so each one needs a whole batch.
        drop_last=config.drop_last or share[1] > 1,
        lengths=samples.lengths,
        buckets=config.buckets,
        share=share,
        begin=begin,
    )
    more = {"index_only": index_only} if traits.gathers_in_step else {}
    loader: Loader = resolve(traits.implementation)(samples, order, config, device, **more)
    return loader
