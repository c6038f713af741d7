"""What changes are named by, and the fused optimizer."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from hearing import completed, run

from sweeper.script.changes import CHANGES_VARIABLE, parse_changes
from sweeper.script.changes.optimizer import _count_on_host

FUSED = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
def step(optimizer):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
def forms(optimizer):
    return [group.get("fused") for group in optimizer.param_groups]

plain = torch.optim.Adam(each for each in model.parameters())
step(plain)
saved = plain.state_dict()
print(forms(plain), [group["fused"] for group in saved["param_groups"]])
plain.load_state_dict(saved)
step(plain)
print(forms(plain), torch.optim.SGD(model.parameters(), lr=0.1, foreach=True).defaults.get("fused"))
print(forms(torch.optim.RMSprop(model.parameters())))
try:
    torch.optim.Adam([])
except ValueError as error:
    print(error)
class Own(torch.optim.Adam):
    pass
print(forms(Own(model.parameters())))
"""


UNFREEZING = """
import json
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(5):
    model[0].requires_grad_(step > 1)
    model(torch.ones(5, 3)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(optimizer.param_groups[0]["fused"])
print(json.dumps(torch.cat([each.flatten() for each in model.parameters()]).tolist()))
"""


def test_own_values_change_nothing():
    assert parse_changes("loader=original  optimizer=fused") == {"optimizer": "fused"}
    assert parse_changes("") == {}


@pytest.mark.parametrize(
    "text", ["loader", "loader=", "loader=fast", "loafer=gathered", "=", "optimizer=gathered"]
)
def test_an_unknown_change_is_refused_with_the_known_ones(text):
    with pytest.raises(ValueError, match=r"known changes.*loader=gathered") as caught:
        parse_changes(text)
    assert repr(text) in str(caught.value)


def test_an_optimizer_is_fused_and_its_checkpoints_are_not():
    found = run([sys.executable, "-c", FUSED], {CHANGES_VARIABLE: "optimizer=fused"})
    bare = completed([sys.executable, "-c", FUSED])
    assert found.status == 0, found.errors
    assert found.output.splitlines() == [
        "[True] [None]",
        "[True] None",
        "[None]",
        "optimizer got an empty parameter list",
        "[None]",
    ]
    assert bare.output.splitlines()[3] == found.output.splitlines()[3]
    changes = [each["change"] for each in found.messages if "change" in each]
    assert changes[0] == {"name": "optimizer", "applied": True, "why": ""}
    assert changes[1] == {"name": "optimizer", "applied": False, "why": "the script has chosen `foreach`"}


def test_layers_may_be_unfrozen_under_a_fused_optimizer():
    found = run([sys.executable, "-c", UNFREEZING], {CHANGES_VARIABLE: "optimizer=fused"})
    assert found.status == 0, found.errors
    bare = completed([sys.executable, "-c", UNFREEZING])
    (form, parameters), (own_form, own) = found.output.splitlines(), bare.output.splitlines()
    assert (form, own_form) == ("True", "None")
    assert json.loads(parameters) == pytest.approx(json.loads(own), rel=1e-5, abs=1e-6)


def test_an_unknown_change_is_reported_and_the_script_runs():
    script = "import torch; print(torch.ones(1).item())"
    found = run([sys.executable, "-c", script], {CHANGES_VARIABLE: "loader=fast"})
    assert (found.status, found.output) == (0, "1.0\n")
    assert any("loader=fast" in each.get("failed", "") for each in found.messages)


def test_counts_of_steps_are_saved_on_the_host():
    """Unfused optimizers read them there."""
    count = SimpleNamespace(is_cuda=True, cpu=lambda: 7)
    assert _count_on_host({"step": count, "exp_avg": 1}) == {"step": 7, "exp_avg": 1}
    here = {"step": torch.tensor(7.0)}
    assert _count_on_host(here) is here
