"""Changes to a script that are fast and wrong, or harmless: what a proof must tell apart."""

from __future__ import annotations

import time

EXACT, CLOSE = "exact", "close"


class Change:
    """A planted change.

    Args:
        work: Makes it in the script's process.
    """

    choices = ("on",)
    why = "planted"

    def __init__(self, name, kind, work):
        self.name, self.kind, self._work = name, kind, work

    def apply(self, torch, value, report):
        self._work(torch)
        report(True)


def wrap(owner, name, make):
    setattr(owner, name, make(getattr(owner, name)))


def first(kind, work):
    """Has a kind of module do some work before its forward."""

    def make(original):
        def forward(module, x):
            work(module, x)
            return original(module, x)

        return forward

    wrap(kind, "forward", make)


def drops_last(torch):
    def make(original):
        def init(loader, *args, **kwargs):
            original(loader, *args, **{**kwargs, "drop_last": True})

        return init

    wrap(torch.utils.data.DataLoader, "__init__", make)


def skips_samples(torch):
    def make(original):
        def indices(sampler):
            return (each for number, each in enumerate(original(sampler)) if number % 10)

        return indices

    wrap(torch.utils.data.RandomSampler, "__iter__", make)


def shuffles_once(torch):
    def make(original):
        def indices(sampler):
            if not hasattr(sampler, "kept"):
                sampler.kept = list(original(sampler))
            return iter(sampler.kept)

        return indices

    wrap(torch.utils.data.RandomSampler, "__iter__", make)


def dropout_off(torch):
    torch.nn.Dropout.forward = lambda module, x: x


def quiet_dropout(torch):
    """Draws as dropout does, and drops nothing."""

    def forward(module, x):
        if module.training:
            torch.rand_like(x)
        return x

    torch.nn.Dropout.forward = forward


def stale_gradient(torch):
    def make(original):
        def step(optimizer, *args, **kwargs):
            now = [p.grad.clone() for g in optimizer.param_groups for p in g["params"]]
            parameters = [p for g in optimizer.param_groups for p in g["params"]]
            for parameter, old in zip(parameters, optimizer.old or now, strict=True):
                parameter.grad.copy_(old)
            result = original(optimizer, *args, **kwargs)
            optimizer.old = now
            return result

        return step

    torch.optim.SGD.old = None
    wrap(torch.optim.SGD, "step", make)


def half_the_labels(torch):
    def make(original):
        def loss(x, y, *args, **kwargs):
            return original(x[: len(x) // 2], y[: len(y) // 2], *args, **kwargs)

        return loss

    wrap(torch.nn.functional, "cross_entropy", make)


def skips_updates(torch):
    def make(original):
        def step(optimizer, *args, **kwargs):
            optimizer.count = getattr(optimizer, "count", 0) + 1
            return original(optimizer, *args, **kwargs) if optimizer.count % 4 else None

        return step

    wrap(torch.optim.SGD, "step", make)


def never_trains(torch):
    torch.nn.Module.train = lambda module, mode=True: module
    for kind in (torch.nn.Dropout, torch.nn.BatchNorm1d):
        first(kind, lambda module, x: setattr(module, "training", False))


def freezes_a_layer(torch):
    def make(original):
        def init(optimizer, params, *args, **kwargs):
            params = list(params)
            params[0].requires_grad_(False)
            original(optimizer, params, *args, **kwargs)

        return init

    wrap(torch.optim.SGD, "__init__", make)


def other_rate(torch):
    def make(original):
        def init(optimizer, params, lr=1e-3, **kwargs):
            original(optimizer, params, lr=2 * lr, **kwargs)

        return init

    wrap(torch.optim.SGD, "__init__", make)


def wrong_order(torch):
    def make(original):
        def fetch(fetcher, indices):
            return original(fetcher, indices[::-1])

        return fetch

    wrap(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch", make)


def clips(torch):
    def make(original):
        def step(optimizer, *args, **kwargs):
            torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.1)
            return original(optimizer, *args, **kwargs)

        return step

    wrap(torch.optim.SGD, "step", make)


def draws(torch):
    first(torch.nn.Linear, lambda module, x: torch.rand(1))


def shorter_validation(torch):
    def make(original):
        def eval(module):
            module.short = True
            return original(module)

        return eval

    def fetch(original):
        def following(iterator):
            if not torch.is_grad_enabled() and iterator._num_yielded >= 2:
                raise StopIteration
            return original(iterator)

        return following

    wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", fetch)


def half_precision(torch):
    """Is close by what it says, and never exact."""
    wrap(torch.nn.Linear, "forward", lambda original: lambda module, x: original(module, x.half().float()))


def nothing(torch):
    """Changes nothing."""


def reads_the_clock(torch):
    first(torch.nn.Linear, lambda module, x: time.time())


def sets_to_zero(torch):
    def make(original):
        def zero_grad(optimizer, set_to_none=True):
            return original(optimizer, set_to_none=False)

        return zero_grad

    wrap(torch.optim.Optimizer, "zero_grad", make)


WRONG = (
    drops_last,
    skips_samples,
    shuffles_once,
    dropout_off,
    quiet_dropout,
    stale_gradient,
    half_the_labels,
    skips_updates,
    never_trains,
    freezes_a_layer,
    other_rate,
    wrong_order,
    clips,
    draws,
    shorter_validation,
)
HARMLESS = (nothing, reads_the_clock, sets_to_zero)

CHANGES = [
    Change(f"{work.__name__}_{kind}", kind, work) for work in (*WRONG, *HARMLESS) for kind in (EXACT, CLOSE)
]
CHANGES.append(Change("half_precision_exact", EXACT, half_precision))
