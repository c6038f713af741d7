"""`sweeper watch`: any script as it is, with its card at the end."""

from __future__ import annotations

import json
import re
import sys

import pytest

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        time.sleep({slow})
        return torch.randn(20), torch.randn(1)

model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
print("loud")
for x, y in DataLoader(Rows(), batch_size=16):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep({pause})
"""


def written(tmp_path, **values):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(**({"slow": 0, "pause": 0} | values)))
    return path


@pytest.mark.slow
def test_a_slow_data_set_is_named_with_its_line(sweeper, tmp_path):
    written(tmp_path, slow=0.0005)
    done = sweeper("watch", "--epochs", "3", "--price", "3600", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "input-bound" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("Of 3 epochs ("))
    # Three epochs of 6,250 batches of 16 rows that take 0.5 ms each, at a price of 1 per second.
    assert 150 < float(re.search(r"([\d,.e+]+)\), apart from the arithmetic", line)[1].replace(",", "")) < 500
    assert "  waiting for data" in done.stdout
    assert "The end of an epoch was not seen" in done.stdout
    assert "◄ the cause  train.py:10" in done.stdout
    assert "speed as reported by torch (optimizer steps, the loader's batches)" in done.stdout
    assert "loud" not in done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.soak
def test_what_happens_between_the_steps_is_named(sweeper, tmp_path):
    written(tmp_path, pause=0.05)
    done = sweeper("watch", "--json", "--", sys.executable, "train.py")
    found = json.loads(done.stdout)
    parts = found["breakdown"]
    assert parts["host_gap_s"] == pytest.approx(0.05, rel=0.2)
    assert sum(parts.values()) == pytest.approx(found["step_ms"] / 1e3, rel=0.1)
    assert found["diagnosis"]["lines"]["rest"][0] == "train.py:21"


@pytest.mark.slow
def test_a_script_that_never_trains_says_so_and_ends_with_one(sweeper, tmp_path):
    (tmp_path / "train.py").write_text("import torch\nprint('so far')\n")
    done = sweeper("watch", "--", sys.executable, "train.py")
    assert done.returncode == 1
    assert "no_result: the script exited with status 0" in done.stdout
    assert "so far" in done.stdout
    with_json = sweeper("watch", "--json", "--", sys.executable, "train.py")
    assert (with_json.returncode, with_json.stdout) == (1, "")
    assert "no_result: " in with_json.stderr


def test_without_a_command_it_is_explained(sweeper):
    done = sweeper("watch")
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


def test_a_program_that_is_not_there_is_named(sweeper, tmp_path):
    done = sweeper("watch", "--", "no-such-program")
    assert done.returncode == 2
    assert "no-such-program" in done.stderr


def test_a_command_that_submits_is_refused(sweeper):
    done = sweeper("watch", "--", "sbatch", "job.sh")
    assert done.returncode == 2
    assert "`sbatch` starts it elsewhere" in done.stderr
