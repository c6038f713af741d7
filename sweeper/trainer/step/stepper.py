"""Takes training steps: autocast, scaler, fused optimizer, no host sync.

data ─► h2d ─► forward ─► backward ─► [unscale, clip] optimizer, every `accumulate_steps`
   mark    mark       mark        mark                        mark

step ─┬─► captured (a CUDA graph of the rest) ─┬─► _take_micro_step ─► _update
      └─► train_batch ─► train_through ────────┘
          any size       a model, compiled or not
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from sweeper.core.config import DdpConfig, OptimizerConfig, TrialConfig
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import Progress, SilentProgress, TrialFailedError
from sweeper.script.changes.recurrent import NOTE, has_recurrent, keep_in_float32
from sweeper.trainer import device as devices
from sweeper.trainer.data.protocol import LoadedBatch, Loader
from sweeper.trainer.pipeline import Batch, Pipeline
from sweeper.trainer.step.clocks import BACKWARD, DATA, FORWARD, GRAPH, H2D, OPTIMIZER, Clock, NoClock
from sweeper.trainer.step.fp8 import MULTIPLE, lacks_fp8, use_fp8
from sweeper.trainer.step.fused import FusedStep
from sweeper.trainer.step.graph import Capture, CapturedStep, CudaCapture

RECORDED_AT = {"reduce-overhead": 2, "max-autotune": 2}
"""The run of a shape in which the compiler records its graph, if that is not the first."""
NEW_BUFFERS = "forward_sync_buffers"
"""The name of `broadcast_buffers` in torch 2.14."""
_NOTHING = contextlib.nullcontext()
_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


def make_optimizer(
    config: OptimizerConfig, lr: float | Tensor, parameters: Sequence[nn.Parameter], *, captured: bool = False
) -> Any:
    """Returns the optimizer, fused if requested and supported by torch on the device.

    Args:
        captured: Whether it will run inside a CUDA graph, with its step count on the device.
    """
    common: dict[str, Any] = {"lr": lr, "weight_decay": config.weight_decay}
    kind: Callable[..., Any] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
    }[config.name]
    if config.name == "sgd":
        common["momentum"] = 0.9
    elif captured:
        common["capturable"] = True
    optimizer = kind(parameters, **common, fused=True if config.fused else None)
    if config.name == "sgd":
        # If a scaler skips the first step, torch leaves a fused optimizer's momentum uninitialised.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Returns a model's longest list of blocks: layers of one class that contain other layers."""
    blocks: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > max(1, len(blocks)):
            first, *rest = module
            has_parts = next(first.children(), None) is not None and not isinstance(first, nn.Sequential)
            if has_parts and all(type(block) is type(first) for block in rest):
                blocks = [first, *rest]
    return blocks


def _ddp_options(config: DdpConfig) -> dict[str, Any]:
    """Returns the options of DistributedDataParallel that differ from the defaults."""
    defaults = dataclasses.asdict(DdpConfig())
    options = {name: value for name, value in dataclasses.asdict(config).items() if value != defaults[name]}
    if (
        "broadcast_buffers" in options
        and NEW_BUFFERS in inspect.signature(DistributedDataParallel).parameters
    ):
        options[NEW_BUFFERS] = options.pop("broadcast_buffers")
    return options


