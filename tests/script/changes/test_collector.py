"""Garbage is collected between steps, among new objects alone, until memory grows."""

from __future__ import annotations

import sys

import pytest
from hearing import completed

from sweeper.script.changes.change import Step
from sweeper.script.changes.collector import Collector

TRAIN = """
import gc, json, os, sys
import torch
from sweeper.script.changes import apply, collector

collector.MIN_PAUSE_SECONDS = collector.PAUSE = 0.0
collector.MAX_GROWTH, collector.MAX_GROWTH_BYTES = 0.01, 2**24
messages, during = [], []
if {setup!r}:
    exec({setup!r})
{apply}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.callbacks.append(lambda phase, info: phase == "stop" and during.append(in_step))
in_step, losses, kept = False, [], []
for step in range(60):
    in_step = True
    garbage = [[] for _ in range(3000)]
    for one in garbage:
        one.append(garbage)
    {step}
    loss = model(torch.full((3, 4), step / 60)).sum()
    optimizer.zero_grad()
    loss.backward()
    losses.append(loss.item())
    if step > 15:
        in_step = False
    optimizer.step()
child = os.fork()
if not child:
    os._exit(gc.isenabled())
print(json.dumps({{
    "messages": [message["change"] for message in messages],
    "during": during[-20:],
    "frozen": gc.get_freeze_count() > 1000,
    "enabled": gc.isenabled(),
    "worker enabled": bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])),
    "losses": losses,
}}))
"""
APPLY = 'apply(torch, "collector=frozen", messages.append)'


def trained(*, setup: str = "", apply: str = APPLY, step: str = "pass") -> dict[str, object]:
    text = TRAIN.format(setup=setup, apply=apply, step=step)
    truth: dict[str, object] = completed([sys.executable, "-c", text]).truth
    return truth


def test_garbage_is_collected_between_steps_and_the_losses_are_the_same() -> None:
    before, after = trained(apply=""), trained()
    assert after["losses"] == before["losses"]
    assert True in before["during"]  # type: ignore[operator]
    assert after["during"]
    assert True not in after["during"]  # type: ignore[operator]
    assert after["frozen"]
    assert not after["enabled"]
    assert after["messages"] == [{"name": "collector", "applied": True, "why": ""}]


def test_workers_that_are_forked_later_look_for_garbage_as_usual() -> None:
    assert trained()["worker enabled"]


def test_it_ends_where_memory_grows() -> None:
    after = trained(step="kept.append(bytearray(2**20))")
    assert after["enabled"]
    assert not after["frozen"]
    latest = after["messages"][-1]  # type: ignore[index]
    assert latest["given_up"]
    assert "memory has grown by" in latest["why"]


@pytest.mark.parametrize(
    ("setup", "step", "enabled", "applied"),
    [
        pytest.param("gc.disable()", "pass", False, False, id="turned off"),
        pytest.param("", "gc.enable()", True, True, id="turned on in each step"),
    ],
)
def test_the_script_has_the_last_word(setup: str, step: str, enabled: bool, applied: bool) -> None:
    after = trained(setup=setup, step=step)
    assert after["enabled"] is enabled
    assert [message["applied"] for message in after["messages"]] == [applied]  # type: ignore[union-attr]


def test_it_is_tried_where_looking_for_garbage_takes_a_part_of_the_time() -> None:
    change = Collector()
    assert not change.refusal("frozen", {"collector_share": 0.1})
    assert change.refusal("frozen", {"collector_share": 0.01}) == "looking for garbage takes 1.0% of its time"
    ceiling = change.ceiling("frozen", Step(seconds=1.0, collecting=0.2))
    assert ceiling is not None
    assert ceiling.ratio == pytest.approx(1.25)
