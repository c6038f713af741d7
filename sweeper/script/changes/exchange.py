"""Makes ranks exchange their gradients once a step where several backward passes make up one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

from .change import ARITHMETIC, CLOSE, NO_EDIT, Change, ReportCallback

LEARN_STEPS = 3
"""Number of first steps that must have the same number of backward passes."""
_REFUSED_OPTIONS = (
    *("find_unused_parameters", "static_graph", "mixed_precision"),
    "delay_all_reduce_named_params",
)
"""Options of DistributedDataParallel with which ranks might disagree on what is exchanged."""


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
        original = wrapper.__init__
        exchange = _Exchange(torch, report)

        @functools.wraps(original)
        def init(model: Any, *args: Any, **options: Any) -> None:
            original(model, *args, **options)
            refused = [name for name in _REFUSED_OPTIONS if options.get(name)]
            exchange.begin(model, f"the script sets {refused[0]}" if refused else "")

        wrapper.__init__ = init
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(exchange.step_begins)
        # What reads gradients before a step must find those of all ranks.
        clips = torch.nn.utils
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            setattr(clips, name, exchange.before(getattr(clips, name)))
        scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        scaler.unscale_ = exchange.before(scaler.unscale_)


class _Exchange:
    """When the ranks of one model exchange gradients."""

    def __init__(self, torch: Any, report: ReportCallback) -> None:
        self._torch, self._report = torch, report
        self._model: Any = None
        self._is_off = False
        self._counts: list[int] = []
        self._count = self._per_step = 0
        # Whether a backward pass of this step was not exchanged yet.
        self._is_due = False
        self._trained: set[int] = set()

    def begin(self, model: Any, refusal: str) -> None:
        """Watches a model that the script has wrapped, unless there is a reason not to."""
        if self._model is not None:
            refusal = "the script trains several models in parallel"
            self._exchange()
            self._model.require_backward_grad_sync = True
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not refusal and not (trained and hasattr(trained[-1], "register_post_accumulate_grad_hook")):
            refusal = "this version of torch does not say when a gradient is ready"
        if refusal:
            self._stop(refusal)
            return
        self._model, self._trained = model, {id(parameter) for parameter in trained}
        model.register_forward_pre_hook(self._forward_begins)
        # The last parameters are near the loss, and take part in every backward pass.
        trained[-1].register_post_accumulate_grad_hook(self._backward_ran)

    def before(self, function: Any) -> Any:
        """Returns a function that exchanges what is due, then does the same as `function`."""

        @functools.wraps(function)
        def exchanged(*args: Any, **options: Any) -> Any:
            self._exchange()
            return function(*args, **options)

        return exchanged

    def step_begins(self, optimizer: Any, *_: Any) -> None:
        """Ends a step; the first ones show how many backward passes a step has."""
        groups = optimizer.param_groups
        if self._is_off or not any(id(one) in self._trained for group in groups for one in group["params"]):
            return
        self._exchange()
        if not self._per_step:
            self._counts.append(self._count)
            if len(self._counts) == LEARN_STEPS:
                self._decide()
        self._count = 0
        self._model.require_backward_grad_sync = True

    def _decide(self) -> None:
        if len({*self._counts}) > 1:
            counts = ", ".join(map(str, self._counts))
            self._stop(f"its first steps have {counts} backward passes")
        elif self._counts[0] <= 1:
            self._stop("each of its steps has one backward pass")
        else:
            self._per_step = self._counts[0]
            self._report(True)

    def _stop(self, why: str) -> None:
        self._is_off = True
        self._report(False, why, was_applied=self._per_step > 0)

    def _forward_begins(self, model: Any, _: Any) -> None:
        if self._is_off or not self._torch.is_grad_enabled():
            return
        if self._count == 0 and not model.require_backward_grad_sync:
            self._stop("the script does so itself")
            return
        self._count += 1
        if self._per_step:
            model.require_backward_grad_sync = self._count >= self._per_step

    def _backward_ran(self, _: Any) -> None:
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
        works = [distributed.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]
        for work, gradient in zip(works, gradients):
            work.wait()
            gradient.div_(distributed.get_world_size(group))