class Stepper:
    """Owns a trial's model, optimizer and scaler, and takes training steps.

    A step is a micro-batch here, as in all of the trainer; `updates` counts the optimizer's.

    Attributes:
        config: The trial's; after `leave_group`, the same training on one device.
        model: The model as it was built; steps call `compiled`.
        compiled: What steps call: `model`, compiled if requested, in DistributedDataParallel if in a group.
        compiles: Whether torch.compile compiles the model, or blocks of it in place.
        captured: The step as a CUDA graph; None without one.
        autocast: The context of the forward pass.
        initial: The model's initial state, on the host.
        parameters: Those that require gradients.
        optimizer: The optimizer; its learning rate is a tensor on the device if the step is captured.
        scaler: The loss scaler; None unless training in fp16.
        micro_steps: Batches trained on since the last reset.
        updates: Optimizer steps among them, including skipped ones.
        peak_lr: Learning rate after warm-up.
        last_loss: The last micro-batch's loss, on the device.
        schedule: The learning rate as a share of its peak, by optimizer step, including warm-up;
            None for warm-up only.
        skipped: Optimizer steps that the scaler skipped, counted on the device.
        refused: Settings that the model could not take, and what it uses instead.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        config: TrialConfig,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        """Moves the pipeline's model to `device` and prepares it as configured.

        Args:
            progress: Receives each step, and the stage `compile`.

        Raises:
            TrialFailedError: `precision.amp` is fp8, which cannot run here.
        """
        self.pipeline, self.config, self.device = pipeline, config, device
        self.progress = progress or SilentProgress()
        self.model = pipeline.model.to(device)
        self.refused: dict[str, str] = {}
        self._channels_last = config.memory_format == "channels_last" and self._set_channels_last()
        if config.precision.amp == "fp8":
            self._use_fp8()
        if config.activation_checkpointing:
            self._checkpoint()
        # `_compile` sets it if it compiles blocks in place.
        self._in_place = False
        self.compiled = self._compile(self.model)
        dtype = _AMP.get(config.precision.amp)
        if dtype is torch.bfloat16 and device.type == "cuda" and has_recurrent(torch, self.model):
            keep_in_float32(torch, lambda: torch.get_autocast_dtype("cuda") is torch.bfloat16)
            self.refused.setdefault("precision.amp", f"bf16: {NOTE}")
        self.autocast: contextlib.AbstractContextManager[Any] = (
            torch.autocast(device.type, dtype=dtype) if dtype else _NOTHING
        )
        self.schedule: Callable[[int], float] | None = None
        # On the host: a copy on the device would count in every peak that a trial reports.
        self.initial = {
            name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()
        }
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.peak_lr = config.optimizer.lr_at(config.global_batch)
        self.compiles = config.compile.uses_compiler
        self._runs: dict[tuple[torch.Size, ...], int] = {}
        # Makes the rest of the attributes, those that training changes.
        self.reset()

    def _set_channels_last(self) -> bool:
        try:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        except RuntimeError as error:
            # For example, for weights with five dimensions.
            self.refused["memory_format"] = f"contiguous: {str(error).partition(chr(10))[0]}"
            return False
        return True

    def _use_fp8(self) -> None:
        if why := lacks_fp8(devices.describe(self.device).capability):
            raise TrialFailedError(FailureKind.UNSUPPORTED, f"`precision.amp: fp8` cannot run here: {why}")
        if not use_fp8(self.model):
            self.refused["precision.amp"] = (
                f"bf16: no linear layer has sizes that are multiples of {MULTIPLE}"
            )

    def _checkpoint(self) -> None:
        """Makes the repeated blocks recompute their activations in the backward pass."""
        blocks = repeated_blocks(self.model)
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        if not blocks:
            self.refused["activation_checkpointing"] = "false: no block of the model is repeated"

    def _compile(self, model: nn.Module) -> nn.Module:
        if not self.config.compile.uses_compiler:
            return model
        mode = self.config.compile.mode
        options: dict[str, Any] = {
            "mode": None if mode == "default" else mode,
            "dynamic": None if self.config.compile.dynamic == "auto" else self.config.compile.dynamic,
        }
        if self.config.compile.regional and (blocks := repeated_blocks(model)):
            for block in blocks:
                block.compile(**options)
            self._in_place = True
            return model
        if self.config.compile.regional:
            self.refused["compile.regional"] = "false: no block of the model is repeated"
        compiled: nn.Module = torch.compile(model, **options)  # type: ignore[assignment]
        return compiled

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Runs `model` uncompiled in this context, even if its blocks were compiled in place."""
        with torch.compiler.set_stance("force_eager") if self._in_place else _NOTHING:
            yield

    def join_group(self, rank: int) -> None:
        """Averages gradients with the other ranks, which must be connected."""
        # Each rank drops out different units.
        torch.manual_seed(self.config.seed + rank)
        gpu = [self.device.index] if self.device.type == "cuda" else None
        model = DistributedDataParallel(self.model, device_ids=gpu, **_ddp_options(self.config.ddp))
        self.compiled = self._compile(model)

    def leave_group(self) -> None:
        """Continues alone, accumulating gradients in place of the other ranks."""
        self.config = self.config.on_one_device()
        self.compiled = self._compile(self.model)
        self._runs.clear()

    def reset(self) -> None:
        """Sets the initial weights, a new optimizer and no graph, at the start and for a quality pass."""
        torch.manual_seed(self.config.seed)
        self.model.load_state_dict(self.initial)
        self.model.train()
        self.captured: CapturedStep | None = None
        self._reset_optimizer()

    def _reset_optimizer(self, *, captured: bool = False) -> None:
        """Makes a new optimizer and scaler, with no gradients and all counts at zero."""
        # A graph reads the rate from the device; a later assignment on the host would not reach it.
        lr = torch.tensor(self.peak_lr, device=self.device) if captured else self.peak_lr
        self.optimizer = make_optimizer(self.config.optimizer, lr, self.parameters, captured=captured)
        self._fused_step = FusedStep(self.optimizer)
        self.scaler = torch.amp.GradScaler(self.device.type) if self.config.precision.amp == "fp16" else None
        self.micro_steps = 0
        self.updates = 0
        self.skipped = torch.zeros((), device=self.device)
        self.last_loss: Tensor = torch.zeros((), device=self.device)
        # Gradients that accumulate over several graphs, ours or the compiler's, must not move.
        graphs = captured or self.config.compile.compiler_captures
        self._held_gradients = graphs and self.config.accumulate_steps > 1
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter) if self._held_gradients else None

    def capture(self, loader: Loader, capture: Capture | None = None) -> None:
        """Replays steps on batches of `loader` from a CUDA graph, once each shape has been seen.

        Raises:
            TrialFailedError: There is no GPU, or the optimizer cannot be captured.
        """
        if capture is None and self.device.type != "cuda":
            raise TrialFailedError(
                FailureKind.UNSUPPORTED, "`compile.mode: graph` needs a GPU: it captures a CUDA graph"
            )
        config = self.config
        recomputes = config.activation_checkpointing and "activation_checkpointing" not in self.refused
        if recomputes and (why := self._cannot_recompute()):
            raise TrialFailedError(
                FailureKind.UNSUPPORTED,
                f"`compile.mode: graph` cannot be combined with `activation_checkpointing` here: {why}",
            )
        if not config.optimizer.fused and (config.optimizer.name == "sgd" or self.scaler):
            raise TrialFailedError(
                FailureKind.UNSUPPORTED,
                "`compile.mode: graph` needs `optimizer.fused: true` with sgd or fp16: otherwise each "
                "step waits for a value from the device",
            )
        # Steps run eagerly before they are captured, as required.
        warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
        self._reset_optimizer(captured=True)
        self.captured = self.make_captured_step(loader.materialise, capture)

    def _cannot_recompute(self) -> str:
        """Returns why activations cannot be recomputed in a graph; empty if they can."""
        if torch.__version__ < "2.10":
            return "it needs torch 2.10 or newer, to read the generator's state during a capture"
        if any(isinstance(module, nn.RNNBase) and module.dropout for module in self.model.modules()):
            # Setting the generator's state frees it while graphs still use it.
            return "cuDNN keeps a separate state for the dropout of recurrent layers"
        return ""

    def make_captured_step(
        self, materialise: Callable[[Batch, int], Batch], capture: Capture | None = None
    ) -> CapturedStep:
        """Returns this stepper's step as a graph, with `materialise` applied to its input."""
        nothing = NoClock()

        def run(batch: Batch, length: int, update: bool) -> None:
            self._take_micro_step(materialise(batch, length), nothing, self.model, update)

        return CapturedStep(run, capture or CudaCapture())

    def step(self, loader: Loader, clock: Clock) -> int:
        """Trains on the next micro-batch of `loader`, and returns its number of samples."""
        clock.start()
        batch, size, length = loader.next()
        clock.mark(DATA)
        batch = loader.to_device(batch)
        clock.mark(H2D)
        if self.captured is not None and size == self.config.batch_size:
            self.captured(batch, length, self._count_micro_step())
            clock.mark(GRAPH)
            return size
        self.train_batch(loader.materialise(batch, length), clock, size)
        return size

    def replay(self, handed: LoadedBatch) -> None:
        """Takes a captured step on a loader's batch, which is on the device."""
        assert self.captured is not None
        self.captured(handed.batch, handed.length, self._count_micro_step())

    def has_seen(self, num_shapes: int) -> bool:
        """Returns whether `num_shapes` shapes are compiled or captured, if the mode does that."""
        if self.captured is not None:
            kinds = 2 if self.config.accumulate_steps > 1 else 1
            return self.captured.num_graphs >= kinds * num_shapes
        min_runs = RECORDED_AT.get(self.config.compile.mode, 1)
        return not self.compiles or sum(runs >= min_runs for runs in self._runs.values()) >= num_shapes

    def train_batch(self, batch: Batch, clock: Clock, size: int) -> None:
        """Trains on a batch of `size` samples (on the device); a ragged one runs eagerly."""
        # A ragged batch is not worth a separate compilation or capture.
        if size == self.config.batch_size or not self.compiles:
            self.train_through(batch, clock, self.compiled)
            return
        with self.eager():
            self._take_micro_step(batch, clock, self.model, self._count_micro_step())

    def train_through(self, batch: Batch, clock: Clock, model: nn.Module) -> None:
        """Trains on `batch` (on the device) through `model`, compiled or not."""
        if self.compiles and model is self.compiled:
            shape = tuple(tensor.shape for tensor in batch.values())
            self._runs[shape] = self._runs.get(shape, 0) + 1
            if self._runs[shape] == 1:
                self._compile_by_running(batch, clock)
                return
        self._take_micro_step(batch, clock, model, self._count_micro_step())

    def _compile_by_running(self, batch: Batch, clock: Clock) -> None:
        """Takes the first step of a shape in a separate stage, since it waits for the compiler."""
        before = self.progress.reached
        self.progress.stage("compile")
        self._take_micro_step(batch, clock, self.compiled, self._count_micro_step())
        self.progress.stage(before)

    def _count_micro_step(self) -> bool:
        """Counts a micro-step; returns whether the optimizer steps after it, with its rate set."""
        self.micro_steps += 1
        self.progress.steps.add()
        if self.micro_steps % self.config.accumulate_steps:
            return False
        self._count_update()
        return True

    def _count_update(self) -> None:
        warmup = self.config.optimizer.warmup_steps
        if self.schedule is not None:
            self.set_rate(self.peak_lr * self.schedule(self.updates))
        elif self.updates <= warmup and warmup:
            self.set_rate(self.peak_lr * min(1.0, (self.updates + 1) / warmup))
        self.updates += 1

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate of the next optimizer step, on the device for a graph."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _take_micro_step(self, batch: Batch, clock: Clock, model: nn.Module, update: bool) -> None:
        """Runs forward, backward and, with `update`, the optimizer; a graph captures this."""
        if self._channels_last:
            batch = {name: _to_channels_last(tensor) for name, tensor in batch.items()}
        with _NOTHING if update else self._apart(model):
            with self.autocast:
                loss = self.pipeline.loss(model, batch)
            if self.captured is None:
                self.last_loss = loss.detach()
            else:
                self.last_loss.copy_(loss.detach())
            if self.config.accumulate_steps > 1:
                loss = loss / self.config.accumulate_steps
            clock.mark(FORWARD)
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        clock.mark(BACKWARD)
        if update:
            self._update()
        clock.mark(OPTIMIZER)

    def _apart(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which devices that train together do not exchange gradients."""
        # A compiled module wraps the one that exchanges.
        inner = getattr(model, "_orig_mod", model)
        if not isinstance(inner, DistributedDataParallel) or self.config.ddp.static_graph:
            # With a static graph, torch fails if the first backward pass skips the exchange (pytorch#143580).
            return _NOTHING
        context: contextlib.AbstractContextManager[None] = inner.no_sync()
        return context

    def finish(self) -> None:
        """Takes the optimizer step for the remaining micro-batches of an accumulation."""
        if self.micro_steps % self.config.accumulate_steps:
            self._count_update()
            self._update()

    def _update(self) -> None:
        optimizer, scaler, config = self.optimizer, self.scaler, self.config.optimizer
        if config.clip_norm:
            if scaler:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.parameters, config.clip_norm)
        if scaler:
            scaler.step(optimizer)
            for overflow in scaler._found_inf_per_device(optimizer).values():
                self.skipped += overflow
            scaler.update()
        elif self.captured is None:
            self._fused_step()
        else:
            optimizer.step()
        if self._held_gradients:
            torch._foreach_zero_([p.grad for p in self.parameters if p.grad is not None])
        else:
            for parameter in self.parameters:
                parameter.grad = None


def _to_channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
