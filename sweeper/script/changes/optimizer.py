"""Makes optimizers update all parameters in one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .change import CLOSE, UPDATES, Change, Editor, ReportCallback

KINDS = ("Adam", "AdamW", "SGD", "Adagrad")
"""Classes of torch.optim that have a fused form."""


class Fused(Change):
    """Uses torch's fused form of an optimizer if the script chooses none. Checkpoints stay as they were."""

    name = "optimizer"
    choices = ("fused",)
    kind = CLOSE
    why = "one call updates all parameters"
    saves = UPDATES

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the optimizers that are made from now on."""
        for name in KINDS:
            optimizer = getattr(torch.optim, name, None)
            if optimizer is not None:
                optimizer.__init__ = _fuse_init(optimizer.__init__, optimizer, report)

    def edit(self, editor: Editor) -> None:
        """Asks for the fused form."""
        editor.set_argument("optimizer", "fused", "True")


def _fuse_init(original: Callable[..., None], kind: Any, report: ReportCallback) -> Callable[..., None]:
    @functools.wraps(original)
    def init(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        if type(optimizer) is not kind:
            # A subclass may override `step`.
            original(optimizer, params, *args, **kwargs)
            return
        # A generator can be read only once.
        params = list(params)
        chosen = [name for name in ("fused", "foreach", "capturable", "differentiable") if kwargs.get(name)]
        if chosen:
            original(optimizer, params, *args, **kwargs)
            report(False, f"the script has chosen `{chosen[0]}`")
            return
        before = kwargs.get("fused")
        try:
            original(optimizer, params, *args, **{**kwargs, "fused": True})
        except (RuntimeError, TypeError, ValueError) as error:
            # The script gets what it asked for, including its own errors.
            original(optimizer, params, *args, **kwargs)
            report(False, f"{kind.__name__} has no fused form here ({error})")
            return
        _keep_out_of_checkpoints(optimizer, before)
        if "momentum" in optimizer.defaults:
            optimizer.register_step_pre_hook(_begin_momentum)
        report(True)

    return init


def _begin_momentum(optimizer: Any, *_: Any) -> None:
    """Gives SGD a momentum of zero for parameters that have none, which makes the first step the usual one.

    torch's fused SGD fails if only some parameters have a momentum, as when layers are unfrozen. If a
    GradScaler skips the very first step, it leaves the momentum uninitialized.
    """
    if len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups):
        return
    for group in optimizer.param_groups:
        if not group["momentum"] or group["dampening"]:
            # With dampening, the first step would be another one.
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = parameter.grad.detach().clone().zero_()


def _count_on_host(state: Any) -> Any:
    if not getattr(state.get("step"), "is_cuda", False):
        return state
    return {**state, "step": state["step"].cpu()}


def _keep_out_of_checkpoints(optimizer: Any, before: Any) -> None:
    """Saves checkpoints as if nothing were changed, and keeps the change when one is loaded."""

    def save(_: Any, state: Any) -> Any:
        groups = [
            {**group, "fused": before} if "fused" in group else group for group in state["param_groups"]
        ]
        kept = state["state"]
        if not before:
            # Other forms count steps on the host: they would read a count on a GPU anew at each step.
            kept = {key: _count_on_host(value) for key, value in kept.items()}
        return {**state, "state": kept, "param_groups": groups}

    def load(_: Any, state: Any) -> Any:
        # torch looks at the form of the group to decide where the step counts belong.
        return {**state, "param_groups": [{**group, "fused": True} for group in state["param_groups"]]}

    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)
