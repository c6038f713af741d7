"""Options that several commands take."""

from __future__ import annotations

import pytest

from sweeper.cli.options import positive_number
from sweeper.errors import UserError


@pytest.mark.parametrize(("text", "number"), [("2.5", 2.5), ("100", 100.0), ("1e-3", 1e-3)])
def test_a_number_above_0_is_read(text: str, number: float) -> None:
    assert positive_number(text) == number


@pytest.mark.parametrize("text", ["0", "-1", "2,5", "nan", "inf", "much", ""])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match=f"above 0, such as 2.5, but got {text!r}"):
        positive_number(text)


@pytest.mark.parametrize("command", ["watch", "tune"])
def test_a_price_with_a_comma_is_refused_before_anything_runs(sweeper, tmp_path, command) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    done = sweeper(command, "--price", "2,5", "--", "python", "train.py")
    assert done.returncode == 2
    assert "must be numbers above 0, such as 2.5, but got '2,5'" in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
