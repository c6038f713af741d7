"""Checks `pipelines.sign_language`: padding that changes nothing, training, and one line per mistake."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from pipelines import sign_language
from pipelines.sign_language.ctc import ctc_loss
from pipelines.sign_language.model import spectrum
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.data.order import Order
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "asl_letters" / "asl_letters.npz"
SMALL = {"clips": 60, "glosses": 8, "max_frames": 60}
IMAGES = {"clips": 10, "glosses": 4, "kind": "frames", "crop": 32, "max_frames": 24}
SLIM = {"hidden_size": 16, "num_layers": 1, "width": 8, "dropout": 0.0}


@pytest.fixture(scope="module")
def landmarks() -> Prepared:
    return sign_language.prepare(SMALL)


@pytest.fixture(scope="module")
def images() -> Prepared:
    return sign_language.prepare(IMAGES)


def pipeline_of(prepared: Prepared, data: Mapping[str, Any] | None = None, **model: Any) -> Pipeline:
    torch.manual_seed(0)
    return sign_language.build(TrialConfig(model={**SLIM, **model}, data=data or {}), prepared)


def read(samples: Samples, *index: int, length: int) -> Batch:
    return samples.read(samples.tensors, torch.tensor(index), length)


def train(pipeline: Pipeline, epochs: int, batch_size: int = 8, buckets: int = 1, lr: float = 5e-3) -> float:
    """Returns the mean loss of the last epoch."""
    samples = pipeline.train
    order = Order(samples.length, batch_size, 0, drop_last=False, lengths=samples.lengths, buckets=buckets)
    optimizer = torch.optim.AdamW(pipeline.model.parameters(), lr)
    pipeline.model.train()
    for epoch in range(epochs):
        losses = []
        for index, length in order.epoch(epoch).batches():
            loss = pipeline.loss(pipeline.model, samples.read(samples.tensors, index, length))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def validation(pipeline: Pipeline) -> list[Batch]:
    samples = pipeline.val
    order = Order(samples.length, 4, 0, drop_last=False, lengths=samples.lengths, buckets=2)
    return [samples.read(samples.tensors, index, length) for index, length in order.epoch(0).batches()]


def test_ctc_is_torchs_own_in_loss_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    seen = {"impossible": 0, "empty": 0, "repeated": 0}
    for _ in range(25):
        heads, batch, time, classes, most = (int(draw(1, high, 1)) for high in (3, 5, 12, 5, 5))
        scores = torch.randn(heads, batch, time, classes + 1, generator=generator, requires_grad=True)
        labels, counts, steps = (
            draw(1, classes + 1, batch, most),
            draw(0, most + 1, batch),
            draw(1, time + 1, batch),
        )
        ours = ctc_loss(scores.log_softmax(-1), labels, steps, counts)
        theirs = torch.stack(
            [
                torch.nn.functional.ctc_loss(head.transpose(0, 1), labels, steps, counts, zero_infinity=True)
                for head in scores.double().log_softmax(-1)
            ]
        ).mean()
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
        (gradient,) = torch.autograd.grad(ours, scores)
        (expected,) = torch.autograd.grad(theirs, scores)
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
        seen["impossible"] += int((counts > steps).sum())
        seen["empty"] += int((counts == 0).sum())
        seen["repeated"] += int((labels[:, 1:] == labels[:, :-1]).sum())
    assert min(seen.values()) > 5


@pytest.mark.parametrize("frames", [1, 2, 7, 60, 300])
def test_a_clips_spectrum_is_its_own(frames: int) -> None:
    x = torch.randn(2, 300, 3)
    lengths = torch.tensor([frames, 300])
    x[0, frames:] = 0
    found = spectrum(x, lengths)
    for clip, length in zip(range(2), (frames, 300), strict=True):
        expected = np.abs(np.fft.fft(x[clip, :length].double().numpy(), axis=0)) / length
        np.testing.assert_allclose(found[clip, :length], expected, atol=2e-6)
    assert not found[0, frames:].any()
    torch.testing.assert_close(spectrum(x[:1, :frames], lengths[:1]), found[:1, :frames], atol=2e-6, rtol=0)


@pytest.mark.parametrize("step_frames", [1, 2, 4])
def test_padding_changes_nothing(landmarks: Prepared, step_frames: int) -> None:
    pipeline = pipeline_of(landmarks, {"step_frames": step_frames}, distill=1.0)
    samples = pipeline.train
    order = samples.tensors["lengths"].argsort()
    short = [int(i) for i in order[:3]]
    longest = int(samples.tensors["lengths"][short].max())
    tight, loose = (read(samples, *short, length=length) for length in (longest, longest + 37))
    train(pipeline, 1)  # batch statistics are then not those a model begins with
    model = pipeline.model.eval()
    with torch.no_grad():
        a, steps = model(tight["x"], tight["lengths"])
        b, _ = model(loose["x"], loose["lengths"])
        alone, _ = model(*(read(samples, short[0], length=longest + 5)[name] for name in ("x", "lengths")))
    assert steps.tolist() == [int(n) // step_frames for n in tight["lengths"]]
    for clip, num_steps in enumerate(steps.tolist()):
        torch.testing.assert_close(a[:, clip, :num_steps], b[:, clip, :num_steps], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(a[:, 0, : steps[0]], alone[:, 0, : steps[0]], atol=1e-4, rtol=1e-4)
    # Nor in training: not the loss, not what the batch statistics become.
    model.train()
    before = [buffer.clone() for buffer in model.buffers()]
    with torch.no_grad():
        losses, after = [], []
        for batch in (tight, loose):
            for buffer, was in zip(model.buffers(), before, strict=True):
                buffer.copy_(was)
            losses.append(pipeline.loss(model, batch))
            after.append([buffer.clone() for buffer in model.buffers()])
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)
    for x, y in zip(*after, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)
    assert any((x != y).any() for x, y in zip(before, after[0], strict=True))


def test_padding_changes_nothing_of_images(images: Prepared) -> None:
    pipeline = pipeline_of(images, width=4)
    first = int(pipeline.train.tensors["lengths"].argmin())
    length = int(pipeline.train.tensors["lengths"][first])
    tight, loose = (read(pipeline.train, first, length=n) for n in (length, length + 9))
    with torch.no_grad():
        pipeline.model.train()(tight["x"], tight["lengths"])
        model = pipeline.model.eval()
        a, steps = model(tight["x"], tight["lengths"])
        b, _ = model(loose["x"], loose["lengths"])
    torch.testing.assert_close(a, b[:, :, : int(steps[0])], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["landmarks", "images"])
def test_row_equals_gather(kind: str, request: pytest.FixtureRequest) -> None:
    pipeline = pipeline_of(request.getfixturevalue(kind))
    for samples in (pipeline.train, pipeline.val):
        assert samples.row is not None
        assert samples.lengths is not None
        length = int(samples.lengths.max())
        index = range(samples.length)
        rows = default_collate([samples.row(i, length=length) for i in index])
        batch = read(samples, *index, length=length)
        assert batch.keys() == rows.keys()
        for name, value in batch.items():
            assert torch.equal(rows[name], value)
            assert rows[name].dtype == value.dtype
        assert batch["x"].dtype == (torch.uint8 if kind == "images" else torch.float16)


class Recorded(TorchDispatchMode):
    """Writes down what is called, with the shapes it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        shapes = [tuple(each.shape) for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
        self.calls.append((func.overloadpacket.__name__, shapes))
        return given


@pytest.mark.parametrize("kind", ["landmarks", "images"])
def test_a_step_asks_the_host_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """What a CUDA graph needs: no number is read back, and no shape depends on what the clips say."""
    pipeline = pipeline_of(request.getfixturevalue(kind), distill=1.0, width=4)
    length = int(pipeline.train.tensors["lengths"].max())
    steps = []
    for index in ([0, 1], [2, 3]):
        with Recorded() as recorded:
            batch = read(pipeline.train, *index, length=length)
            pipeline.loss(pipeline.model, batch).backward()
        steps.append(recorded.calls)
        pipeline.model.zero_grad()
    assert steps[0] == steps[1]
    names = {name for name, _ in steps[0]}
    assert "scatter_add_" in names
    asking = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "_to_cpu"}
    assert not names & asking


