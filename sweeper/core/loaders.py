"""Lists the kinds of loader and their traits. Imports no torch.

A new kind is one file with its implementation, one row of the table, and one function in
`sweeper.exports.python_loading`; a third party's kind is the import string of a row. No module outside
`sweeper.trainer.data` branches on a kind's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.core.registry import Registry
from sweeper.errors import UserError

ROWS, WORKERS, RESIDENT, STREAM = "rows", "workers", "resident", "stream"

BEST_FIRST = (RESIDENT, STREAM, WORKERS)
"""The kinds that usually win, the fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTraits:
    """One kind of loader.

    Attributes:
        implementation: Import string of a callable `(samples, order, config, device) -> Loader`
            (`sweeper.trainer.data.protocol`), imported only in the trial's process.
        why: What it does, for the comment in an exported script.
        label: Its name in run names; empty for the value of `loader.kind`.
        is_resident: All samples stay on the device, so they must be tensors and fit there.
        has_workers: `num_workers`, `prefetch_factor`, `persistent_workers` and `pin_memory` have an effect.
        reads_rows: It collates one Python item per sample instead of gathering whole batches.
        copies_ahead: Batches are copied to the device while earlier steps run.
        gathers_in_step: The implementation also takes `index_only=True` and then returns indices, with
            which a captured step gathers the samples.
        python: Import string of a function `(settings, on_gpu) -> (imports, lines)` that returns
            the lines of a plain PyTorch script that loads the same way; empty if no plain script
            can. Every built-in kind has one.
    """

    implementation: str
    why: str = ""
    label: str = ""
    is_resident: bool = False
    has_workers: bool = False
    reads_rows: bool = False
    copies_ahead: bool = False
    gathers_in_step: bool = False
    python: str = ""


BUILTIN: Mapping[str, LoaderTraits] = {
    ROWS: LoaderTraits(
        implementation="sweeper.trainer.data.workers:WorkerLoader",
        why="samples are read one by one and collated, by worker processes if there are any",
        has_workers=True,
        reads_rows=True,
        python="sweeper.exports.python_loading:from_rows",
    ),
    WORKERS: LoaderTraits(
        implementation="sweeper.trainer.data.workers:WorkerLoader",
        why="a whole batch is one read, dataset[[3, 1, 4]], without collation; TensorDataset supports it",
        label="work",
        has_workers=True,
        python="sweeper.exports.python_loading:from_batches",
    ),
    RESIDENT: LoaderTraits(
        implementation="sweeper.trainer.data.resident:ResidentLoader",
        why="all samples stay on the device, where batches are gathered: no step waits for data",
        label="res",
        is_resident=True,
        gathers_in_step=True,
        python="sweeper.exports.python_loading:on_the_device",
    ),
    STREAM: LoaderTraits(
        implementation="sweeper.trainer.data.stream:StreamLoader",
        why="samples are gathered in host memory and copied ahead of the step",
        copies_ahead=True,
        python="sweeper.exports.python_loading:copy_ahead",
    ),
}
KINDS = Registry("`loader.kind`", LoaderTraits, BUILTIN)
"""What `loader.kind` can name."""

_UNKNOWN = LoaderTraits(implementation="", has_workers=True)
"""With workers, so that no setting counts as having no effect."""


RESIDENT_SHARE = 0.8
"""The largest share of a device's memory that resident data may take."""


def why_too_large(what: str, data_gib: float, room_gib: float) -> str:
    """Returns why data does not fit into `room_gib` of device memory; empty if it does or may."""
    if room_gib and data_gib > RESIDENT_SHARE * room_gib:
        return f"{what} takes {data_gib:.3g} GiB and the device has {room_gib:g} GiB"
    return ""


def traits(kind: str) -> LoaderTraits:
    """Returns the traits of a kind; neutral ones if it is unknown here."""
    return KINDS.look_up(kind) or _UNKNOWN


def in_plain_script(kind: str) -> LoaderTraits:
    """Returns the traits of a kind that a plain PyTorch script can imitate.

    Raises:
        UserError: It provides no lines for a plain script, or there is no such kind here.
    """
    row = KINDS.get(kind)
    if not row.python:
        raise UserError(
            "`--format python` needs a loader that a plain PyTorch script can imitate, but "
            f"`loader.kind: {kind}` provides no lines for such a script. Use `--format yaml`, or another "
            "trial with --trial N."
        )
    return row
