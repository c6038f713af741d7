"""Templates of command lines and files."""

from __future__ import annotations

import json

import pytest

from sweeper.core.template import arguments, literal, names_in, render
from sweeper.errors import UserError

VALUES = {"batch_size": 64, "lr": 3e-05, "precision.amp": "bf16", "flag": True, "none": None, "path": "a b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--bs={batch_size}", "--bs=64"),
        ("{lr}", "3.0e-05"),
        ("{flag} {none}", "true null"),
        ("{precision.amp}", "bf16"),
        ("{precision.amp: bf16 -> --amp}", "--amp"),
        ("{precision.amp: fp16 -> --half; bf16 -> --amp}", "--amp"),
        ("{precision.amp: fp16 -> --half}", ""),
        ("{flag: true -> yes; false -> no}", "yes"),
        ("{flag: True -> yes; False -> no}", "yes"),
        ("{none: Null -> yes}", "yes"),
        ("{precision.amp: BF16 -> --amp}", ""),
        ("{{batch_size}}", "{batch_size}"),
        ("{{other: a -> b}}", "{other: a -> b}"),
        ('{"size": {batch_size}, "other": {}}', '{"size": 64, "other": {}}'),
        ("a {1} { batch_size } {}", "a {1} { batch_size } {}"),
    ],
)
def test_a_template_takes_its_values(text: str, expected: str):
    assert render(text, VALUES) == expected


def test_a_condition_alone_is_words_or_nothing():
    items = ["p", "{flag: true -> --amp --dtype 'b f'}", "{flag: false -> --no}", "{path}", "{none: 1 -> x}"]
    assert arguments(items, VALUES) == ["p", "--amp", "--dtype", "b f", "a b"]


def test_an_empty_value_is_still_an_argument():
    assert arguments(["--tag", "{tag}"], {"tag": ""}) == ["--tag", ""]


def test_a_name_without_a_value_is_refused():
    with pytest.raises(UserError, match="'other' has no value"):
        render("{other}", VALUES)


@pytest.mark.parametrize(
    "text", ["{a}", "{{a}}", "{{{a}}}", "{a: b -> c}", "{{a: b -> c; d -> e}}", "{} { a } %"]
)
def test_a_literal_text_comes_out_as_it_was(text: str):
    assert list(names_in(literal(text))) == []
    assert render(literal(text), {}) == text


def test_names_are_those_that_are_replaced():
    assert list(names_in("{a} {{b}} {c.d: 1 -> {x}} {e: x -> y} {f-g}")) == ["a", "x", "e", "f-g"]


@pytest.mark.parametrize("value", [1e-05, 0.1, 1.0, 123456789.123, 1e22, 2.5e-07])
def test_numbers_come_back_from_every_format(value: float):
    import tomllib

    import yaml

    text = render("{x}", {"x": value})
    assert (
        yaml.safe_load(text) == json.loads(text) == tomllib.loads(f"x = {text}")["x"] == float(text) == value
    )
