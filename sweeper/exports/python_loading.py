"""Writes the lines of a plain PyTorch script that load data, for each kind of loader."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.config import Scalar
from sweeper.core.loaders import in_plain_script
from sweeper.core.registry import resolve

Lines = tuple[list[str], str]
"""Import statements, and the lines that define `batches()`."""

_ON_THE_DEVICE = """\
tensors = [tensor.to(device) for tensor in dataset.tensors]


def batches():
    for index in torch.randperm(len(dataset), device=device).split({size}):{drop}
        yield [tensor[index] for tensor in tensors]
"""

_FROM_THE_HOST = """\
def batches():
    for index in torch.randperm(len(dataset)).split({size}):{drop}
        yield [tensor[index] for tensor in dataset.tensors]
"""

_COPIED_AHEAD = """\
copies = torch.cuda.Stream()


def batches():
    ahead = None
    for index in torch.randperm(len(dataset)).split({size}):{drop}
        with torch.cuda.stream(copies):
            coming = [tensor[index].pin_memory().to(device, non_blocking=True) for tensor in dataset.tensors]
            copied = copies.record_event()
        if ahead is not None:
            yield arrived(*ahead)
        ahead = coming, copied
    if ahead is not None:
        yield arrived(*ahead)


def arrived(batch, copied):
    torch.cuda.current_stream().wait_event(copied)
    for tensor in batch:
        tensor.record_stream(torch.cuda.current_stream())
    return batch
"""

_DROP = """
        if len(index) < {size}:
            break"""

_FROM_A_DATALOADER = """\
loader = DataLoader(
{arguments}
)


def batches():
    for batch in loader:
        yield [tensor.to(device, non_blocking={pinned}) for tensor in batch]
"""


def loading_lines(settings: Mapping[str, Scalar], *, on_gpu: bool) -> Lines:
    """Returns the lines of `batches()`, which yields one epoch as lists of tensors on the device.

    Args:
        settings: Settings that had an effect, by dotted name (`sweeper.exports.flags.effective_settings`).

    Raises:
        UserError: A plain script cannot use this kind of loader.
    """
    lines: Lines = resolve(in_plain_script(str(settings["loader.kind"])).python)(settings, on_gpu)
    return lines


def from_rows(settings: Mapping[str, Scalar], on_gpu: bool) -> Lines:
    """Returns the lines of a DataLoader over single samples."""
    size, drop = settings["batch_size"], settings["loader.drop_last"]
    arguments = ["dataset", f"batch_size={size}", "shuffle=True", f"drop_last={drop}"]
    return ["from torch.utils.data import DataLoader"], _data_loader(arguments, settings)


def from_batches(settings: Mapping[str, Scalar], on_gpu: bool) -> Lines:
    """Returns the lines of a DataLoader over whole batches."""
    size, drop = settings["batch_size"], settings["loader.drop_last"]
    batches = f"BatchSampler(RandomSampler(dataset), batch_size={size}, drop_last={drop})"
    arguments = ["dataset", f"sampler={batches}", "batch_size=None"]
    names = "BatchSampler, DataLoader, RandomSampler"
    return [f"from torch.utils.data import {names}"], _data_loader(arguments, settings)


def on_the_device(settings: Mapping[str, Scalar], on_gpu: bool) -> Lines:
    """Returns lines that gather batches on the device."""
    return [], _gather_code(_ON_THE_DEVICE, settings)


def copy_ahead(settings: Mapping[str, Scalar], on_gpu: bool) -> Lines:
    """Returns lines that gather batches on the host, and copy them ahead of the step if there is a GPU."""
    return [], _gather_code(_COPIED_AHEAD if on_gpu else _FROM_THE_HOST, settings)


def _gather_code(form: str, settings: Mapping[str, Scalar]) -> str:
    size = settings["batch_size"]
    return form.format(size=size, drop=_DROP.format(size=size) if settings["loader.drop_last"] else "")


def _data_loader(arguments: list[str], settings: Mapping[str, Scalar]) -> str:
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
    given = [f"{name}={settings[key]}" for name in names if (key := f"loader.{name}") in settings]
    if not settings.get("loader.in_order", True):
        given.append("in_order=False")
    if (method := settings.get("loader.start_method", "default")) != "default":
        given.append(f'multiprocessing_context="{method}"')
    lines = "".join(f"    {argument},\n" for argument in [*arguments, *given]).removesuffix("\n")
    return _FROM_A_DATALOADER.format(arguments=lines, pinned=settings["loader.pin_memory"])
