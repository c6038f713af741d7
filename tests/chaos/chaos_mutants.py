"""Mutants of the product, each with a fault that must be found: a harness that cannot fail tells nothing.

python tests/chaos/chaos_mutants.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change to one file, and what is to find it.

    Attributes:
        before: Text of the file that is replaced.
        words: The script of this folder, and its arguments.
    """

    file: str
    before: str
    after: str
    words: tuple[str, ...]


SUPERVISORS = ("chaos_kills.py", "supervisors", "26", "1")

MUTANTS = {
    "what the study was told is not kept": Mutant(
        "sweeper/sweep/phases/search.py",
        "            self._context.journal.write_search_result(number, result)\n",
        "",
        SUPERVISORS,
    ),
    "what has an outcome runs again": Mutant(
        "sweeper/sweep/folder/load.py",
        "        if outcome is None:\n",
        "        if entry.result is None:\n",
        SUPERVISORS,
    ),
    "what was cut off stays so": Mutant(
        "sweeper/sweep/folder/load.py",
        "            unfinished.append(entry)\n",
        "            pass\n",
        SUPERVISORS,
    ),
    "a file is written in place": Mutant(
        "sweeper/system/files.py",
        "def write_json(path: Path, value: Any) -> None:\n",
        "def write_json(path: Path, value: Any) -> None:\n"
        "    import time\n\n"
        "    text = json.dumps(value)\n"
        "    with open(path, 'w', encoding='utf-8', buffering=1) as file:\n"
        "        file.write(text[:9])\n"
        "        file.flush()\n"
        "        time.sleep(0.05)\n"
        "        file.write(text[9:])\n"
        "    return\n",
        SUPERVISORS,
    ),
    "a replay has times of its own": Mutant(
        "sweeper/tracking/content.py",
        "    return round(seconds * 1000)\n",
        "    import time\n\n    return round(time.time() * 1000)\n",
        SUPERVISORS,
    ),
    "a run is made without looking for it": Mutant(
        "sweeper/tracking/mlflow.py",
        "        found = client.search_runs(\n            [self._experiment_id],\n            filter",
        "        found = [] and client.search_runs(\n            [self._experiment_id],\n            filter",
        SUPERVISORS,
    ),
    "only the process group is killed": Mutant(
        "sweeper/worker/keeper.py",
        "    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)\n",
        "    pass\n",
        ("chaos_kills.py", "trials", "4", "1"),
    ),
    "a file is not synced": Mutant(
        "sweeper/system/files.py",
        "            os.fsync(file.fileno())\n",
        "",
        ("chaos_syscalls.py", "POWER", "100", "300"),
    ),
}


def caught(name: str) -> list[str]:
    """Returns what the kills found wrong with a mutant; nothing where it went by unseen."""
    mutant = MUTANTS[name]
    with tempfile.TemporaryDirectory(prefix="sweeper-mutant-") as folder:
        for part in ("sweeper", "tests/chaos", "tests/parts"):
            shutil.copytree(
                REPOSITORY / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        path = Path(folder) / mutant.file
        text = path.read_text(encoding="utf-8")
        assert mutant.before in text, f"{mutant.file} has changed: {mutant.before!r} is not in it"
        path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(Path(folder) / "tests/chaos" / mutant.words[0]), *mutant.words[1:]],
            env={**os.environ, "PYTHONPATH": folder, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"the harness itself ended: {done.stderr}")
    violations: list[str] = json.loads(done.stdout)["violations"]
    return violations


if __name__ == "__main__":
    for each in sys.argv[1:] or MUTANTS:
        found = caught(each)
        print(f"{'caught' if found else 'NOT CAUGHT'}: {each}: {found[:2]}", flush=True)
