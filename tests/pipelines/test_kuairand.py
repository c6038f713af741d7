"""Checks `pipelines.kuairand`: one model in two forms, what it learns, the policies, one line per mistake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from pipelines import kuairand
from pipelines.kuairand import model as pretrain
from pipelines.kuairand.made_up import MadeUp
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

SMALL = {"users": 30, "videos": 400, "rows": 4000}
PHASES = ("pretrain", "simulate")


def load(**data: Any) -> Prepared:
    return kuairand.prepare({**SMALL, **data})


@pytest.fixture(scope="module", params=PHASES)
def prepared(request: pytest.FixtureRequest) -> Prepared:
    return load(phase=request.param)


@pytest.fixture(scope="module")
def rows() -> Prepared:
    return load()


def pipeline_of(prepared: Prepared, seed: int = 0, **model: Any) -> Pipeline:
    torch.manual_seed(seed)
    return kuairand.build(TrialConfig(model={"hidden_size": 16, **model}), prepared)


def batch_of(samples: Samples, *index: int) -> Batch:
    chosen = torch.tensor(index) if index else torch.arange(samples.length)
    return samples.gather(samples.tensors, chosen)


def collated(samples: Samples, *index: int) -> Batch:
    assert samples.row is not None
    batch: Batch = default_collate([samples.row(i) for i in index or range(samples.length)])
    return batch


def train(pipeline: Pipeline, steps: int, batch_size: int, lr: float) -> float:
    optimizer = torch.optim.Adam(pipeline.model.parameters(), lr, fused=True)
    order = torch.cat([torch.randperm(pipeline.train.length) for _ in range(9)])
    for index in order.split(batch_size)[:steps]:
        loss = pipeline.loss(pipeline.model, pipeline.train.gather(pipeline.train.tensors, index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pipeline.model.eval()
    with torch.no_grad():
        return float(pipeline.loss(pipeline.model, batch_of(pipeline.val)))


def test_made_up_logs_are_reproducible_and_of_the_real_one_s_shape() -> None:
    first, second, other = load(), load(), load(seed=1)
    assert all(np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays)
    assert not np.array_equal(first.arrays["train_click"], other.arrays["train_click"])
    assert first.synthetic
    assert "made up" in first.notes[0]
    assert len(first.arrays["train_user"]) == 3600
    assert first.arrays["train_click"].dtype == np.uint8
    log = MadeUp(200, 20_000, 100_000, 0).log
    assert log.click.mean() == pytest.approx(0.38, abs=0.001)
    assert np.median(log.play_ms) == pytest.approx(2885, rel=0.1)
    assert log.play_ms.mean() == pytest.approx(14_760, rel=0.3)


def test_a_row_is_what_gather_gives(prepared: Prepared) -> None:
    pipeline = pipeline_of(prepared)
    numeric = sum(prepared.arrays[f"{kind}_numeric"].shape[1] for kind in ("user", "video"))
    for samples in (pipeline.train, pipeline.val):
        dense, batch = collated(samples), batch_of(samples)
        one_hot = nn.functional.one_hot(batch["codes"].long(), prepared.meta["num_codes"]).sum(dim=-2)
        assert one_hot.sum(dim=-1).eq(3).all()
        assert torch.equal(dense["x"], torch.cat((batch["x"], one_hot.float()), dim=-1))
        assert dense["x"].shape[-1] == numeric + prepared.meta["num_codes"]
        for name in ("click", "play_time"):
            assert torch.equal(dense[name], batch[name])
            assert dense[name].dtype == batch[name].dtype


def test_a_row_of_an_embedding_is_what_gather_gives(prepared: Prepared) -> None:
    samples = pipeline_of(prepared, encoding="embedding").val
    plain, batch = collated(samples), batch_of(samples)
    assert plain.keys() == batch.keys()
    for name, value in batch.items():
        assert torch.equal(plain[name], value)
        assert plain[name].dtype == value.dtype


def test_looking_up_is_the_product_with_one_hot(prepared: Prepared) -> None:
    pipeline = pipeline_of(prepared)
    index = range(50)
    gradients = []
    for batch in (batch_of(pipeline.train, *index), collated(pipeline.train, *index)):
        torch.manual_seed(1)  # the same units are left out
        pipeline.model.zero_grad()
        loss = pipeline.loss(pipeline.model, batch)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in pipeline.model.parameters())])  # type: ignore[union-attr]
    for looked_up, product in zip(*gradients, strict=True):
        torch.testing.assert_close(looked_up, product, rtol=1e-4, atol=1e-6)
    assert gradients[0][0] > 0


def test_the_first_layer_begins_as_one_xavier_matrix() -> None:
    torch.manual_seed(0)
    layer = pretrain.OneHotLinear(17, 1200, 128)
    bound = (6 / (1217 + 128)) ** 0.5
    for weight in (layer.numeric.weight.detach(), layer.table.detach()):
        assert weight.abs().max() == pytest.approx(bound, rel=0.01)
        assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_the_networks_have_the_guide_s_widths(rows: Prepared) -> None:
    model = kuairand.build(TrialConfig(), rows).model
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.ndim == 2}
    inputs = rows.meta["num_codes"]
    for label, widths in (("click", (128, 64, 32, 16)), ("play_time", (256, 128, 64, 32))):
        found = [shape for name, shape in shapes.items() if name.startswith(f"labels.{label}.")]
        between = [(b, a) for a, b in zip(widths, (*widths[1:], 1), strict=True)]
        assert found == [(inputs, widths[0]), (widths[0], 17), *between]
    recommender = model.eval()
    samples = kuairand.build(TrialConfig(), rows).val
    batch = batch_of(samples)
    for label, drop in (("click", 0.2), ("play_time", 0.3)):
        mlp = recommender.get_submodule(f"labels.{label}")
        assert mlp.dropout == drop
        weights = dict(mlp.named_parameters())
        x = collated(samples)["x"][:, 17:] @ weights["first.table"]
        x = x + batch["x"] @ weights["first.numeric.weight"].T + weights["first.numeric.bias"]
        for name in ("layers.0", "layers.1", "layers.2", "head"):
            x = x.relu() @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        torch.testing.assert_close(recommender(batch["x"], batch["codes"])[label], x[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["onehot", "embedding"])
@pytest.mark.parametrize("labels", ["both", "click", "play_time"])
def test_it_learns_what_the_features_tell(labels: str, encoding: str) -> None:
    prepared = load(rows=40_000, videos=1000)
    pipeline = pipeline_of(
        prepared, labels=labels, encoding=encoding, click_dropout=0.0, play_time_dropout=0.0
    )
    assert pipeline.constant_loss is not None
    assert pipeline.best_loss is not None
    assert pipeline.best_loss < 0.85 * pipeline.constant_loss
    reached = train(pipeline, 300, 256, 3e-3)
    way = (pipeline.constant_loss - reached) / (pipeline.constant_loss - pipeline.best_loss)
    assert 0.6 < way < 1.0
    assert pipeline.evaluate is not None
    with torch.no_grad():
        told = pipeline.evaluate(pipeline.model, [batch_of(pipeline.val)])
    if labels != "play_time":
        assert told["click_accuracy"] > 0.69
        assert told["click_auc"] > 0.76
    assert ("play_mae_seconds" in told) == (labels != "click")


def test_constants_are_the_best_of_the_training_part(rows: Prepared) -> None:
    pipeline = pipeline_of(rows)
    train_part, val = batch_of(pipeline.train), batch_of(pipeline.val)
    rate, median = train_part["click"].mean(), train_part["play_time"].median()
    click = nn.functional.binary_cross_entropy(rate.expand(len(val["click"])), val["click"])
    play = (val["play_time"] - median).abs().mean()
    assert pipeline.constant_loss == pytest.approx(float(click + play), rel=1e-3)
    assert pipeline_of(rows, labels="click").constant_loss == pytest.approx(float(click), rel=1e-4)


@pytest.mark.parametrize("amp", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", [batch_of, collated])
def test_a_batch_of_one_and_plays_of_nothing_stay_finite(
    prepared: Prepared, form: Any, amp: torch.dtype
) -> None:
    pipeline = pipeline_of(prepared)
    batch = form(pipeline.train, 3)
    batch["play_time"] = torch.zeros_like(batch["play_time"])
    with torch.autocast("cpu", dtype=amp, enabled=amp != torch.float32):
        loss = pipeline.loss(pipeline.model, batch)
    loss.backward()
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    for parameter in pipeline.model.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.slow
def test_a_step_can_be_captured(prepared: Prepared) -> None:
    # What needs a number from the device, or has a shape that depends on one, breaks the graph.
    pipeline = pipeline_of(prepared, click_dropout=0.0, play_time_dropout=0.0)

    def step(tensors: Mapping[str, Tensor], index: Tensor) -> Tensor:
        return pipeline.loss(pipeline.model, pipeline.train.gather(tensors, index))

    index = torch.arange(8)
    captured = torch.compile(step, backend="aot_eager", fullgraph=True)
    tensors = dict(pipeline.train.tensors)
    torch.testing.assert_close(captured(tensors, index), step(tensors, index))


def test_training_is_the_same_from_the_same_seed(prepared: Prepared) -> None:
    first, second, other = (train(pipeline_of(prepared, seed), 5, 64, 1e-3) for seed in (3, 3, 4))
    assert first == second
    assert first != other
    assert np.isfinite(first)


def test_a_made_up_log_has_no_gaps_once_it_is_prepared(prepared: Prepared) -> None:
    for name, array in prepared.arrays.items():
        assert np.isfinite(array).all(), name
    train_users = np.unique(prepared.arrays["train_user"])
    known = prepared.arrays["user_numeric"][train_users]
    np.testing.assert_allclose(known.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(known.std(axis=0), 1, atol=1e-5)


def fixed(**predicted: Tensor) -> nn.Module:
    """Returns a model which predicts what it is told, batch after batch of 2."""

    class Fixed(nn.Module):
        at = 0

        def forward(self, x: Tensor, codes: Tensor | None) -> dict[str, Tensor]:
            self.at += len(x)
            return {name: value[self.at - len(x) : self.at] for name, value in predicted.items()}

    return Fixed()


def test_what_evaluate_tells_is_exact() -> None:
    logit = torch.tensor([2.0, -1.0, 0.5, 0.5, -3.0])
    clicked = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    played, predicted = torch.tensor([0.0, 10.0, 3.0, 1.0, 2.0]), torch.tensor([-1.0, 2.0, 1.0, 1.0, 1.0])

    def batches() -> Iterator[Batch]:
        for at in (slice(2), slice(2, 4), slice(4, None)):
            yield {"x": logit[at, None], "click": clicked[at], "play_time": played[at].log1p()}

    told = pretrain.evaluate(fixed(click=logit, play_time=predicted), batches())
    assert told["click_accuracy"] == pytest.approx(3 / 5)
    # Of the pairs (clicked, not): 2 > .5, 2 > -3, -1 < .5, -1 > -3, .5 = .5, .5 > -3.
    assert told["click_auc"] == pytest.approx(4.5 / 6)
    seconds = predicted.clamp(min=0).expm1()
    assert told["play_mae_seconds"] == pytest.approx(float((seconds - played).abs().mean()), rel=1e-5)
    clicked[:] = 1.0
    assert pretrain.evaluate(fixed(click=logit), batches()) == {"click_accuracy": pytest.approx(3 / 5)}


def test_a_simulated_sample_is_of_one_user_and_takes_each_row_once(rows: Prepared) -> None:
    prepared = load(phase="simulate", candidates=7)
    for part in ("train", "val"):
        groups = {name: prepared.arrays[f"{part}_{name}"] for name in ("user", "video", "play_time")}
        plain = {name: rows.arrays[f"{part}_{name}"] for name in groups}
        assert groups["video"].shape == (len(groups["user"]), 7)
        assert groups["user"].shape == (np.bincount(plain["user"]) // 7).sum()
        # Play times tell rows apart: each is taken at most once, with its own user and video.
        left = list(zip(plain["user"], plain["video"], plain["play_time"], strict=True))
        counts = dict.fromkeys(left, 0)
        for row in left:
            counts[row] += 1
        for user, videos, plays in zip(groups["user"], groups["video"], groups["play_time"], strict=True):
            for video, play in zip(videos, plays, strict=True):
                counts[user, video, play] -= 1
        assert min(counts.values()) == 0
        left_out = len(plain["user"]) - groups["video"].size
        assert any(note.startswith(f"{left_out} of {len(plain['user'])} rows") for note in prepared.notes)


def test_arms_pick_the_highest_score_and_are_paid_what_was_logged() -> None:
    prepared = load(phase="simulate")
    weights = {
        "treatment_click": 0.0,
        "treatment_play_time": 1.0,
        "control_click": 1.0,
        "control_play_time": 0.0,
    }
    pipeline = pipeline_of(prepared, **weights)
    assert pipeline.constant_loss is None
    model = pipeline.model.eval()
    batches = [batch_of(pipeline.val, *range(20)), batch_of(pipeline.val, *range(20, pipeline.val.length))]
    assert pipeline.evaluate is not None
    with torch.no_grad():
        told = pipeline.evaluate(model, batches)
        loss = float(pipeline.loss(model, batches[0]))
    paid: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    for number, batch in enumerate(batches):
        for user in range(len(batch["x"])):
            for arm, label in (("treatment", "play_time"), ("control", "click")):
                recommender = model.get_submodule(f"arms.{arm}")
                with torch.no_grad():
                    predicted = recommender(batch["x"][user], batch["codes"][user])
                best = max(range(10), key=lambda i: predicted[label][i])
                paid.setdefault(f"{arm}_clicks", []).append(float(batch["click"][user, best]))
                paid.setdefault(f"{arm}_seconds", []).append(float(batch["play_time"][user, best].expm1()))
                if number == 0:
                    logit, click = predicted["click"][best], batch["click"][user, best]
                    entropy = nn.functional.binary_cross_entropy_with_logits(logit, click)
                    error = (predicted["play_time"][best] - batch["play_time"][user, best]).abs()
                    losses.setdefault(arm, []).append(float(entropy + error))
    expected = {name: float(np.mean(values)) for name, values in paid.items()}
    for name in ("clicks", "seconds"):
        expected[f"gte_{name}"] = expected[f"treatment_{name}"] - expected[f"control_{name}"]
    assert told == pytest.approx(expected, rel=1e-4)
    assert loss == pytest.approx(sum(float(np.mean(values)) for values in losses.values()), rel=1e-4)


@pytest.mark.slow
def test_policies_get_better_at_what_they_are_weighed_by() -> None:
    prepared = load(phase="simulate", rows=60_000, videos=1000)
    weights = {
        "treatment_click": 0.0,
        "treatment_play_time": 1.0,
        "control_click": 1.0,
        "control_play_time": 0.0,
    }
    pipeline = pipeline_of(prepared, **weights)
    train(pipeline, 250, 128, 3e-3)
    assert pipeline.evaluate is not None
    with torch.no_grad():
        told = pipeline.evaluate(pipeline.model, [batch_of(pipeline.val)])
    by_chance = float(batch_of(pipeline.val)["click"].mean())
    assert told["control_clicks"] > by_chance + 0.2
    assert told["gte_clicks"] < 0


def test_mistakes_are_one_line_each(rows: Prepared) -> None:
    bad_data: list[tuple[dict[str, Any], str]] = [
        ({"logs": "randm"}, "Did you mean `random`"),
        ({"phase": "simulation"}, "Did you mean `simulate`"),
        ({"source": "web"}, "data.source"),
        ({"val_share": 0.0}, "`0 < data.val_share < 1`"),
        ({"val_share": 1.0}, "`0 < data.val_share < 1`"),
        ({"val_samples": 0}, "`data.val_samples >= 1`"),
        ({"rows": 10}, "at least 20 rows"),
        ({"phase": "simulate", "candidates": 3000}, "`data.candidates` must be at most"),
        ({"phase": "simulate", "candidates": 1}, "`data.candidates >= 2`"),
    ]
    for data, words in bad_data:
        with pytest.raises(UserError) as caught:
            load(**data)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    bad_config: list[tuple[TrialConfig, str]] = [
        (TrialConfig(data={"phase": "simulate"}), "`data.phase` is fixed when the data is prepared"),
        (TrialConfig(model={"encoding": "one_hot"}), "Did you mean `onehot`"),
        (TrialConfig(model={"labels": "clicks"}), "Did you mean `click`"),
        (TrialConfig(model={"hidden_size": 4}), "`model.hidden_size >= 8`"),
        (TrialConfig(model={"click_dropout": 1.0}), "`model.click_dropout < 1`"),
        (TrialConfig(model={"play_time_dropout": 1.5}), "`model.play_time_dropout < 1`"),
    ]
    for config, words in bad_config:
        with pytest.raises(UserError) as caught:
            kuairand.build(config, rows)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"needs `model\.labels: both`"):
        pipeline_of(load(phase="simulate"), labels="click")
