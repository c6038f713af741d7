"""What a run that failed says about going on."""

from __future__ import annotations

import pytest
from productions import block, commit, write

from sweeper.core.measurement import Failure, FailureKind
from sweeper.production.folder import RunFolder
from sweeper.production.run import _as_error

CRASH = Failure(kind=FailureKind.CRASH, message="it was killed")


@pytest.mark.parametrize(
    ("new", "same"), [(False, "the same command"), (True, "the same command without --new")]
)
def test_with_new_the_same_command_would_start_another_run(new: bool, same: str, folder: RunFolder):
    assert "same command" not in str(_as_error(CRASH, folder, new=new))
    write(folder, block(1, 1.0))
    commit(folder)
    assert str(_as_error(CRASH, folder, new=new)).endswith(f"; {same} resumes from the latest checkpoint.")
