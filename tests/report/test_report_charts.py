"""The axes of charts."""

from __future__ import annotations

from sweeper.report.chart import Axis, Chart, Marks

TRIAL = Axis("trial")


def chart(x: tuple[float | None, ...], y: tuple[float | None, ...], across: Axis = TRIAL) -> Chart:
    marks = Marks(name="good", tone="good", x=x, y=y)
    return Chart(key="k", title="t", alt="a", x=across, y=Axis("samples/s", log=True), marks=(marks,))


def test_an_axis_with_a_single_value_says_so() -> None:
    across, up = chart((3.0, 3.0), (10.0, 20.0)).axes
    assert across == Axis("trial (one value)", ticks=(3.0,))
    assert up == Axis("samples/s", log=True)
    _, up = chart((1.0, 2.0), (10.0, None)).axes
    assert up == Axis("samples/s (one value)", ticks=(10.0,))


def test_axes_with_ticks_or_an_end_stay_as_they_are() -> None:
    for axis in (Axis("a", categories=("x", "y")), Axis("a", ticks=(1.0, 2.0)), Axis("a", max_value=100.0)):
        assert chart((1.0,), (1.0,), axis).axes[0] == axis
    assert chart((), ()).axes[0] == TRIAL
