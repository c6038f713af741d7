"""Lines of a plain PyTorch script that give its batches, as each kind of loader does."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.config import Scalar

WHY: Mapping[str, str] = {
    "rows": "samples are read one by one and collated, in workers where there are some",
    "workers": "a whole batch is one read, dataset[[3, 1, 4]], without collation; a TensorDataset can do it",
    "resident": "all samples lie on the device, and a batch is a gather there: no step waits for data",
    "stream": "samples are gathered in host memory and copied ahead of the step",
}

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


def imports(settings: Mapping[str, Scalar]) -> list[str]:
    """Returns the import statements that `loading` needs."""
    names = {"rows": "DataLoader", "workers": "BatchSampler, DataLoader, RandomSampler"}
    name = names.get(str(settings["loader.kind"]))
    return [f"from torch.utils.data import {name}"] if name else []


def loading(settings: Mapping[str, Scalar], *, on_gpu: bool) -> str:
    """Returns the lines that define `batches()`, an epoch of lists of tensors on the device.

    Args:
        settings: What had an effect, by dotted name (`sweeper.export.flags.effective`).
    """
    kind, size = settings["loader.kind"], settings["batch_size"]
    if kind in ("rows", "workers"):
        arguments = ",\n".join(f"    {each}" for each in _arguments(settings)) + ","
        return _FROM_A_DATALOADER.format(arguments=arguments, pinned=settings["loader.pin_memory"])
    drop = _DROP.format(size=size) if settings["loader.drop_last"] else ""
    form = _ON_THE_DEVICE if kind == "resident" else _COPIED_AHEAD if on_gpu else _FROM_THE_HOST
    return form.format(size=size, drop=drop)


def _arguments(settings: Mapping[str, Scalar]) -> list[str]:
    size, drop = settings["batch_size"], settings["loader.drop_last"]
    if settings["loader.kind"] == "rows":
        found = ["dataset", f"batch_size={size}", "shuffle=True", f"drop_last={drop}"]
    else:
        batches = f"BatchSampler(RandomSampler(dataset), batch_size={size}, drop_last={drop})"
        found = ["dataset", f"sampler={batches}", "batch_size=None"]
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
    return found + [f"{name}={settings[each]}" for name in names if (each := f"loader.{name}") in settings]
