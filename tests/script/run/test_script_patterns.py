"""Lines of the wild, and what they say."""

from __future__ import annotations

import time

import pytest

from sweeper.script.run.patterns import Lines, Patterns, is_evaluation

LINES = [
    (
        "Epoch 3:  45%|████▌     | 450/1000 [00:05<00:06, 88.10it/s, loss=2.31]",
        {"step": 450, "steps": 1000, "steps_per_s": 88.1, "loss": 2.31},
    ),
    ("  2%|▏         | 12/600 [00:20<16:10,  1.65s/it]", {"step": 12, "steps": 600, "s_per_step": 1.65}),
    (
        "| epoch   1 |   200/ 2983 batches | lr 5.00 | ms/batch 12.34 | loss  5.67 | ppl   289.9",
        {"step": 200, "steps": 2983, "ms_per_step": 12.34, "loss": 5.67},
    ),
    ("{'loss': 0.5423, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.02}", {"loss": 0.5423}),
    (
        "{'train_runtime': 12.3, 'train_samples_per_second': 1,234.5, 'train_loss': 0.3}",
        {"samples_per_s": 1234.5, "loss": 0.3},
    ),
    ("{'eval_loss': 0.41, 'eval_runtime': 3.2}", {"val_loss": 0.41}),
    ("step: 100 | loss 1.0e-03 | 12,345 tokens/s", {"step": 100, "loss": 1e-3, "tokens_per_s": 12345}),
    ("Iter 20/500, throughput 512.25 images/sec", {"step": 20, "steps": 500, "samples_per_s": 512.25}),
    (
        "iteration 40: 3.2 ms/iter, train_loss=0.25, val_loss=0.5",
        {"step": 40, "ms_per_step": 3.2, "loss": 0.25, "val_loss": 0.5},
    ),
    ("[Epoch 7] time: 12.5s, valid loss: 0.33", {"epoch_seconds": 12.5, "val_loss": 0.33}),
    ("Epoch 2 took 61.2 seconds", {"epoch_seconds": 61.2}),
    ("Epoch 4/10 finished in 8.25s loss: 0.9", {"epoch_seconds": 8.25, "loss": 0.9}),
    (
        "第 3 轮  用时: 12.5 秒  训练损失: 0.523  验证损失: 0.61",
        {"epoch_seconds": 12.5, "loss": 0.523, "val_loss": 0.61},
    ),
    ("第3轮训练完成，耗时：5.1秒，损失：0.42", {"epoch_seconds": 5.1, "loss": 0.42}),
    (
        "1563/1563 [==============================] - 5s 3ms/step - loss: 1.5 - val_loss: 1.2",
        {"step": 1563, "steps": 1563, "ms_per_step": 3, "loss": 1.5, "val_loss": 1.2},
    ),
    ("batch 100 loss nan", {"step": 100}),
    ("Train Epoch: 1 [640/20000 (3%)]\tLoss: 2.301", {"samples": 640, "loss": 2.301}),
    (
        "Epoch: 1, Steps: 50 | Train Loss: 0.5 Vali Loss: 0.72 Test Loss: 0.44",
        {"step": 50, "loss": 0.5, "val_loss": 0.72},
    ),
    ("Test Loss: 0.44", {"val_loss": 0.44}),
]


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[line[:30] for line, _ in LINES])
def test_a_usual_line_is_understood(line: str, expected: dict[str, float]):
    found = Patterns().read(line)
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)
    assert found.keys() - expected.keys() <= {"loss"}


def test_a_loss_that_is_no_number_is_told():
    assert str(Patterns().read("batch 100 loss nan")["loss"]) == "nan"
    for line in ("loss: inf", "Train Loss=Inf, lr 0.1", '{"loss": Infinity}'):
        assert Patterns().read(line) == {"loss": float("inf")}


@pytest.mark.parametrize("line", ["Loss: InfoNCE", "Namespace(loss='infonce')", "val_loss: nanmean"])
def test_the_name_of_a_loss_is_no_number(line: str):
    assert Patterns().read(line) == {}


@pytest.mark.parametrize(
    "line", ["", "Loading data ...", "Using device cuda:0", "saved model.pt", "weights: 1,234,567", "lr 0.1"]
)
def test_other_lines_say_nothing(line: str):
    assert Patterns().read(line) == {}


def test_a_line_made_to_be_slow_is_not():
    began = time.perf_counter()
    for line in ("1" * 5000, "1," * 2500, "epoch " * 900, "step" + " " * 5000, "1.1e" * 1000):
        Patterns().read(line)
    assert time.perf_counter() - began < 1.0


def test_own_patterns_take_the_place_of_the_usual_ones():
    patterns = Patterns([r"it (?P<step>\d+) .*?(?P<ms_per_step>[\d.]+) msec", r"L=(?P<loss>[\d.]+)"])
    assert patterns.read("it 12 at 3.5 msec L=0.5") == {"step": 12, "ms_per_step": 3.5, "loss": 0.5}
    assert patterns.read("step 100 loss 0.1") == {}


def test_a_stream_is_split_at_newlines_and_carriage_returns():
    lines = Lines()
    assert lines.feed(b"\x1b[32mone\x1b[0m\r two\r\nth") == ["one", " two"]
    assert lines.feed(b"") == []
    assert lines.feed("ree é\n".encode()) == ["three é"]
    assert lines.feed(b"rest") == []
    assert lines.rest() == ["rest"]
    assert lines.rest() == []


def test_a_bar_is_told_when_it_is_drawn_and_once():
    lines = Lines()
    assert lines.feed(b"\r 1/3") == [" 1/3"]
    assert lines.feed(b"\r 2/3") == [" 2/3"]
    assert lines.feed(b"\r 3/3\n") == [" 3/3"]
    assert lines.feed(b"\r 1/2") == [" 1/2"]
    assert lines.rest() == []


def test_a_line_that_grows_is_told_whole():
    lines = Lines()
    assert lines.feed(b"\rab") == ["ab"]
    assert lines.feed(b"cd") == []
    assert lines.feed(b"\n") == ["abcd"]


def test_a_letter_cut_in_two_is_whole_again():
    lines, data = Lines(), "损失: 1\n".encode()
    assert [*lines.feed(data[:1]), *lines.feed(data[1:])] == ["损失: 1"]


def test_a_line_without_an_end_is_not_kept_for_ever():
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * 65536) == []
    assert len(lines._rest) < 65536


@pytest.mark.parametrize(("line", "expected"), [("Validating: 5/10 [", True), ("Epoch 3: 5/10 [", False)])
def test_lines_of_a_validation_are_known(line: str, expected: bool):
    assert is_evaluation(line) is expected
