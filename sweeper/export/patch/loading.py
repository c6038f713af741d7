"""Advice on loading: the DataLoader, and how batches reach the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from sweeper.core.config import Scalar
from sweeper.core.loaders import in_plain_script
from sweeper.export.patch.change import Advice, because
from sweeper.export.patch.source import Source, argument, methods

# By dotted name: the keyword of DataLoader, torch's default, and its position if it has one.
_ARGUMENTS: Mapping[str, tuple[str, Scalar, int | None]] = {
    "batch_size": ("batch_size", 1, 1),
    "loader.num_workers": ("num_workers", 0, 5),
    "loader.prefetch_factor": ("prefetch_factor", 2, None),
    "loader.pin_memory": ("pin_memory", False, 7),
    "loader.persistent_workers": ("persistent_workers", False, None),
    "loader.drop_last": ("drop_last", False, 8),
}
# torch requires these values without workers.
_WITHOUT_WORKERS: Mapping[str, Scalar] = {"loader.prefetch_factor": None, "loader.persistent_workers": False}
_OF_A_SAMPLER = ("batch_size", "loader.drop_last")
_EVALUATION = re.compile(r"(?<![a-z])(val(?!ue)|test|eval|dev(?!ice))", re.IGNORECASE)


def data_loader(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on the training DataLoader's arguments, or on what replaces it.

    Raises:
        UserError: A plain script cannot use the wanted kind of loader.
    """
    kind = wanted.get("loader.kind")
    wanted_kind = in_plain_script(kind) if isinstance(kind, str) else None
    for call in _training_loaders(source):
        if wanted_kind is not None and wanted_kind.instead:
            given = argument(call, "batch_size", 1)
            size = wanted.get("batch_size") or (source.snippet(given) if given else 1)
            instead = wanted_kind.instead.format(size=size)
            names = [name for name in ("loader.kind", "batch_size") if name in wanted]
            yield from source.advice(call, [instead], because(wanted, names))
            continue
        changes = _changes(source, call, wanted)
        if wanted_kind is not None and not wanted_kind.reads_rows and "__getitems__" not in source.text:
            changes["loader.kind"] = "a `__getitems__(indices)` in its dataset that reads a whole batch"
        yield from source.advice(call, list(changes.values()), because(wanted, changes))


def _changes(source: Source, call: ast.Call, wanted: Mapping[str, Scalar]) -> dict[str, str]:
    size, sampler = argument(call, "batch_size", 1), argument(call, "batch_sampler", 4)
    has_sampler = sampler is not None and source.value_of(sampler) is not None
    has_sampler |= size is not None and source.value_of(size) is None
    found = {}
    for name in _ARGUMENTS.keys() & wanted.keys():
        keyword, default, position = _ARGUMENTS[name]
        want = wanted[name]
        if wanted.get("loader.num_workers") == 0 and name in _WITHOUT_WORKERS:
            want = default = _WITHOUT_WORKERS[name]
        if not (has_sampler and name in _OF_A_SAMPLER):
            found[name] = source.differs(call, keyword, want, default, position)
        elif name == "batch_size":
            found[name] = f"its sampler must return batches of {want}"
    return {name: found[name] for name in _ARGUMENTS if found.get(name)}


def _training_loaders(source: Source) -> list[ast.Call]:
    """Returns the loaders that a training loop iterates over, else those not named for evaluation."""
    calls = [call for name, call in source.calls if name.rpartition(".")[2] == "DataLoader"]
    iterated = {name for body in source.training for name in source.iterated(body)} - {""}
    return [call for call in calls if source.label(call) in iterated] or [
        call for call in calls if not _EVALUATION.search(source.label(call))
    ]


def moves(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises non-blocking copies to the device, which pinned memory allows."""
    if not wanted.get("loader.pin_memory"):
        return
    why = because(wanted, ["loader.pin_memory"])
    for body in source.training:
        for _, call in methods(body, "to", "cuda"):
            given = argument(call, "device", 0)
            target = source.value_of(given) if given else None
            # A change of dtype, or a copy to the host.
            elsewhere = isinstance(target, str) and (target.startswith("torch.") or target == "cpu")
            is_cuda = isinstance(call.func, ast.Attribute) and call.func.attr == "cuda"
            if (is_cuda or given) and not elsewhere:
                yield from source.advice(call, [source.differs(call, "non_blocking", True, False)], why)
