import pytest
from pydantic import TypeAdapter, ValidationError

from sweeper.schema import CategoricalParameter, FloatParameter, IntParameter, Parameter
from sweeper.schema.space import Bounds, holds


@pytest.mark.parametrize(
    ("parameter", "inside", "outside", "size"),
    [
        (
            IntParameter(type="int", low=1, high=9, step=4),
            [1, 5, 9, 5.0],
            [0, 2, 10, 5.5, True, "5", None],
            3,
        ),
        (IntParameter(type="int", low=64, high=4096, log=True), [64, 65, 4096], [63, 4097], 4033),
        (FloatParameter(type="float", low=0, high=1), [0, 0.3, 1.0], [-0.1, 1.1, True, "0.3"], None),
        (FloatParameter(type="float", low=0.1, high=0.7, step=0.2), [0.1, 0.3, 0.7], [0.2, 0.75], 4),
        (FloatParameter(type="float", low=2, high=2), [2.0], [2.1], 1),
        (
            CategoricalParameter(type="categorical", choices=(1, "a", 0.5)),
            [1, 1.0, "a"],
            [True, "b", None],
            3,
        ),
        (CategoricalParameter(type="categorical", choices=[True, False]), [True], [1, 0], 2),
    ],
)
def test_contains_and_size(parameter, inside, outside, size):
    assert [value for value in inside if not parameter.contains(value)] == []
    assert [value for value in outside if parameter.contains(value)] == []
    assert parameter.size() == size
    assert parameter.contains(parameter.first_value())


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ({"type": "int", "low": 2, "high": 1}, "`low <= high`"),
        ({"type": "int", "low": 0, "high": 1, "log": True}, "`low > 0` where `log: true`"),
        ({"type": "int", "low": 1, "high": 9, "log": True, "step": 2}, "either `log: true` or a `step`"),
        ({"type": "float", "low": 1, "high": 9, "log": True, "step": 2}, "either `log: true` or a `step`"),
        ({"type": "float", "low": 0, "high": float("inf")}, "finite number"),
        ({"type": "float", "low": -1e308, "high": 1e308}, "finite number of steps"),
        ({"type": "float", "low": 0, "high": 1e308, "step": 1e-9}, "finite number of steps"),
        ({"type": "int", "low": 1, "high": 2, "step": 0}, "greater than or equal to 1"),
        ({"type": "int", "low": True, "high": 2}, "valid integer"),
        ({"type": "categorical", "choices": []}, "list of 1 to 1000 values"),
        ({"type": "categorical", "choices": list(range(1001))}, "list of 1 to 1000 values"),
        ({"type": "categorical", "choices": [1, 1.0]}, "must not hold a value twice"),
        ({"type": "categorical", "choices": [1, float("nan")]}, "finite number"),
        ({"type": "categorical", "choices": [1], "when": {"a": {}}}, "`min` or `max`"),
        ({"type": "categorical", "choices": [1], "when": {"a": [[1]]}}, "single value"),
    ],
)
def test_rules(tree, rule):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Parameter).validate_python(tree)
    assert rule in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("workers", "workers", True),
        ("workers", "rows", False),
        (("a", "b"), "b", True),
        (("a", "b"), "c", False),
        (True, True, True),
        (True, 1, False),
        (Bounds(min=1), 1, True),
        (Bounds(min=1), 0, False),
        (Bounds(max=2), 2.5, False),
        (Bounds(min=1, max=2), 2, True),
        (Bounds(min=0), "a", False),
        (Bounds(min=0), True, False),
    ],
)
def test_conditions(condition, value, expected):
    assert holds(condition, value) is expected


def test_a_parameter_is_frozen():
    with pytest.raises(ValidationError):
        IntParameter(type="int", low=1, high=2).low = 3
