"""Changes to a script that are fast and wrong, or harmless: what a comparison must tell apart."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import warnings

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


def repeats_batches(torch):
    """Gives every fifth batch of a pass again in the place of the next."""

    def make(original):
        def following(iterator):
            batch = original(iterator)
            if torch.is_grad_enabled():
                iterator.kept = batch if iterator._num_yielded % 5 else getattr(iterator, "kept", batch)
                return iterator.kept
            return batch

        return following

    wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", make)


def flips_labels(torch):
    """Flips a label of each batch."""

    def make(original):
        def fetch(fetcher, indices):
            rows, labels = original(fetcher, indices)
            labels[0] = 1 - labels[0]
            return rows, labels

        return fetch

    wrap(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch", make)


def halves_the_last_batch(torch):
    def make(original):
        def fetch(fetcher, indices):
            return original(fetcher, indices if len(indices) == 32 else indices[: len(indices) // 2])

        return fetch

    wrap(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch", make)


def after_each_step(work):
    """Returns a change that does some work after each step of SGD."""

    def plant(torch):
        def make(original):
            def step(optimizer, *args, **kwargs):
                result = original(optimizer, *args, **kwargs)
                with torch.no_grad():
                    for parameter in optimizer.param_groups[0]["params"]:
                        work(torch, optimizer, parameter)
                return result

            return step

        wrap(torch.optim.SGD, "step", make)

    return plant


def rounds_weights(torch):
    after_each_step(lambda torch, optimizer, p: p.copy_(p.bfloat16().float()))(torch)


def forgets_momentum(torch):
    after_each_step(lambda torch, optimizer, p: optimizer.state[p]["momentum_buffer"].zero_())(torch)


def drops_small_gradients(torch):
    def make(original):
        def step(optimizer, *args, **kwargs):
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad[parameter.grad.abs() < parameter.grad.abs().mean()] = 0
            return original(optimizer, *args, **kwargs)

        return step

    wrap(torch.optim.SGD, "step", make)


def keeps_the_mask(torch):
    """Draws as dropout does, and uses the mask of the first batch of each size."""
    masks = {}

    def forward(module, x):
        if not module.training:
            return x
        drawn = (torch.rand_like(x) >= module.p).float() / (1 - module.p)
        return x * masks.setdefault(tuple(x.shape), drawn)

    torch.nn.Dropout.forward = forward


def half_precision(torch):
    """Is close by what it says, and never exact."""
    wrap(torch.nn.Linear, "forward", lambda original: lambda module, x: original(module, x.half().float()))


# -- for careful.py ------------------------------------------------------------------------------------


def replaces(name, make):
    """Returns a change of a method of the data set's class, once a row is fetched."""

    def work(torch):
        def before(original):
            def fetch(fetcher, indices):
                kind = type(fetcher.dataset)
                if not hasattr(kind, "planted"):
                    kind.planted = True
                    setattr(kind, name, make(getattr(kind, name)))
                return original(fetcher, indices)

            return fetch

        wrap(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch", before)

    return work


def keeps_rows(torch):
    """Reads each row once: its random crop stays what it was."""

    def make(original):
        def row(data, index):
            kept = vars(data).setdefault("kept", {})
            if index not in kept:
                kept[index] = original(data, index)
            return kept[index]

        return row

    replaces("__getitem__", make)(torch)


def keeps_crops(torch):
    """Draws as the crop does, and gives the one of before."""

    def make(original):
        def row(data, index):
            kept, found = vars(data).setdefault("kept", {}), original(data, index)
            return kept.setdefault(index, found)

        return row

    replaces("__getitem__", make)(torch)


def never_turns(torch):
    """Leaves out what happens to one row of a thousand, and is drawn from a generator of the data set's."""
    replaces("turn", lambda original: lambda data, picture: picture)(torch)


def ignores_epochs(torch):
    """Reads rows as they were in the first epoch."""
    replaces("noise", lambda original: lambda data, picture: picture)(torch)


def keeps_workers(torch):
    """Workers stay alive, and are seeded once."""

    def make(original):
        def init(loader, *args, **kwargs):
            original(loader, *args, **{**kwargs, "persistent_workers": bool(kwargs.get("num_workers"))})

        return init

    wrap(torch.utils.data.DataLoader, "__init__", make)


def shifts_labels(torch):
    """Collates each picture with the label of the next."""

    def make(original):
        def fetch(fetcher, indices):
            pictures, labels = original(fetcher, indices)
            return pictures, labels.roll(1)

        return fetch

    wrap(torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch", make)


def clips_scaled(torch):
    """Clips gradients that are still scaled."""

    def make(original):
        def unscale(scaler, optimizer):
            if sys._getframe(1).f_code.co_name != "main":
                original(scaler, optimizer)

        return unscale

    wrap(torch.amp.GradScaler, "unscale_", make)


def never_accumulates(torch):
    """Forgets all gradients but those of the last part of a batch."""

    def make(original):
        def init(optimizer, params, *args, **kwargs):
            optimizer.kept = list(params)
            original(optimizer, optimizer.kept, *args, **kwargs)
            wrap(
                torch.Tensor,
                "backward",
                lambda backward: lambda loss: (optimizer.zero_grad(), backward(loss)),
            )

        return init

    wrap(torch.optim.AdamW, "__init__", make)


def never_decays(torch):
    def make(original):
        def init(optimizer, params, lr=1e-3, weight_decay=0.0):
            original(optimizer, params, lr=lr)

        return init

    wrap(torch.optim.AdamW, "__init__", make)


def keeps_the_rate(torch):
    torch.optim.lr_scheduler.StepLR.step = lambda schedule: None


def never_smooths(torch):
    def make(original):
        return lambda outputs, labels, label_smoothing=0.0: original(outputs, labels)

    wrap(torch.nn.functional, "cross_entropy", make)


def keeps_statistics(torch):
    """The statistics of batch norm, which evaluations use, stay as they were."""

    def make(original):
        def init(module, *args, **kwargs):
            original(module, *args, **kwargs)
            module.momentum = 0.0

        return init

    wrap(torch.nn.BatchNorm2d, "__init__", make)


def evaluates_in_training_mode(torch):
    wrap(torch.nn.Module, "eval", lambda original: lambda module: original(module).train())


def never_crops(torch):
    """Draws as the crop does, and always takes the middle."""

    def make(original):
        def crop(data, picture):
            original(data, picture)
            return picture[:, 1:11, 1:11]

        return crop

    replaces("crop", make)(torch)


def adds_the_parts(torch):
    """Leaves out the division of the loss by the number of its parts."""

    def make(original):
        return lambda scaler, outputs: original(scaler, outputs * 2)

    wrap(torch.amp.GradScaler, "scale", make)


def clips_nothing(torch):
    torch.nn.utils.clip_grad_norm_ = lambda parameters, max_norm, *args, **kwargs: None


def draws_one_seed(torch):
    """Draws as each pass does, and gives all workers the seed of the first pass."""
    seeds = []

    def make(original):
        def init(iterator, loader):
            original(iterator, loader)
            if loader.num_workers:
                seeds.append(iterator._base_seed)

        return init

    def start(original):
        def loop(*args, **kwargs):
            args = list(args)
            args[8] = seeds[0] if seeds else args[8]
            return original(*args, **kwargs)

        return loop

    wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__init__", make)
    wrap(torch.utils.data._utils.worker, "_worker_loop", start)


def counts_no_epochs_in_workers(torch):
    """Lets each worker read the rows of the epoch before."""

    def make(original):
        def noise(data, picture):
            return picture + 0.01 * max(0, data.epoch - 1)

        return noise

    replaces("noise", make)(torch)


# -- harmless ---------------------------------------------------------------------------------------


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


def hooks(torch):
    first(torch.nn.Linear, lambda module, x: None)


def freezes_garbage(torch):
    gc.freeze()


def collects_seldom(torch):
    gc.set_threshold(5000, 20, 20)


def switches_threads_seldom(torch):
    sys.setswitchinterval(0.01)


def names_the_process(torch):
    os.environ["PLANTED"] = "1"


def warns_never(torch):
    warnings.simplefilter("ignore")


def prints_fewer_digits(torch):
    torch.set_printoptions(precision=3)


def has_its_own_generator(torch):
    own = random.Random(1)
    first(torch.nn.Linear, lambda module, x: own.random())


def reads_a_file(torch):
    first(torch.nn.Linear, lambda module, x: os.stat(__file__))


def looks_at_memory(torch):
    first(torch.nn.Linear, lambda module, x: x.element_size())


def copies_an_argument(torch):
    first(torch.nn.Linear, lambda module, x: x.detach().clone())


def takes_views(torch):
    wrap(torch.nn.Linear, "forward", lambda original: lambda module, x: original(module, x.view(x.shape)))


def asks_for_no_anomalies(torch):
    torch.autograd.set_detect_anomaly(False)


def has_one_thread_between(torch):
    torch.set_num_interop_threads(1)


def yields_its_core(torch):
    first(torch.nn.Linear, lambda module, x: os.sched_yield())


def counts_steps(torch):
    def make(original):
        def step(optimizer, *args, **kwargs):
            optimizer.planted = getattr(optimizer, "planted", 0) + 1
            return original(optimizer, *args, **kwargs)

        return step

    for kind in (torch.optim.SGD, torch.optim.AdamW):
        wrap(kind, "step", make)


def keeps_its_math(torch):
    torch.set_float32_matmul_precision("highest")


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
    repeats_batches,
    flips_labels,
    halves_the_last_batch,
    rounds_weights,
    forgets_momentum,
    drops_small_gradients,
    keeps_the_mask,
)
"""Wrong for train.py."""

WRONG_CAREFUL = (
    keeps_rows,
    keeps_crops,
    never_turns,
    ignores_epochs,
    shifts_labels,
    clips_scaled,
    never_accumulates,
    never_decays,
    keeps_the_rate,
    never_smooths,
    keeps_statistics,
    evaluates_in_training_mode,
    never_crops,
    adds_the_parts,
    clips_nothing,
)
"""Wrong for careful.py."""

WRONG_WORKERS = (keeps_workers, draws_one_seed, counts_no_epochs_in_workers)
"""Wrong for careful.py with workers."""

HARMLESS = (
    nothing,
    reads_the_clock,
    sets_to_zero,
    hooks,
    freezes_garbage,
    collects_seldom,
    switches_threads_seldom,
    names_the_process,
    warns_never,
    prints_fewer_digits,
    has_its_own_generator,
    reads_a_file,
    looks_at_memory,
    copies_an_argument,
    takes_views,
    asks_for_no_anomalies,
    has_one_thread_between,
    yields_its_core,
    counts_steps,
    keeps_its_math,
)

CHANGES = [
    Change(f"{work.__name__}_{kind}", kind, work)
    for work in (*WRONG, *WRONG_CAREFUL, *WRONG_WORKERS, *HARMLESS)
    for kind in (EXACT, CLOSE)
]
CHANGES.append(Change("half_precision_exact", EXACT, half_precision))
