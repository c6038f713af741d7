"""Lines for a GPU, run where there is none: what they set of TF32, and the step that they capture."""

from __future__ import annotations

import contextlib
import inspect
import json
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exports import A10, export_of
from torch.utils.data import TensorDataset

from sweeper.exports import render_export
from sweeper.exports.python_lines import YOURS
from sweeper.exports.python_step import CAPTURABLE_WARNING
from sweeper.script.changes.recurrent import NOTE

ASKED = """
import json, sys, warnings
warnings.simplefilter("error")
exec(sys.stdin.read())
cudnn = torch.backends.cudnn
before = {"conv": cudnn.conv.fp32_precision, "rnn": cudnn.rnn.fp32_precision}
with cudnn.flags(enabled=False):
    pass
print(json.dumps({
    "cudnn": cudnn.allow_tf32,
    "matmul": torch.backends.cuda.matmul.allow_tf32,
    "matmul, newer": torch.backends.cuda.matmul.fp32_precision,
    "precision": torch.get_float32_matmul_precision(),
    "conv": before["conv"], "rnn": before["rnn"],
}))
"""
"""Reads TF32 in every way there is, as torch's compiler does with max-autotune; each may raise."""


def set_of(settings: dict[str, Any]) -> dict[str, Any]:
    """What the lines before the model set, in a fresh process."""
    text = render_export(export_of(settings, device=A10), "python").partition(YOURS)[0]
    run = subprocess.run(
        [sys.executable, "-c", ASKED], input=text, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_on", [True, False])
def test_what_is_set_of_tf32_can_be_read_by_the_older_names_and_the_newer(is_on):
    found = set_of({"precision.tf32": is_on, "compile.mode": "max-autotune"})
    # Where nothing is set, the newer flags mean IEEE, too.
    kinds = {"tf32"} if is_on else {"none", "ieee"}
    assert {found.pop("conv"), found.pop("rnn"), found.pop("matmul, newer")} <= kinds
    assert found == {"cudnn": is_on, "matmul": is_on, "precision": "high" if is_on else "highest"}


def test_tf32_as_torch_has_it_is_no_line_and_no_flag():
    value = export_of({"precision.tf32": "default"}, device=A10)
    for form in ("python", "args"):
        text = render_export(value, form)
        assert "tf32" not in text
        assert "float32_matmul_precision" not in text


SIZE, WHOLE, RAGGED = 4, 6, 1
"""An epoch: so many whole batches, and one of a single sample."""


class Recorded:
    """In place of a CUDA graph: what is launched inside of its capture runs again with each replay.

    Attributes:
        seen: The batches trained on, in order, as their first values; those of a capture are not.
        modes: The error modes of the captures.
        num_eager: Batches trained on before the last of them.
    """

    def __init__(self) -> None:
        self.seen: list[list[float]] = []
        self.modes: list[str] = []
        self.streams: list[object] = []
        self.num_eager = 0
        self.in_capture = self.on_side = False
        self.static: list[Any] = []

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @contextlib.contextmanager
        def capture(graph, stream=None, capture_error_mode="global"):
            self.modes.append(capture_error_mode)
            self.streams.append(stream)
            self.num_eager = len(self.seen)
            self.in_capture = True
            yield
            self.in_capture = False

        @contextlib.contextmanager
        def on(stream):
            self.on_side = True
            yield
            self.on_side = False

        def stream() -> SimpleNamespace:
            return SimpleNamespace(wait_stream=lambda other: None)

        for name, value in {
            "Stream": stream,
            "current_stream": stream,
            "stream": on,
            "graph": capture,
            "CUDAGraph": lambda: SimpleNamespace(replay=self.replay),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def replay(self) -> None:
        self.seen += [_values(batch) for batch in self.static]

    def loss_of(self, model, batch):
        if self.in_capture:
            self.static.append(batch)
        else:
            assert self.on_side == (len(batch[0]) == SIZE), "whole batches are warmed up on the side"
            self.seen.append(_values(batch))
        return torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1])


