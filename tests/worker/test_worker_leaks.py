"""Nothing of a trial is left, whatever it leaves behind and however it ends (`tests/chaos/chaos_zoo.py`)."""

from __future__ import annotations

import pytest
from chaos.chaos_zoo import ANIMALS, ENDS, run_zoo


@pytest.mark.slow
def test_nothing_survives_and_siblings_are_untouched():
    assert len(ANIMALS) >= 12
    assert len(ENDS) == 8
    found = run_zoo(8, seed=1)
    assert found["count"] == 8
    assert found["violations"] == []
