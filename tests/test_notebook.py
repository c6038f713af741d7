"""A notebook watches, tunes, shows and exports, each in a cell; its stop button leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = """\
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        row = torch.tensor([float(index % 7 + place) for place in range(200)])
        return row[:30] / 200, row[:1] / 200


model = torch.nn.Linear(30, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(1000):
    for x, y in DataLoader(Rows(), batch_size=32, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
DOCS = Path(__file__).parent.parent / "docs" / "api.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch):
    """Returns a notebook with some cells, in a folder with a script."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    formats = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    (tmp_path / "train.py").write_text(SCRIPT)

    def made(cells: list[str]):
        kernel = {"name": "python3", "display_name": "Python", "language": "python"}
        cells = [formats.v4.new_code_cell(source) for source in cells]
        return formats.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})

    return made


def texts(cell) -> str:
    """Returns all that a cell shows, as text."""
    shown = []
    for output in cell.outputs:
        shown.append(output.get("text", "") + "".join(output.get("data", {}).values()))
    return "\n".join(shown)


@pytest.mark.soak
@pytest.mark.alone
def test_each_step_is_one_cell_as_in_the_docs(notebook, tmp_path):
    executors = pytest.importorskip("nbconvert.preprocessors")
    cells = [
        example.replace("minutes=5", "minutes=1") for example in EXAMPLES if "sweeper.run" not in example
    ]
    executor = executors.ExecutePreprocessor(timeout=600)
    executed, _ = executor.preprocess(
        notebook([*cells, "tuned.frame()"]), {"metadata": {"path": str(tmp_path)}}
    )
    watched, tuned, exported, confirmed, frame = (texts(cell) for cell in executed.cells)
    assert "input-bound" in watched
    assert "<table" in watched
    assert "times in 1 minute, fewer if it is slow to start; the second start" in tuned
    assert "confirmed" in tuned
    assert "gathered" in frame
    assert "loader: gathered" in exported
    assert "as fast as your baseline today" in confirmed


@pytest.mark.slow
def test_the_stop_button_leaves_nothing_running(notebook, tmp_path):
    clients = pytest.importorskip("nbclient")
    made = notebook(["import sweeper", "sweeper.tune('python train.py', minutes=1)"])
    place = {"metadata": {"path": str(tmp_path)}}
    client = clients.NotebookClient(made, timeout=200, allow_errors=True, resources=place)

    def press() -> None:
        while not running("train.py"):
            time.sleep(0.2)
        # It may still be starting.
        time.sleep(1.0)
        # As a server of notebooks does.
        (kernel,) = running("ipykernel_launcher")
        os.killpg(os.getpgid(kernel), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    executed = client.execute()
    errors = [output.ename for output in executed.cells[1].outputs if output.output_type == "error"]
    assert errors == ["KeyboardInterrupt"]
    assert running("train.py") == []


def running(name: str) -> list[int]:
    """Returns the processes below this one that have a word in their command."""
    pids = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            pids += [child.pid] * (name in child.cmdline())
    return pids
