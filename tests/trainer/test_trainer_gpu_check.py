"""What would fail on a GPU or wait for one is found at its line, and nothing else is."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines import tabular
from sweeper.core.config import TrialConfig
from sweeper.core.progress import SilentProgress
from sweeper.trainer import gpu_check
from sweeper.trainer.gpu_check import Effect, GpuFinding, check
from sweeper.trainer.pipeline import Batch, Pipeline, Samples, take

CONFIG = TrialConfig(batch_size=8)
HERE = str(Path(__file__).parent)
FAILS, WAITS, UNKNOWN = Effect.FAILS, Effect.WAITS, Effect.UNKNOWN


def plain(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def pipeline_of(
    loss: Callable[[nn.Module, Batch], Tensor] = plain,
    model: nn.Module | None = None,
    gather: Callable[..., Batch] = take,
    evaluate: Callable[[nn.Module, Iterable[Batch]], dict[str, float]] | None = None,
) -> Pipeline:
    rows = {"x": torch.randn(20, 3), "y": torch.zeros(20, dtype=torch.int64)}
    samples = Samples(tensors=rows, length=20, gather=gather)
    return Pipeline(model=model or nn.Linear(3, 2), train=samples, val=samples, loss=loss, evaluate=evaluate)


def found(pipeline: Pipeline, config: TrialConfig = CONFIG) -> list[tuple[Effect, str]]:
    """The findings, each with the text of its line."""
    findings = check(pipeline, config, [HERE])
    return [(each.effect, text_of(each)) for each in findings]


def text_of(finding: GpuFinding) -> str:
    name, _, line = finding.place.rpartition(":")
    assert name == Path(__file__).name, finding
    return linecache.getline(__file__, int(line)).strip()


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 3 * x

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.full((2,), 3.0)  # planted


def plus(part: Callable[[Tensor, Tensor, Tensor], object]) -> Callable[[nn.Module, Batch], Tensor]:
    """A loss with another part, a function of inputs, scores and classes."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = part(batch["x"], model(batch["x"]), batch["y"])
        return plain(model, batch) + (value.float().mean() if isinstance(value, Tensor) else 0.0)

    return loss


@pytest.mark.parametrize(
    ("effect", "part"),
    [
        (WAITS, lambda x, s, y: s.sum().item()),
        (WAITS, lambda x, s, y: float(s.sum())),
        (WAITS, lambda x, s, y: 1 if s.sum() > 0 else 2),
        (WAITS, lambda x, s, y: x[: y.max()]),
        (WAITS, lambda x, s, y: x.tolist()),
        (WAITS, lambda x, s, y: x.cpu()),
        (WAITS, lambda x, s, y: x.detach().cpu().numpy()),
        (WAITS, lambda x, s, y: f"{s.sum():.3f}"),
        (WAITS, lambda x, s, y: str(s)),
        (WAITS, lambda x, s, y: torch.ones(3).to(x.device)),
        (WAITS, lambda x, s, y: torch.tensor([1.0, 2.0], device=x.device)),
        (WAITS, lambda x, s, y: x.new_tensor([1.0])),
        (WAITS, lambda x, s, y: x[:, [0, 2]]),
        (WAITS, lambda x, s, y: x[torch.tensor([0, 2])]),
        (WAITS, lambda x, s, y: s[s > 0]),
        (WAITS, lambda x, s, y: y.nonzero()),
        (WAITS, lambda x, s, y: torch.where(y > 0)[0]),
        (WAITS, lambda x, s, y: y.unique()),
        (WAITS, lambda x, s, y: torch.equal(y, y)),
        (WAITS, lambda x, s, y: x.repeat_interleave(y, 0)),
        (FAILS, lambda x, s, y: s * torch.ones(2)),
        (FAILS, lambda x, s, y: torch.ones(2) - s),
        (FAILS, lambda x, s, y: s @ torch.ones(2, 2)),
        (FAILS, lambda x, s, y: torch.randn(8, 3) * x),
        (FAILS, lambda x, s, y: functional.cross_entropy(s, y, weight=torch.ones(2))),
        (FAILS, lambda x, s, y: torch.ones(5)[y]),
        (FAILS, lambda x, s, y: torch.stack((s.sum(), torch.tensor(0.0)))),
        (FAILS, lambda x, s, y: torch.zeros(()).add_(s.sum())),
        (FAILS, lambda x, s, y: torch.stft(x[:, 0], 4, window=torch.ones(4), return_complex=True).abs()),
        (FAILS, lambda x, s, y: x.numpy()),
        (FAILS, lambda x, s, y: np.asarray(x)),
        (FAILS, lambda x, s, y: torch.rand(3, device=x.device, generator=torch.Generator())),
        (FAILS, lambda x, s, y: nn.utils.rnn.pack_padded_sequence(x[:, None], y + 1, batch_first=True)),
        (FAILS, lambda x, s, y: checkpoint(lambda a: a * torch.ones(2), s, use_reentrant=False)),
        (FAILS, lambda x, s, y: torch.compile(lambda a: a * torch.ones(2))(s)),
        (UNKNOWN, lambda x, s, y: s.nope),
        (UNKNOWN, lambda x, s, y: torch.geqrf(x)[0]),
    ],
)
def test_what_a_gpu_does_not_take_is_found_at_its_line(effect: Effect, part: Callable[..., object]):
    planted = linecache.getline(__file__, part.__code__.co_firstlineno).strip()
    assert found(pipeline_of(plus(part))) == [(effect, planted)]


