"""Advice on the step: precision, compilation, optimiser, memory format."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from sweeper.core.config import Scalar, TrialConfig
from sweeper.export.patch.change import Advice, because
from sweeper.export.patch.source import Code, Source, argument, methods

_DTYPES = {"bf16": Code("torch.bfloat16"), "fp16": Code("torch.float16")}
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
_OF_RULE = ("optimizer.lr_rule", "optimizer.lr_batch_size", "batch_size", "accumulate_steps", "device.count")
_PRECISION = "torch.set_float32_matmul_precision"
_ALLOW_TF32 = "torch.backends.cuda.matmul.allow_tf32"
_BENCHMARK = "torch.backends.cudnn.benchmark"


def autocast(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on autocast's dtype, or on where to add autocast."""
    amp = wanted.get("precision.amp")
    if amp is None:
        return
    why, dtype = because(wanted, ["precision.amp"]), _DTYPES.get(str(amp))
    there = False
    for name, call in source.calls:
        old = ".cuda." in name or ".cpu." in name
        enabled = argument(call, "enabled", 0 if old else 2)
        # A literal `enabled=False` exempts a part of the model; a variable there is the switch itself.
        if name.rpartition(".")[2] != "autocast" or (
            isinstance(enabled, ast.Constant) and enabled.value is False
        ):
            continue
        there = True
        changes = [source.differs(call, "enabled", dtype is not None, True, 0 if old else 2)]
        if dtype is not None:
            changes.insert(0, source.differs(call, "dtype", dtype, _usual_dtype(source, name, call), 1))
        yield from source.advice(call, changes, why)
    if dtype is None or there:
        return
    device = "cuda" if source.on_gpu else "cpu"
    for call, _ in source.models():
        change = f'wrap it and the loss in `with torch.autocast("{device}", dtype={dtype}):`'
        yield from source.advice(call, [change], why)


def _usual_dtype(source: Source, name: str, call: ast.Call) -> Code:
    """Returns the default dtype of an autocast."""
    device = argument(call, "device_type", 0)
    on_cpu = ".cpu." in name or (device is not None and source.value_of(device) == "cpu")
    return _DTYPES["bf16" if on_cpu else "fp16"]


