"""Takes a fused optimizer's step without torch's wrapper around it.

At each step, torch collects the parameters and their state in Python. For a small model, this takes longer
than the arithmetic. Here they are collected once. The optimizer still owns its state, so checkpoints are the
same, and the results are identical, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Update = Callable[[list[Tensor]], None]
"""A function that updates all parameters, given their gradients."""


class FusedStep:
    """Takes an optimizer's steps: by its fused kernel alone if that is enough, else by its `step`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters: list[Tensor] = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        self._update: Update | None = None
        self._state: object = None

    def __call__(self) -> None:
        """Takes a step."""
        grads = [parameter.grad for parameter in self._parameters]
        # Loading a checkpoint replaces the state.
        if self._update is None or self._state is not self._optimizer.state or None in map(_kind, grads):
            self._optimizer.step()
            self._update, self._state = self._direct_update(), self._optimizer.state
            return
        with torch.no_grad():
            self._update(grads)  # type: ignore[arg-type]

    def _direct_update(self) -> Update | None:
        """Returns a step that only calls the kernel; None if this optimizer needs more than that."""
        optimizer = self._optimizer
        if len(optimizer.param_groups) != 1 or not self._parameters:
            return None
        (group,) = optimizer.param_groups
        kinds = {(parameter.dtype, parameter.device) for parameter in self._parameters}
        has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        if not group.get("fused") or len(kinds) > 1 or has_hooks or isinstance(group["lr"], Tensor):
            return None
        state = [optimizer.state.get(parameter, {}) for parameter in self._parameters]
        if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
            return _adam(group, self._parameters, state)
        if type(optimizer) is torch.optim.SGD:
            return _sgd(group, self._parameters, state)
        return None


def _kind(grad: Tensor | None) -> type | None:
    return None if grad is None else Tensor


def _adam(group: dict[str, Any], parameters: list[Tensor], state: list[dict[str, Any]]) -> Update | None:
    names = ("exp_avg", "exp_avg_sq", "step")
    if group["amsgrad"] or not all(name in entry for entry in state for name in names):
        return None
    averages, squares, steps = ([entry[name] for entry in state] for name in names)
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    beta1, beta2 = group["betas"]

    def update(grads: list[Tensor]) -> None:
        torch._foreach_add_(steps, 1)
        kernel(
            parameters,
            grads,
            averages,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    return update


def _sgd(group: dict[str, Any], parameters: list[Tensor], state: list[dict[str, Any]]) -> Update | None:
    buffers = [entry.get("momentum_buffer") for entry in state]
    if not group["momentum"] or any(buffer is None for buffer in buffers):
        return None

    def update(grads: list[Tensor]) -> None:
        torch._fused_sgd_(
            parameters,
            grads,
            buffers,  # type: ignore[arg-type]
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first_step=False,
        )

    return update
