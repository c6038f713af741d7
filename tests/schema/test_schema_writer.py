import random

import pytest
import yaml

from sweeper.schema import read_yaml, to_yaml

WORDS = [
    "no",
    "1e-4",
    "010",
    "08",
    "0o17",
    "1:30",
    "~",
    "",
    "true",
    ".inf",
    "2024-01-01",
    "a: b",
    "#",
    "é😀",
    "a\nb\n",
    " x",
    "'",
    "*a",
    "<<x",
    "x" * 300,
    "+1",
    "1.",
    "-",
]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_reads_back_equal(tmp_path, seed):
    rng = random.Random(seed)

    def make(depth):
        kind = rng.randrange(7 if depth < 4 else 5)
        if kind == 5:
            return [make(depth + 1) for _ in range(rng.randrange(4))]
        if kind == 6:
            return {f"k{i}.{rng.choice('abc')}": make(depth + 1) for i in range(rng.randrange(4))}
        return [
            rng.choice(WORDS),
            rng.randrange(-(10**6), 10**12),
            rng.choice([1e-5, 2e9, 0.1, 1e22, -3.5e-300, 1.0]),
            rng.random() < 0.5,
            None,
        ][kind]

    value = {word: make(0) for word in ("a", "b", "no", "1e-4", "010")}
    path = tmp_path / "f.yaml"
    path.write_text(to_yaml(value))
    assert repr(read_yaml(path)) == repr(value)


def test_a_value_used_twice_has_no_alias_and_yaml_1_1_reads_the_same():
    shared = ["no", "1e-4", "08"]
    text = to_yaml({"a": shared, "b": shared})
    assert "&" not in text
    assert yaml.safe_load(text) == {"a": shared, "b": shared}
