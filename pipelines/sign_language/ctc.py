"""Connectionist temporal classification with static shapes, and nothing that waits for the host.

torch's own copies the lengths to the host at every step on a GPU, and cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IMPOSSIBLE = -1e30
"""Logarithm of the probability of what cannot be; finite, so that no difference of two is NaN."""


def ctc_loss(log_probs: Tensor, labels: Tensor, steps: Tensor, counts: Tensor) -> Tensor:
    """Returns the mean over clips of the CTC loss per label; a clip too short for its labels counts 0.

    Equal to `torch.nn.functional.ctc_loss(..., zero_infinity=True)` (Graves et al. 2006, blank 0).

    Args:
        log_probs: Log-probabilities [heads, batch, steps, classes], float32.
        labels: Classes [batch, labels], 1 and above; what is beyond `counts` is not looked at.
        steps: Valid steps [batch] of each clip, at least 1.
        counts: Labels [batch] of each clip.
    """
    heads = log_probs.shape[0]
    repeated = (each.repeat(heads, *[1] * (each.dim() - 1)) for each in (labels, steps, counts))
    loss: Tensor = negative_log_likelihood(log_probs.flatten(0, 1), *repeated)
    return (loss / counts.repeat(heads).clamp(min=1)).mean()


def negative_log_likelihood(log_probs: Tensor, labels: Tensor, steps: Tensor, counts: Tensor) -> Tensor:
    """Returns -log P(labels) [clips] from log-probabilities [clips, steps, classes]; 0 where P is 0."""
    loss: Tensor = _Ctc.apply(log_probs, labels, steps, counts)  # type: ignore[no-untyped-call]
    return loss


class _Ctc(torch.autograd.Function):
    """Forward and backward variables in one recursion: the latter are the former of the reversed clip."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, labels: Tensor, steps: Tensor, counts: Tensor) -> Tensor:
        clips, time, _ = log_probs.shape
        # blank, label, blank, label, ..., blank; and the same in reverse.
        states = labels.new_zeros(clips, 2 * labels.shape[1] + 1)
        states[:, 1::2] = labels
        state, step = (torch.arange(n, device=labels.device) for n in (states.shape[1], time))
        last = 2 * counts[:, None]
        inside = state <= last
        states = torch.where(inside, states, 0)
        mirror_state = torch.where(inside, last - state, state)
        mirror_step = torch.where(step < steps[:, None], steps[:, None] - 1 - step, step)

        emitted = log_probs.gather(2, states[:, None].expand(-1, time, -1))
        emitted = emitted.masked_fill(~inside[:, None], IMPOSSIBLE)
        both = torch.cat((emitted, _mirrored(emitted, mirror_state, mirror_step)))
        alpha = _forward_variables(both, torch.cat((states, states.gather(1, mirror_state))))
        beta = _mirrored(alpha[clips:], mirror_state, mirror_step)
        alpha = alpha[:clips]

        ends = alpha.gather(1, (steps - 1)[:, None, None].expand(-1, 1, alpha.shape[2]))[:, 0]
        likelihood = torch.logaddexp(ends.gather(1, last), ends.gather(1, (last - 1).clamp(min=0)))
        # Without labels both ends are the same one.
        likelihood = torch.where(last > 0, likelihood, ends[:, :1])
        possible = likelihood > IMPOSSIBLE / 2
        posterior = (alpha + beta - emitted - likelihood[:, None]).exp()
        known = (step < steps[:, None])[:, :, None] & inside[:, None] & possible[:, None]
        ctx.save_for_backward(torch.where(known, posterior, 0.0), states)
        ctx.classes = log_probs.shape[2]
        return torch.where(possible, -likelihood, 0.0)[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        posterior, states = ctx.saved_tensors
        clips, time, _ = posterior.shape
        grad = posterior.new_zeros(clips, time, ctx.classes)
        weighted = posterior * -grads[0][:, None, None]
        grad.scatter_add_(2, states[:, None].expand(-1, time, -1), weighted)
        return grad, None, None, None


def _forward_variables(emitted: Tensor, states: Tensor) -> Tensor:
    """Returns log P(a path is in the state after the step, and what it emitted) [clips, steps, states]."""
    clips, time, num_states = emitted.shape
    skips = torch.zeros_like(emitted[:, 0]).fill_(IMPOSSIBLE)
    different = (states[:, 2:] != states[:, :-2]) & (states[:, 2:] != 0)
    skips[:, 2:].masked_fill_(different, 0.0)
    # Two impossible states before the first, so that a shift is a view.
    alpha = emitted.new_full((time, clips, num_states + 2), IMPOSSIBLE)
    alpha[0, :, 2:4] = emitted[:, 0, :2]
    for t, after in enumerate(emitted.unbind(1)):
        if t:
            before = alpha[t - 1]
            stay = torch.logaddexp(before[:, 2:], before[:, 1:-1])
            reached = torch.logaddexp(stay, before[:, :-2] + skips)
            torch.add(reached, after, out=alpha[t, :, 2:])
    return alpha[:, :, 2:].transpose(0, 1)


def _mirrored(values: Tensor, state: Tensor, step: Tensor) -> Tensor:
    """Returns `values` [clips, steps, states] with both taken from behind."""
    turned = values.gather(1, step[:, :, None].expand_as(values))
    return turned.gather(2, state[:, None].expand_as(values))