def packed(x: Tensor, lengths: Tensor) -> Tensor:
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    layer = nn.LSTM(3, 2, batch_first=True).to(x.device)
    return layer(sequence)[0].data


def written(s: Tensor) -> Tensor:
    s = s.clone()
    s[s > 3] = 0.0
    s[0] = 1.0
    s[:, 1] += 2
    return s


@pytest.mark.parametrize(
    "part",
    [
        lambda x, s, y: s * torch.ones(2, device=x.device),
        lambda x, s, y: s * torch.tensor(2.0),
        lambda x, s, y: s.clamp(max=torch.tensor(2.0)),
        lambda x, s, y: torch.ones(3).to(x.device, non_blocking=True),
        lambda x, s, y: torch.where(s > 0, s, 0.0),
        lambda x, s, y: written(s),
        lambda x, s, y: functional.one_hot(y, 3),
        lambda x, s, y: x.repeat_interleave(y, 0, output_size=8),
        lambda x, s, y: torch.rand(3, device=x.device),
        lambda x, s, y: torch.ones(4) @ torch.ones(4),
        lambda x, s, y: torch.full((3,), 2.0).tolist(),
        lambda x, s, y: str(x.device) + str(x.shape),
    ],
)
def test_what_a_gpu_takes_is_not_found(part: Callable[..., object]):
    assert found(pipeline_of(plus(part))) == []


def test_lengths_of_packed_sequences_are_on_the_host_for_cuda_as_well():
    lengths = torch.tensor([2] * 8)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        states = packed(batch["x"][:, None].expand(-1, 2, -1), lengths)
        return plain(model, batch) + states.mean()

    assert FAILS not in [effect for effect, _ in found(pipeline_of(loss))]


def test_autocast_of_the_tensors_own_device_can_be_entered():
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(batch["x"].device.type, dtype=torch.bfloat16):
            return plain(model, batch)

    assert found(pipeline_of(loss)) == []
    with pytest.raises(RuntimeError, match="meta"):
        torch.autocast("meta", dtype=torch.bfloat16)


class Forgotten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale  # planted


def test_a_models_tensor_that_is_no_buffer():
    assert found(pipeline_of(model=Forgotten())) == [(FAILS, "return self.layer(x) * self.scale  # planted")]


