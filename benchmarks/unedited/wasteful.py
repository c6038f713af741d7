"""A training that wastes a tenth of its time, and the changes that end this.

python wasteful.py PLACE
sweeper tune --changes wasteful.py -- python wasteful.py PLACE     with the change of the place's name
"""

import os
import sys
import time

SHARE = 0.1
"""Time that is wasted, as a share of all other time that the thread computes."""


def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def copy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        bytes(100_000)


class Waste:
    """Wastes some time at each call, unless a change ends it.

    The time is measured as that of the thread: a process that rests computes nothing.

    Args:
        burn: Wastes so many seconds.
        every: Number of calls after which it does.
    """

    def __init__(self, burn, every=1):
        self._burn, self._every, self._calls = burn, every, 0
        self._before = time.thread_time()

    def __call__(self, *_):
        self._calls += 1
        if self._calls % self._every or "ENDS_WASTE" in os.environ:
            return
        self._burn(SHARE * (time.thread_time() - self._before))
        self._before = time.thread_time()


PLACES = {
    "step_spins": ("step", spin),
    "step_sleeps": ("step", time.sleep),
    "step_copies": ("step", copy),
    "tenth_step_spins": ("step", spin, 10),
    "tenth_step_sleeps": ("step", time.sleep, 10),
    "forward_spins": ("forward", spin),
    "forward_sleeps": ("forward", time.sleep),
    "gradients_spin": ("gradients", spin),
    "optimizer_spins": ("optimizer", spin),
    "optimizer_copies": ("optimizer", copy),
    "loss_spins": ("loss", spin),
    "loss_sleeps": ("loss", time.sleep),
}
"""For each name, the place, how time is wasted, and in which of its calls."""


class EndsWaste:
    """The change: every second one declares that it only rounds otherwise."""

    choices = ("on",)
    why = "wastes no time"

    def __init__(self, name, kind):
        self.name, self.kind = name, kind

    def apply(self, torch, value, report):
        os.environ["ENDS_WASTE"] = "1"
        report(True)


CHANGES = [EndsWaste(name, "close" if number % 2 else "exact") for number, name in enumerate(PLACES)]


def train(place, *waste):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    waste = Waste(*waste)

    # Threads that go to sleep while another one wastes time would cost more than a tenth.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = torch.randn(20_000, 256)
    labels = (rows[:, :128].sum(1) > 0).long()
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if place == "forward":
        model.register_forward_pre_hook(waste)
    if place == "gradients":
        model[0].weight.register_hook(waste)
    if place == "optimizer":
        optimizer.register_step_post_hook(waste)
    loader = DataLoader(TensorDataset(rows, labels), batch_size=128, shuffle=True)
    for epoch in range(1000):
        for batch, wanted in loader:
            loss = nn.functional.cross_entropy(model(batch), wanted)
            if place == "loss":
                waste()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if place == "step":
                waste()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    train(*PLACES[sys.argv[1]])
