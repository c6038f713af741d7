"""Values that a specification should not have, as text and as data; and a script's specification."""

# ruff: noqa: E501 (many short values to a line)

from __future__ import annotations

from typing import Any

SCRIPT = """\
name: script
command: [python, train.py, "--bs={batch_size}", "--lr={lr}", "{precision.amp: bf16 -> --amp}"]
script:
  files: {conf/a.json: '{"lr": {lr}}', b.yaml: {template: b.yaml.in}}
  env: {OMP: "{batch_size}"}
  samples_per_step: "{batch_size}*2"
  patterns: ['step (?P<step>[0-9]+)']
space:
  batch_size: {type: int, low: 8, high: 64, step: 8}
  lr: {type: float, low: 0.001, high: 0.1, log: true, when: {batch_size: {min: 32}}}
  precision.amp: {type: categorical, choices: [fp32, bf16]}
baseline: {batch_size: 16, lr: 0.01, precision.amp: fp32}
"""

NASTY_TEXTS = (
    "", "~", "null", "true", "no", "0", "-0.0", "1e400", "-1e400", ".nan", ".inf", "-.INF", "1e-400", "5e-324",
    str(2**63 - 1), str(2**63), str(2**70), "-" + "9" * 400, "0x" + "f" * 40, "0o777777777777777777777777", "1_000",
    "1:30:00", "2024-01-01", "2024-01-01T00:00:00Z", "=", "<<", "*a", "&a 1", "&a", "!!python/object:os.system x",
    "!!python/object/apply:os.system ['true']", "!!binary aGk=", "!!int 3", "!x y", "%TAG ! x", "@at", "`tick`", "|",
    ">", "? a", "- a", "a: b", "{", "}", "[", "]", "{a: 1", "[1, 2", "{a: {b: [}", "[[[[]]]]", "{<<: {a: 1}}",
    '"\\ud800"', '"\\udfff\\ud800"', '"\\x00"', '"\\u202e"', '"\\e[31m"', '"\\U00110000"', '"unclosed', "'", "''",
    "\t1", "# x", "x #", "---", "...", "---\na: 1", "\u2028", "\ufeff", "\x85", "\u00e9\u0301", "\U0001f600", "${HOME}",
    "../../x", "/dev/zero", "~nobody-at-all/x", "~", "x" * 300, "x" * 9000, "{" * 40, "[" * 3000, "a," * 3000,
    "[" + "1," * 25000 + "]", "{" + ",".join(f"k{i}: {i}" for i in range(2000)) + "}", "{low: 1, low: 2}",
    "{type: int, low: 5, high: 1}", "{type: float, low: -1, high: 1, log: true}", "{type: int, low: 1, high: 9, step: 0}",
    "{type: categorical, choices: []}", "{type: categorical, choices: [1, 1.0, true]}", "{type: [int]}", "{type: {a: 1}}",
    "{when: {x: {min: 1}}}", "(?P<step>", "(?P<step>(a+)+)b", "(" * 200, "{a: -> }", "{a.b: x -> y; -> ;}",
)  # fmt: skip
"""What stands in the place of a value, as text."""

NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**70, -(2**80), 0.5, -0.0, 1e308, -1e308, 5e-324,
    1e-308, 1e17, float("inf"), float("nan"), "", " ", "auto", "all", "x", "a.b", "..", "../x", "/etc/passwd", "\x00",
    "\ud800", "\u202e", "\x1b[2J", "-", "a" * 129, "a" * 8192, "a" * 8193, "é", "𝕩", "int", "float", "categorical",
    "throughput", "val_loss", "batch_size", "~root/x", "~nobody-at-all", "pipelines." + "a" * 300, "(", "(?P<step>x)",
    [], [[]], [None], [0], [1, 1], [1, True], ["a", "a"], [float("nan")], [[1], {}], ["x"] * 1001, list(range(1000)),
    {}, {"": 1}, {"a": None}, {"a": {}}, {"type": None}, {"type": 3}, {"type": ["int"]}, {"type": "int"},
    {"type": "int", "low": 1, "high": 2**63 - 1}, {"type": "int", "low": -(2**63), "high": 2**63 - 1, "step": 2**62},
    {"type": "int", "low": 1, "high": 8, "step": 2**63}, {"type": "float", "low": -1e308, "high": 1e308},
    {"type": "float", "low": -1.7e308, "high": 1.7e308, "step": 5e-324}, {"type": "float", "low": 0, "high": 1, "step": 0.3},
    {"type": "float", "low": 1e-320, "high": 1e300, "log": True}, {"type": "float", "low": 1.0, "high": 1.0},
    {"type": "float", "low": 0.0, "high": 1.0, "step": 1e-300}, {"type": "categorical", "choices": [None, True, "a", 1.5]},
    {"type": "categorical", "choices": [1], "when": {"batch_size": []}}, {"min": 1}, {"max": "x"}, {"min": True},
    {"min": 1e400}, {"type": "int", "low": 1, "high": 2, "when": {"batch_size": {"min": 2**70}}}, {"maximize": "val_loss"},
    {"maximize": "x", "minimize": "y"}, {"template": ""}, {"template": "/dev/zero"}, {"template": "a" * 300},
)  # fmt: skip
"""What stands in the place of a value, as data."""
