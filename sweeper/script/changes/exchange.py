"""Makes ranks exchange their gradients once a step where several backward passes make up one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .change import ARITHMETIC, CLOSE, NO_EDIT, Change, ReportCallback

LEARN_STEPS = 3
"""Number of first steps that must have the same number of backward passes."""
_REFUSED_ATTRIBUTES = (
    *("find_unused_parameters", "static_graph", "mixed_precision"),
    *("_delay_all_reduce_params", "parameters_to_ignore"),
)
"""Attributes of DistributedDataParallel with which ranks might disagree on what is exchanged."""


class Exchange(Change):
    """Exchanges gradients at the last backward pass of a step, as `no_sync` of the model does by hand."""

    name = "exchange"
    choices = ("once",)
    kind = CLOSE
    why = "ranks exchange gradients once a step, not in each of its backward passes"
    saves = ARITHMETIC
    no_edit = NO_EDIT

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if facts.get("ranks", 1) <= 1:
            return "it trains in one process"
        if facts.get("accumulate_steps", 1) <= 1:
            return "each of its steps has one batch"
        return "it compiles its model" if facts.get("compiled") else ""

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the model that is wrapped from now on."""
        wrapper = torch.nn.parallel.DistributedDataParallel
        exchange = _Exchange(torch, report)
        wrapper.__init__ = _after(wrapper.__init__, exchange.begin)
        # Not a hook of the module: a script may copy or save it whole.
        wrapper.forward = _before(wrapper.forward, exchange.forward_begins)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(exchange.step_begins)
        # What reads gradients before a step must find those of all ranks.
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                setattr(module, name, exchange.before_clipping(getattr(module, name)))
        scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        scaler._unscale_grads_ = _before(scaler._unscale_grads_, exchange.unscaling_begins)


def _after(original: Callable[..., None], then: Callable[[Any], None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(model: Any, *args: Any, **options: Any) -> None:
        original(model, *args, **options)
        then(model)

    return init


def _before(original: Callable[..., Any], first: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(owner: Any, *args: Any, **options: Any) -> Any:
        first(owner, *args)
        return original(owner, *args, **options)

    return method


class _Exchange:
    """When the ranks of one model exchange gradients."""

    def __init__(self, torch: Any, report: ReportCallback) -> None:
        self._torch, self._report = torch, report
        self._model: Any = None
        self._is_off = False
        self._counts: list[int] = []
        # Backward passes since the last step, and usually from one to the next; 0 until that is clear.
        self._count = self._per_step = 0
        # Whether a backward pass of this step was not exchanged yet.
        self._is_due = False
        self._trained: set[int] = set()

    def begin(self, model: Any) -> None:
        """Watches a model that the script has wrapped, unless there is a reason not to."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        refused = [name for name in _REFUSED_ATTRIBUTES if getattr(model, name, None)]
        if self._model is not None:
            self._exchange()
            self._model.require_backward_grad_sync = True
            self._stop("the script trains several models in parallel")
        elif refused:
            self._stop(f"the script sets {refused[0]}")
        elif not (trained and hasattr(trained[-1], "register_post_accumulate_grad_hook")):
            self._stop("this version of torch does not say when a gradient is ready")
        else:
            self._model, self._trained = model, {id(parameter) for parameter in trained}
            # The last parameters are near the loss, and take part in every backward pass.
            trained[-1].register_post_accumulate_grad_hook(self._backward_ran)

    def before_clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that exchanges what is due before it clips gradients of the model."""

        @functools.wraps(clip)
        def clipped(parameters: Any, *args: Any, **options: Any) -> Any:
            some = [parameters] if hasattr(parameters, "grad") else list(parameters)
            if any(id(one) in self._trained for one in some):
                self._exchange()
            return clip(some, *args, **options)

        return clipped

    def unscaling_begins(self, _: Any, optimizer: Any, *__: Any) -> None:
        """Exchanges what is due before a GradScaler looks for gradients that are not finite."""
        if self._trains(optimizer):
            self._exchange()

    def step_begins(self, optimizer: Any, *_: Any) -> None:
        """Ends a step; the first ones show how many backward passes a step has."""
        if self._is_off or not self._trains(optimizer):
            return
        self._exchange()
        if not self._per_step:
            self._counts.append(self._count)
            if len(self._counts) == LEARN_STEPS:
                self._decide()
        self._count = 0
        # An evaluation now has the buffers of rank 0, as after an exchange.
        self._model.require_backward_grad_sync = self._model.require_forward_param_sync = True

    def _trains(self, optimizer: Any) -> bool:
        return any(id(one) in self._trained for group in optimizer.param_groups for one in group["params"])

    def _decide(self) -> None:
        if len({*self._counts}) > 1:
            counts = ", ".join(map(str, self._counts))
            self._stop(f"its first steps have {counts} backward passes")
        elif self._counts[0] <= 1:
            self._stop("each of its steps has one backward pass")
        elif getattr(self._model, "_comm_hooks", None):
            self._stop("the script has its own way to exchange gradients")
        else:
            self._per_step = self._counts[0]
            self._report(True)

    def _stop(self, why: str) -> None:
        self._is_off = True
        self._report(False, why, was_applied=self._per_step > 0)

    def forward_begins(self, model: Any, *_: Any) -> None:
        """Decides whether the backward pass of this pass forward is exchanged."""
        if self._is_off or model is not self._model or not self._torch.is_grad_enabled():
            return
        if self._count == 0 and not model.require_backward_grad_sync:
            self._stop("the script does so itself")
        elif getattr(getattr(model, "_join_config", None), "enable", False):
            self._stop("ranks may have different numbers of batches")
        elif self._per_step:
            # All ranks have run the same backward passes, whatever else one of them has computed.
            model.require_backward_grad_sync = self._count + 1 >= self._per_step

    def _backward_ran(self, _: Any) -> None:
        self._count += 1
        # DistributedDataParallel exchanges all that has been added up in the model's gradients.
        self._is_due = bool(self._per_step) and not self._model.require_backward_grad_sync

    def _exchange(self) -> None:
        """Averages gradients over the ranks, where a step ends before its usual number of passes."""
        if not self._is_due:
            return
        self._is_due = False
        group = self._model.process_group
        distributed = self._torch.distributed
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.div_(distributed.get_world_size(group))
        for work in [distributed.all_reduce(one, group=group, async_op=True) for one in gradients]:
            work.wait()