@pytest.mark.parametrize("step_frames", [1, 2, 4])
@pytest.mark.parametrize("kind", ["landmarks", "images"])
def test_a_batch_of_one_trains(kind: str, step_frames: int, request: pytest.FixtureRequest) -> None:
    prepared = request.getfixturevalue(kind)
    pipeline = pipeline_of(prepared, {"step_frames": step_frames}, distill=1.0, width=4)
    batch = read(pipeline.train, 0, length=int(pipeline.train.tensors["lengths"][0]))
    loss = pipeline.loss(pipeline.model, batch)
    loss.backward()
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    for name, parameter in pipeline.model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_the_loss_is_float32_under_autocast(landmarks: Prepared, in_bf16: Any) -> None:
    pipeline = pipeline_of(landmarks)
    batch = read(pipeline.train, 0, 1, 2, length=60)
    loss = in_bf16(lambda: pipeline.loss(pipeline.model, batch))
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, pipeline.loss(pipeline.model, batch), rtol=0.05, atol=0.0)


def test_distillation_adds_to_training_alone(landmarks: Prepared) -> None:
    pipeline = pipeline_of(landmarks, distill=2.0)
    batch = read(pipeline.train, 0, 1, 2, length=60)
    plain = sign_language.loss(pipeline.model, batch)
    assert pipeline.loss(pipeline.model, batch) > plain + 1e-3
    pipeline.model.eval()
    assert pipeline.loss(pipeline.model, batch) == sign_language.loss(pipeline.model, batch)


