"""Copies a finished study to a database (`storage:`), for optuna-dashboard."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from sweeper.search.study_file import NUMBER
from sweeper.system.environment import secrets
from sweeper.system.secrets import strike

MAX_SAID = 160
_DRIVERS = {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql"}
"""Drivers that sweeper's extras install. SQLAlchemy's own choices differ from release to release."""


def copy_study(path: Path, url: str, name: str) -> str:
    """Copies the study in a file to a database, in place of an older copy of that name.

    Returns:
        A line on why it was not copied; empty if it was.
    """
    scheme, _, rest = url.partition("://")
    try:
        with _opened(f"{_DRIVERS.get(scheme, scheme)}://{rest}") as storage:
            if name in optuna.get_all_study_names(storage):
                trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
                if trials and not any(NUMBER in trial.user_attrs for trial in trials):
                    raise ValueError(f"another study {name} is there; rename one of the two")
                optuna.delete_study(study_name=name, storage=storage)
            file = JournalStorage(JournalFileBackend(str(path)))
            (study,) = file.get_all_studies()
            optuna.copy_study(
                from_study_name=study.study_name, from_storage=file, to_storage=storage, to_study_name=name
            )
    except Exception as error:
        # Each driver has its own error classes; whatever the error is, the sweep is complete.
        values, cause = secrets(os.environ), error.__cause__ or error
        why = " ".join(str(getattr(cause, "orig", None) or cause).split()) or type(cause).__name__
        place = f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
        return (
            f"The study was not copied to {strike(place, values)} ({strike(why, values)[:MAX_SAID]})."
            " Run the same command again to copy it."
        )
    return ""


@contextlib.contextmanager
def _opened(url: str) -> Iterator[RDBStorage]:
    # Optuna's log lines would come between sweeper's.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = RDBStorage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()