def test_in_the_backward_pass():
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(Tripled.apply(model(batch["x"])), batch["y"])

    assert found(pipeline_of(loss)) == [(FAILS, "return gradient * torch.full((2,), 3.0)  # planted")]


def test_in_gathering():
    def listed(tensors: dict[str, Tensor], index: Tensor) -> Batch:
        return {name: tensor[index.tolist()] for name, tensor in tensors.items()}  # planted

    line = "return {name: tensor[index.tolist()] for name, tensor in tensors.items()}  # planted"
    assert found(pipeline_of(gather=listed)) == [(WAITS, line)]


def test_in_gathering_from_a_table_on_the_host():
    table = torch.ones(50)

    def joined(tensors: dict[str, Tensor], index: Tensor) -> Batch:
        return {**take(tensors, index), "weight": table[index]}  # planted

    line = 'return {**take(tensors, index), "weight": table[index]}  # planted'
    assert found(pipeline_of(gather=joined)) == [(FAILS, line)]


def test_what_is_read_from_a_source_is_gathered_on_the_host():
    class Source:
        def __len__(self) -> int:
            return 20

        def read(self, index: Tensor) -> Batch:
            assert not index.is_meta
            return {"x": torch.ones(len(index), 3) * float(index.sum()), "y": index % 2}

    samples = Samples.of(Source())
    whole = Pipeline(model=nn.Linear(3, 2), train=samples, val=samples, loss=plain)
    assert found(whole) == []
    bad = Pipeline(model=Forgotten(), train=samples, val=samples, loss=plain)
    assert [effect for effect, _ in found(bad)] == [FAILS]