@pytest.mark.slow
def test_made_up_clips_are_learnt_and_the_seed_decides(landmarks: Prepared) -> None:
    losses = []
    for _ in range(2):
        pipeline = pipeline_of(landmarks)
        losses.append(train(pipeline, 1, buckets=2))
    assert losses[0] == losses[1]
    assert all(
        np.array_equal(array, landmarks.arrays[name])
        for name, array in sign_language.prepare(SMALL).arrays.items()
    )
    other = sign_language.prepare({**SMALL, "seed": 1})
    assert not np.array_equal(other.arrays["train_frames"][:20], landmarks.arrays["train_frames"][:20])
    train(pipeline, 12, buckets=2, lr=1e-2)
    batches = validation(pipeline)
    model = pipeline.model.eval()
    assert pipeline.evaluate is not None
    with torch.no_grad():
        told = pipeline.evaluate(model, batches)
        val_loss = np.mean([pipeline.loss(model, batch).item() for batch in batches])
    assert pipeline.constant_loss is not None
    assert val_loss < 0.8 * pipeline.constant_loss
    assert 0 <= told["error_rate"] < 0.8
    assert landmarks.synthetic
    assert "made up" in landmarks.notes[0]


@pytest.mark.parametrize("step_frames", [1, 2, 4])
def test_the_constant_loss_is_that_of_a_constant_prediction(landmarks: Prepared, step_frames: int) -> None:
    pipeline = pipeline_of(landmarks, {"step_frames": step_frames})
    train, val = (part.tensors for part in (pipeline.train, pipeline.val))
    often = torch.bincount(train["labels"].flatten(), minlength=9)[1:] + 1e-3
    steps = val["lengths"] // step_frames
    losses = []
    for blank in torch.arange(0.01, 1.0, 0.01):
        same = torch.cat((blank[None], (1 - blank) * often / often.sum())).log()
        scores = same.expand(int(steps.max()), len(steps), -1)
        losses.append(torch.nn.functional.ctc_loss(scores, val["labels"], steps, val["counts"]).item())
    assert pipeline.constant_loss == pytest.approx(min(losses), rel=0.02)
    assert pipeline.constant_loss >= min(losses) - 1e-4


def test_prepared_data_may_be_memory_mapped(tmp_path: Path, landmarks: Prepared) -> None:
    mapped = {}
    for name, array in landmarks.arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="c")
    frames = pipeline_of(Prepared(arrays=mapped, meta=landmarks.meta)).train.tensors["frames"]
    assert frames.data_ptr() == mapped["train_frames"].ctypes.data


def test_what_is_offered_to_search_can_be_built(landmarks: Prepared) -> None:
    for name, choices in sign_language.SPACE.items():
        section, key = name.split(".")
        assert (sign_language.MODEL if section == "model" else sign_language.DATA)[key] in choices
        for value in choices:
            pipeline_of(landmarks, **{section: {key: value}} if section == "data" else {key: value})


def test_mistaken_options_are_one_line_each(tmp_path: Path, landmarks: Prepared) -> None:
    for data, words in [
        ({"source": "phoenix"}, "`data.source` must be one of synthetic"),
        ({"split": "dev"}, "`data.split` must be one of auto"),
        ({"kind": "video"}, "`data.kind` must be one of landmarks, frames"),
        ({"step_frames": 3}, "`data.step_frames` must be 1, 2 or 4"),
        ({"clip": 10}, "Did you mean `clips`"),
        ({"clips": "many"}, "type int"),
        ({"max_frames": 4, "clips": 20}, "needs a clip to use for train, but got none"),
        ({"path": str(tmp_path)}, "must be a folder with label/ and video/"),
        ({"path": str(tmp_path / "none.npz")}, "must be a folder with label/ and video/"),
    ]:
        with pytest.raises(UserError) as caught:
            sign_language.prepare(data)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    coarse = Prepared(
        arrays=landmarks.arrays,
        meta={**landmarks.meta, "data": {**landmarks.meta["data"], "step_frames": 2}},
    )
    for prepared, config, words in [
        (landmarks, TrialConfig(data={"clips": 20}), "`data.clips` is fixed when the data is prepared (60)"),
        (landmarks, TrialConfig(data={"step_frames": 3}), "must be 1, 2 or 4"),
        (coarse, TrialConfig(data={"step_frames": 4}), "at most the sweep's 2"),
        (landmarks, TrialConfig(model={"hidden": 8}), "Did you mean `hidden_size`"),
        (landmarks, TrialConfig(model={"hidden_size": 1}), "`model.hidden_size >= 2`"),
        (landmarks, TrialConfig(model={"num_layers": 0}), "`model.num_layers >= 1`"),
        (landmarks, TrialConfig(model={"distill": "yes"}), "type float"),
        (landmarks, TrialConfig(model={"dropout": 1}), "`model.dropout < 1`"),
    ]:
        with pytest.raises(UserError) as caught:
            sign_language.build(config, prepared)
        assert words in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/asl_letters is not here")
def test_letters_of_real_hands_are_read() -> None:
    prepared = sign_language.prepare(
        {"path": str(REAL.resolve()), "recorder": 0, "step_frames": 2, "clips": 1000}
    )
    torch.manual_seed(0)
    pipeline = sign_language.build(TrialConfig(model={"hidden_size": 32, "num_layers": 1}), prepared)
    train(pipeline, 4, batch_size=16, buckets=4)
    assert pipeline.evaluate is not None
    with torch.no_grad():
        told = pipeline.evaluate(pipeline.model.eval(), validation(pipeline))
    assert told["error_rate"] < 0.4