def scaler(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on the gradient scaler, which only fp16 needs."""
    if "precision.amp" not in wanted:
        return
    why, needed = because(wanted, ["precision.amp"]), wanted["precision.amp"] == "fp16"
    there = [call for name, call in source.calls if name.rpartition(".")[2] == "GradScaler"]
    for call in there:
        yield from source.advice(call, [source.differs(call, "enabled", needed, True)], why)
    if needed and not there:
        for body in source.training:
            change = (
                "`scaler = torch.amp.GradScaler()` before the loop, here `scaler.scale(loss).backward()`, "
                "then `scaler.step(optimizer)`, `scaler.update()`"
            )
            _, backward = next(methods(body, "backward"))
            yield from source.advice(backward, [change], why)


def tf32(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on the precision of float32 matrix products."""
    if wanted.get("precision.tf32", "default") == "default":
        return
    why, want = because(wanted, ["precision.tf32"]), bool(wanted["precision.tf32"])
    set_at: list[tuple[ast.expr | ast.stmt, bool]] = []
    for name, call in source.calls:
        if name == _PRECISION and (given := argument(call, "precision", 0)):
            set_at.append((call, source.value_of(given) in ("high", "medium")))
    for statement, value in source.bindings.get(_ALLOW_TF32, []):
        set_at.append((statement, value is not None and source.value_of(value) is True))
    change = f'`{_PRECISION}("{"high" if want else "highest"}")`'
    if want and not any(is_on for _, is_on in set_at):
        yield from _setting(source, [place for place, _ in set_at], change, why)
    if not want:
        for place, is_on in set_at:
            yield from source.advice(place, [change] if is_on else [], why)


def cudnn_benchmark(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on cuDNN's search for the fastest algorithm."""
    if "compile.cudnn_benchmark" not in wanted:
        return
    want = bool(wanted["compile.cudnn_benchmark"])
    set_at = source.bindings.get(_BENCHMARK, [])
    is_on = [value is not None and source.value_of(value) is True for _, value in set_at]
    if (is_on or [False])[-1] != want:
        change = f"`{_BENCHMARK} = {want}`"
        places = [place for place, _ in set_at]
        yield from _setting(source, places, change, because(wanted, ["compile.cudnn_benchmark"]))


def _setting(
    source: Source, places: Sequence[ast.expr | ast.stmt], change: str, why: str
) -> Iterator[Advice]:
    """Advises a change at the last of these places, or after the import of torch if there is none."""
    if places:
        yield from source.advice(places[-1], [change], why)
    elif source.training and source.torch_import is not None:
        yield from source.advice(source.torch_import, [f"add after it: {change}"], why)


def compiled(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on the mode of torch.compile, or on where to call it."""
    mode = wanted.get("compile.mode")
    if mode is None:
        return
    why = because(wanted, ["compile.mode"])
    if mode == "graph":
        mode, why = "reduce-overhead", f"{why}, and this is the closest a plain script gets"
    models = {source.full_name(call.func) for call, _ in source.models()}
    there = [call for name, call in source.calls if name == "torch.compile"]
    there += [call for owner, call in methods(source.tree, "compile") if source.full_name(owner) in models]
    for call in there:
        without = f"replace it with `{source.snippet(call.args[0])}`" if call.args else "remove it"
        change = without if mode == "eager" else source.differs(call, "mode", mode, "default")
        yield from source.advice(call, [change], why)
    if mode != "eager" and not there and not source.mentions("torch.compile"):
        how = "" if mode == "default" else f', mode="{mode}"'
        yield from _at_model(source, f"{{model}} = torch.compile({{model}}{how})", why)


def _at_model(source: Source, change: str, why: str) -> Iterator[Advice]:
    """Advises what to add after the line that makes or moves the model."""
    for call, body in source.models():
        name = source.full_name(call.func)
        made = source.made(call, body)
        where = "add after it" if made else "add before the loop"
        yield from source.advice(made or call, [f"{where}: `{change.format(model=name)}`"], why)


def optimizer(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on the optimiser's class and arguments."""
    for name, call in source.calls:
        kind = name.rpartition(".")[2]
        places = (f"torch.optim.{kind}", f"torch.optim.{kind.lower()}.{kind}")
        if name not in places:
            continue
        asked = _OPTIMIZERS.get(str(wanted.get("optimizer.name")), kind)
        changes = {}
        if asked != kind:
            changes["optimizer.name"] = f"torch.optim.{asked} instead of {kind}"
        if "optimizer.lr" in wanted:
            changes["optimizer.lr"] = source.differs(call, "lr", _rate(wanted), 1e-3, 1)
        if "optimizer.weight_decay" in wanted:
            usual, want = 0.01 if asked == "AdamW" else 0.0, wanted["optimizer.weight_decay"]
            changes["optimizer.weight_decay"] = source.differs(call, "weight_decay", want, usual)
        if "optimizer.fused" in wanted and asked in _OPTIMIZERS.values():
            want = wanted["optimizer.fused"]
            changes["optimizer.fused"] = source.differs(call, "fused", want, False)
        changes = {name: change for name, change in changes.items() if change}
        yield from source.advice(call, list(changes.values()), because(wanted, changes))


def _rate(wanted: Mapping[str, Scalar]) -> float:
    """Returns the learning rate, by its rule if the batch is known."""
    names = ("optimizer.lr", *(_OF_RULE if "batch_size" in wanted else ()))
    config = TrialConfig().replace({name: wanted[name] for name in names if name in wanted})
    return float(f"{config.optimizer.lr_at(config.global_batch):.6g}")


def zero_grad(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises against filling gradients with zeros, whatever the configuration."""
    for _, call in methods(source.tree, "zero_grad"):
        change = source.differs(call, "set_to_none", True, True, 0)
        why = "zeros are written, then read by the next backward pass"
        yield from source.advice(call, [change], why)


def memory_format(source: Source, wanted: Mapping[str, Scalar]) -> Iterator[Advice]:
    """Advises on the memory format of images."""
    name, want = "torch.channels_last", wanted.get("memory_format")
    if want == "channels_last" and not source.mentions(name):
        why = because(wanted, ["memory_format"])
        yield from _at_model(source, f"{{model}} = {{model}}.to(memory_format={name})", why)
        for call, _ in source.models():
            image = source.snippet(call.args[0]) if call.args else "x"
            change = f"`{image}.contiguous(memory_format={name})` instead of `{image}`, if these are images"
            yield from source.advice(call, [change], why)
    if want == "contiguous":
        for _, call in source.calls:
            given = argument(call, "memory_format")
            if given and source.full_name(given) == name:
                change = source.differs(call, "memory_format", Code("torch.contiguous_format"), None)
                yield from source.advice(call, [change], because(wanted, ["memory_format"]))