def _values(batch: list[torch.Tensor]) -> list[float]:
    return batch[0][:, 0].tolist()


@pytest.mark.parametrize("count", [1, 2])
def test_a_captured_step_trains_on_each_batch_once_and_on_ragged_ones_as_they_are(monkeypatch, count):
    settings = {
        "compile.mode": "graph",
        # The other that is for a GPU alone copies through CUDA, which is another matter.
        "loader.kind": "resident",
        "loader.drop_last": False,
        "batch_size": SIZE,
        "accumulate_steps": count,
        "optimizer.name": "sgd",
        "optimizer.warmup_steps": 3,
        "optimizer.clip_norm": 1.0,
    }
    text = render_export(export_of(settings, device=A10), "python").replace('device("cuda")', 'device("cpu")')
    cuda = Recorded()
    cuda.patch(monkeypatch)
    num = SIZE * WHOLE * count + RAGGED
    dataset = TensorDataset(torch.arange(float(num)).unsqueeze(1), torch.zeros(num, 1))
    space = {"dataset": dataset, "model": torch.nn.Linear(1, 1), "loss_of": cuda.loss_of}
    threads = torch.get_num_threads()
    try:
        exec(compile(text.replace("EPOCHS = 1", "EPOCHS = 2"), "lines", "exec"), space)
    finally:
        torch.set_num_threads(threads)
    trained = sorted(value for batch in cuda.seen for value in batch)
    assert trained == sorted([float(i) for i in range(num)] * 2)
    assert cuda.num_eager == 3 * count
    assert cuda.modes == ["thread_local"]
    assert cuda.streams == [space["side"]]
    assert float(space["optimizer"].param_groups[0]["lr"]) == pytest.approx(1e-3)


def test_torch_says_nothing_of_the_steps_before_the_capture():
    text = render_export(export_of({"compile.mode": "graph"}, device=A10), "python")
    assert f'warnings.filterwarnings("ignore", "{CAPTURABLE_WARNING}")' in text
    assert "\nimport warnings\n" in text
    # It is torch's own text that is meant.
    assert CAPTURABLE_WARNING in inspect.getsource(torch.optim.Optimizer)
    eager = render_export(export_of({"compile.mode": "eager"}, device=A10), "python")
    assert "warnings" not in eager


@pytest.mark.parametrize(
    ("mode", "count", "held"),
    [
        ("reduce-overhead", 2, True),
        ("max-autotune", 2, True),
        ("reduce-overhead", 1, False),
        ("graph", 2, False),
    ],
)
def test_gradients_that_accumulate_over_the_compilers_graphs_stay_where_they_are(mode, count, held):
    settings = {"compile.mode": mode, "accumulate_steps": count, "optimizer.name": "sgd"}
    text = render_export(export_of(settings, device=A10), "python")
    assert ("parameter.grad = torch.zeros_like(parameter)" in text) == held
    assert f"optimizer.zero_grad(set_to_none={not held})" in text
    compile(textwrap.dedent(text), "lines", "exec")


def test_recurrent_layers_leave_bf16_as_they_did_in_the_trial():
    settings = {"precision.amp": "bf16", "compile.mode": "eager"}
    plain = render_export(export_of(settings, device=A10), "python")
    assert "in_float32" not in plain
    text = render_export(
        export_of(settings, device=A10, effective={"precision.amp": f"bf16: {NOTE}"}), "python"
    )
    begin, end = text.index("def in_float32"), text.index("def train_step")
    space: dict[str, Any] = {"torch": torch, "device": torch.device("cpu"), "model": torch.nn.GRU(3, 4)}
    exec(compile(text[begin:end], "lines", "exec"), space)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = space["model"](torch.randn(5, 2, 3).bfloat16())
        assert space["model"](torch.randn(5, 2, 3), state.bfloat16())[0].dtype == torch.float32
    assert output.dtype == torch.float32
