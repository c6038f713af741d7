"""Reads the files of a sweep folder that sweeper 0.1 or 0.2 has written (`sweeper.core.schema_1`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core import schema_1
from sweeper.race.log import Round, rounds_of_speeds
from sweeper.sweep.folder.journal import (
    EARLY_RACE,
    ENDS_ANEW,
    EXTENSION,
    INTERIM_RESULT,
    RACE,
    RESULT,
    SEARCH_RESULT,
    Journal,
    mapping_in,
)
from sweeper.sweep.folder.result import SweepResult


class JournalOfSchema1(Journal):
    """An earlier version's folder, which is only read."""

    _search_result_file = schema_1.FILES[SEARCH_RESULT]
    _interim_result_file = schema_1.FILES[INTERIM_RESULT]
    _extension_file = schema_1.FILES[EXTENSION]

    def race_folder(self, race: str) -> Path:
        """Returns the folder of a race; there was no folder of all races."""
        return self.folder / schema_1.RACES.get(race, race.replace("-", "/"))

    def rounds_in_result(self) -> list[Round]:
        """Returns the rounds in the result itself, with a single turn of each process."""
        paths = (self.folder / RESULT, self.folder / self._interim_result_file)
        trees = (mapping_in(path, ENDS_ANEW) for path in paths)
        return rounds_of_speeds(schema_1.speeds(next(filter(None, trees), {})))

    def early_races(self) -> list[str]:
        """Returns the races during the search, in order."""
        logs = (self.folder / EARLY_RACE).glob(f"*/{RACE}")
        return sorted(f"{EARLY_RACE}-{path.parent.name}" for path in logs)

    def race_folders(self) -> list[Path]:
        """Returns the folders with the processes of the races that the sweep's result rests on."""
        # The processes of all early rounds are in one folder.
        return [self.folder / EARLY_RACE, *super().race_folders()]

    def _read_document(self, path: Path) -> Mapping[str, Any]:
        return schema_1.sweep(super()._read_document(path))

    def _decode_result(self, tree: Mapping[str, Any]) -> SweepResult:
        return super()._decode_result(schema_1.result(tree))
