"""Writes the lines of a plain PyTorch script that make the optimiser and take the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sweeper.core.config import Scalar

_COMPILERS_GRAPHS = ("reduce-overhead", "max-autotune")
DTYPES: Mapping[str, str] = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.bfloat16"}
CAPTURABLE_WARNING = "This instance was constructed with capturable=True"
"""Start of torch's warning about a step of a capturable optimiser outside a capture."""

_CLASSES: Mapping[str, str] = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}

_CAPTURED = """
# The first three steps run eagerly: lazy initialisation cannot be captured.
WARMUP_STEPS = 3
num_eager, side, graph = 0, torch.cuda.Stream(), torch.cuda.CUDAGraph()
held = held_loss = None  # The graph's input, and the loss that each replay overwrites.


def captured_step({batch}):
    global num_eager, held, held_loss
    new = {as_list}
    if [len(batch[0]) for batch in new] != {sizes}:
        return train_step({batch})  # An epoch's last batch is not worth a graph.
    if num_eager < WARMUP_STEPS:
        num_eager += 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = train_step({batch})
        torch.cuda.current_stream().wait_stream(side)
        return loss
    if held is None:
        held = [[tensor.clone() for tensor in batch] for batch in new]
        # Captures this thread alone: others may pin memory meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            held_loss = train_step({held})
    shapes = [[tensor.shape for tensor in batch] for batch in new]
    if shapes != [[tensor.shape for tensor in batch] for batch in held]:
        return train_step({batch})
    for old_batch, new_batch in zip(held, new, strict=True):
        for old, tensor in zip(old_batch, new_batch, strict=True):
            old.copy_(tensor)
    graph.replay()
    return held_loss
"""


def optimizer(settings: Mapping[str, Scalar]) -> Iterator[str]:
    """Yields the lines that make `optimizer`, and a schedule and a scaler if needed."""
    name, is_graph = str(settings["optimizer.name"]), settings["compile.mode"] == "graph"
    rate = str(settings["optimizer.lr"])
    # A graph reads the rate from the device; a value set later on the host would not reach it.
    arguments = [f"lr=torch.tensor({rate}, device=device)" if is_graph else f"lr={rate}"]
    arguments.append(f"weight_decay={settings['optimizer.weight_decay']}")
    if name == "sgd":
        arguments.append("momentum=0.9")
    elif is_graph:
        arguments.append("capturable=True")
        yield "# The steps before the capture run outside it on purpose."
        yield f'warnings.filterwarnings("ignore", "{CAPTURABLE_WARNING}")'
    if settings["optimizer.fused"]:
        arguments.append("fused=True")
    yield f"optimizer = torch.optim.{_CLASSES[name]}(model.parameters(), {', '.join(arguments)})"
    if name == "sgd" and settings["optimizer.fused"] and settings["precision.amp"] == "fp16":
        yield "# If the scaler skips the first step, torch would leave the momentum uninitialised."
        yield "for parameter in model.parameters():"
        yield '    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)'
    if _holds_gradients(settings):
        yield "# The compiler's CUDA graphs reuse the memory they write gradients to, so gradients that"
        yield "# accumulate need memory outside them."
        yield "for parameter in model.parameters():"
        yield "    if parameter.requires_grad:"
        yield "        parameter.grad = torch.zeros_like(parameter)"
    if warmup := settings["optimizer.warmup_steps"]:
        yield "schedule = torch.optim.lr_scheduler.LambdaLR("
        yield f"    optimizer, lambda done: min(1.0, (done + 1) / {warmup})"
        yield ")"
    if settings["precision.amp"] == "fp16":
        yield "scaler = torch.amp.GradScaler(device.type)"


def step(settings: Mapping[str, Scalar]) -> Iterator[str]:
    """Yields the lines that define `train_step` for one batch, or for several that are accumulated."""
    count, is_fp16 = settings["accumulate_steps"], settings["precision.amp"] == "fp16"
    several = count != 1
    yield f"def train_step({'micro_batches' if several else 'batch'}):"
    inner = "        " if several else "    "
    if several:
        yield "    for batch in micro_batches:"
    yield from (inner + line for line in _forward(settings))
    loss = f"(loss / {count})" if several else "loss"
    yield f"{inner}{f'scaler.scale({loss})' if is_fp16 else loss}.backward()"
    if clip := settings["optimizer.clip_norm"]:
        if is_fp16:
            yield "    scaler.unscale_(optimizer)"
        yield f"    torch.nn.utils.clip_grad_norm_(model.parameters(), {clip})"
    if is_fp16:
        yield "    scaler.step(optimizer)"
        yield "    scaler.update()"
    else:
        yield "    optimizer.step()"
    yield f"    optimizer.zero_grad(set_to_none={not _holds_gradients(settings)})"
    # Not .item(): that would wait for the device in every step.
    yield "    return loss.detach()"
    if settings["compile.mode"] == "graph":
        batch = "micro_batches" if several else "batch"
        as_list, held = (batch, "held") if several else (f"[{batch}]", "held[0]")
        sizes = f"[{settings['batch_size']}]{f' * {count}' if several else ''}"
        yield from _CAPTURED.format(batch=batch, as_list=as_list, held=held, sizes=sizes).splitlines()


def _holds_gradients(settings: Mapping[str, Scalar]) -> bool:
    """Returns whether gradients must keep their memory between steps, as in the trainer."""
    return settings["accumulate_steps"] != 1 and settings["compile.mode"] in _COMPILERS_GRAPHS


IN_FLOAT32 = '''\
def in_float32(forward):
    """Takes a recurrent layer out of autocast, where cuDNN would compute in float16 whatever the type."""

    def outside_of_autocast(x, *states):
        states = torch.utils._pytree.tree_map(lambda state: state.float(), states)
        with torch.autocast(device.type, enabled=False):
            return forward(x.float(), *states)

    return outside_of_autocast


for layer in model.modules():
    if isinstance(layer, torch.nn.RNNBase):
        layer.forward = in_float32(layer.forward)
'''


def _forward(settings: Mapping[str, Scalar]) -> Iterator[str]:
    if settings["memory_format"] == "channels_last":
        yield "batch = ["
        yield "    tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor"
        yield "    for tensor in batch"
        yield "]"
    if dtype := DTYPES.get(str(settings["precision.amp"])):
        yield f"with torch.autocast(device.type, dtype={dtype}):"
        yield "    loss = loss_of(compiled, batch)"
    else:
        yield "loss = loss_of(compiled, batch)"


def loop(settings: Mapping[str, Scalar]) -> Iterator[str]:
    """Yields the lines of the training loop."""
    count = settings["accumulate_steps"]
    name = "captured_step" if settings["compile.mode"] == "graph" else "train_step"
    warms = bool(settings["optimizer.warmup_steps"])
    yield "for epoch in range(EPOCHS):"
    if count == 1:
        yield "    for batch in batches():"
        yield f"        loss = {name}(batch)"
    else:
        yield "    stream = batches()"
        yield f"    while micro_batches := list(itertools.islice(stream, {count})):"
        yield f"        loss = {name}(micro_batches)"
    if warms:
        yield "        schedule.step()"