def test_after_training_values_may_be_read_and_devices_still_not_mixed():
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = plain(model, batch)
        if not model.training:
            value.item()
            value = value + (batch["x"] * torch.ones(3)).mean()  # planted in validation
        return value

    def evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        right = sum((model(b["x"]).argmax(1) == b["y"]).sum().item() for b in batches)
        return {"share": right / len(torch.ones(3) * torch.zeros(3))}

    def mixed(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        return {"sum": sum((model(b["x"]) @ torch.ones(2)).sum().item() for b in batches)}  # planted

    assert found(pipeline_of(evaluate=evaluate)) == []
    line = 'value = value + (batch["x"] * torch.ones(3)).mean()  # planted in validation'
    assert found(pipeline_of(loss)) == [(FAILS, line)]
    line = 'return {"sum": sum((model(b["x"]) @ torch.ones(2)).sum().item() for b in batches)}  # planted'
    assert found(pipeline_of(evaluate=mixed)) == [(FAILS, line)]


def test_all_lines_are_found_at_once():
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = plain(model, batch)
        if value.isnan():  # planted 1
            raise ValueError("not a number")
        scores = model(batch["x"]) * torch.ones(2)  # planted 2
        print(f"{value:.3f}")  # planted 3
        return value + scores.mean() * value.item()  # planted 4

    planted = [line.rpartition("# ")[2] for _, line in found(pipeline_of(loss))]
    assert planted == ["planted 1", "planted 2", "planted 3", "planted 4"]


def test_a_loop_that_ends_with_a_value_ends():
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = plain(model, batch)
        while value.item() > 0.5:  # planted
            value = value / 2
        return value

    assert found(pipeline_of(loss)) == [(WAITS, "while value.item() > 0.5:  # planted")]


def test_a_pipeline_that_catches_every_error_does_not_keep_the_check():
    caught = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        for _ in range(3):
            try:
                return plain(model, batch) * batch["y"].unique().sum()  # planted
            except Exception as error:
                caught.append(error)
        return plain(model, batch)

    line = 'return plain(model, batch) * batch["y"].unique().sum()  # planted'
    assert found(pipeline_of(loss)) == [(WAITS, line)]
    assert caught == []


def test_what_follows_from_a_value_that_was_made_up_is_not_told():
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        count = batch["y"].sum().item()  # planted
        raise ValueError(f"only {count} of them")

    assert found(pipeline_of(loss)) == [(WAITS, 'count = batch["y"].sum().item()  # planted')]


def test_a_model_that_does_not_move_is_not_blamed():
    class Fixed(nn.Linear):
        def to(self, *args: object, **kwargs: object) -> Fixed:
            raise NotImplementedError("this model stays")  # planted

    (finding,) = check(pipeline_of(model=Fixed(3, 2)), CONFIG, [HERE])
    assert (finding.effect, finding.part) == (UNKNOWN, gpu_check.MODEL)
    assert "this model stays" in finding.what


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [True, False])
def test_recurrent_layers_have_their_own_shapes_and_gradients(layer: type[nn.Module], first: bool):
    seen = []

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(3, 2, 2, batch_first=first, bidirectional=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x[:, None].expand(-1, 7, -1) if first else x[None].expand(7, -1, -1)
            states, last = self.layer(x)
            seen.append(
                (states.shape, tuple(s.shape for s in (last if isinstance(last, tuple) else (last,))))
            )
            return self.head(states[:, -1] if first else states[-1])

    model = Recurrent()
    model(torch.ones(8, 3))
    (expected,) = seen
    seen.clear()
    assert found(pipeline_of(model=model)) == []
    assert seen == [expected] * len(seen)
    assert len(seen) == 2

    class OnTheHost(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            self.layer(torch.ones(8, 7, 3))  # planted
            return self.head(torch.cat((x, x[:, :1]), 1))

    assert set(found(pipeline_of(model=OnTheHost()))) == {
        (FAILS, "self.layer(torch.ones(8, 7, 3))  # planted")
    }


PLANTED = {
    "an item": ("return nn.functional.mse_loss(", "print(batch['y'].mean().item())", WAITS),
    "a constant": (
        "return nn.functional.mse_loss(",
        "batch = {**batch, 'x': batch['x'] * torch.ones(batch['x'].shape[1])}",
        FAILS,
    ),
}


@pytest.fixture
def copy_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns `tabular` with a line before another one, and that line's place."""

    def make(before: str, line: str, folder: Path = tmp_path) -> tuple[ModuleType, str]:
        text = Path(tabular.__file__).read_text(encoding="utf-8")
        assert text.count(before) == 1
        text = text.replace("from ._options", "from pipelines._options")
        changed = text.replace(before, f"{line}\n    {before}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "planted.py").write_text(changed, encoding="utf-8")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "planted", raising=False)
        number = changed[: changed.index(line)].count("\n") + 1
        return __import__("planted"), f"planted.py:{number}"

    return make


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_in_a_copy_of_a_shipped_pipeline(copy_with, tmp_path: Path, planted: str):
    before, line, effect = PLANTED[planted]
    module, place = copy_with(before, line)
    pipeline = module.build(CONFIG, module.prepare({"rows": 100}))
    (finding,) = check(pipeline, CONFIG, [str(tmp_path)])
    assert (finding.effect, finding.place) == (effect, place)


def test_planted_in_a_shipped_pipeline_that_is_installed(copy_with, tmp_path: Path, monkeypatch):
    installed = tmp_path / "site-packages/sweeper"
    monkeypatch.setattr("sweeper.core.modules._SWEEPER", installed)
    before, line, effect = PLANTED["an item"]
    module, place = copy_with(before, line, installed / "pipelines")
    pipeline = module.build(CONFIG, module.prepare({"rows": 100}))
    (finding,) = check(pipeline, CONFIG)
    assert (finding.effect, finding.place) == (effect, place)


def test_the_job_tells_what_it_found_with_the_configurations_own_loader(make_job):
    values = gpu_check.run(make_job({"loader.kind": "rows"}), SilentProgress()).values
    assert values == {"findings": []}
