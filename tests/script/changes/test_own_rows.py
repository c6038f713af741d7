"""What the training process reads in place of persistent workers, when the check itself cannot be made."""

from __future__ import annotations

import os
import sys

from hearing import completed

# In a process of its own: the witness is forked from it, and other tests leave threads behind.
SCRIPT = """
import json, torch
from torch.utils.data import DataLoader, TensorDataset
from sweeper.script.changes.rows.own_rows import OwnRows

with torch.inference_mode():
    # It does not count its changes.
    rows = torch.arange(40.0)
loader = DataLoader(TensorDataset(rows), batch_size=8, num_workers=1, persistent_workers=True)
said = []
own_rows = OwnRows(torch, loader, lambda is_applied, why="", **_: said.append(why))
first = own_rows.fetch([0, 1])
own_rows.begin(loader)
own_rows.fetch([0, 1])
own_rows.end(loader)
before = [own_rows.are_changed, list(said)]
own_rows._witness._connection.close()
own_rows.end(loader)
is_equal = torch.equal(own_rows.fetch([0, 1])[0], first[0])
print(json.dumps([before, [own_rows.are_changed, said], is_equal]))
"""


def test_a_witness_that_died_is_said_and_the_training_goes_on():
    done = completed([sys.executable, "-c", SCRIPT], {"PYTHONPATH": os.getcwd()})
    assert done.truth == [[False, []], [True, ["the process that read its rows died"]], True]
