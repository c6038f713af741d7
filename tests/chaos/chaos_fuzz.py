"""Fuzzes the specification's reader: every input is taken, or refused in words; and neither takes long.

    python tests/chaos/chaos_fuzz.py COUNT SEED

prints JSON: `count`, `tracebacks`, `p50_s`, `p99_s`, `max_s`, `max_rss_mb`, `by_exit`, `by_kind` and
`violations`. Seconds are the processor's: those of the wall are the machine's as well.
An input is made from (seed, its number) alone, so that a violation is made again by
`python tests/chaos/chaos_fuzz.py --one NUMBER SEED`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from chaos_fuzz_inputs import Input, Inputs, shown

from sweeper.errors import UserError
from sweeper.schema import SweepSpec, load, read_yaml, to_yaml
from sweeper.schema.reader import OWN
from sweeper.sweep.workloads import fingerprint

WORKERS = 2
LIMIT_SECONDS = 20
LIMIT_BYTES = 4 * 2**30
MAX_LINES, MAX_CHARACTERS = 101, 3000
KEPT = 20


def fuzz(count: int, seed: int, workers: int = WORKERS) -> dict[str, Any]:
    """Returns what became of `count` inputs; processes of their own keep their memory apart.

    Returns:
        `tracebacks` counts what was neither taken nor refused by a UserError; seconds and MiB are
        those of the worst worker.
    """
    command = [sys.executable, __file__, "--worker"]
    started = [
        subprocess.Popen(
            [*command, *map(str, (count, seed, index, workers))], stdout=subprocess.PIPE, text=True
        )
        for index in range(workers)
    ]
    parts = []
    for each in started:
        said = each.communicate()[0]
        if each.returncode:
            parts.append({"seconds": [], "rss": 0.0, "exits": {}, "kinds": {}, "number": 1, "violations": [
                {"error": f"the process that fuzzes ended with {each.returncode}"}]})  # fmt: skip
        else:
            parts.append(json.loads(said))
    seconds = sorted(second for part in parts for second in part["seconds"]) or [0.0]
    exits: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for part in parts:
        exits.update(part["exits"])
        kinds.update(part["kinds"])
    return {
        "count": len(seconds),
        "tracebacks": sum(part["number"] for part in parts),
        "p50_s": round(seconds[len(seconds) // 2], 5),
        "p99_s": round(seconds[len(seconds) * 99 // 100], 5),
        "max_s": round(seconds[-1], 5),
        "max_rss_mb": round(max(part["rss"] for part in parts), 1),
        "by_exit": dict(exits),
        "by_kind": dict(kinds),
        "violations": [each for part in parts for each in part["violations"]][:KEPT],
    }


def _worker(count: int, seed: int, index: int, workers: int) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    signal.signal(signal.SIGALRM, _too_long)
    seconds: list[float] = []
    exits: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    number = 0
    with _at_work() as (folder, inputs):
        for each in range(index, count, workers):
            item = inputs.make(random.Random(f"{seed}/{each}"))
            began = time.process_time()
            signal.alarm(LIMIT_SECONDS)
            try:
                code = str(_code(folder, item, after=each % 10 == 0))
            except BaseException:
                code = "traceback"
                number += 1
                if number <= KEPT:
                    violations.append(
                        {"number": each, "error": traceback.format_exc()[-1500:], **shown(item)}
                    )
            signal.alarm(0)
            seconds.append(time.process_time() - began)
            exits[code] += 1
            kinds[f"{item.kind}/{code}"] += 1
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": seconds,
        "rss": rss,
        "exits": exits,
        "kinds": kinds,
        "number": number,
        "violations": violations,
    }


@contextlib.contextmanager
def _at_work() -> Iterator[tuple[Path, Inputs]]:
    """A folder with pipelines of the names that the real specifications have, and nothing else in it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        inputs = Inputs(folder)
        work = folder / "work"
        (work / "pipelines").mkdir(parents=True)
        for path in (Path(__file__).parents[2] / "pipelines").glob("*.py"):
            (work / "pipelines" / path.name).write_text("def prepare(data): ...\n")
        (work / "b.yaml.in").write_text("lr: {lr}\n")
        os.chdir(work)
        yield folder, inputs
        os.chdir("/")


def _code(folder: Path, item: Input, *, after: bool) -> int:
    """The exit code this input would have had; raises what would have been a traceback."""
    path = item.path
    if path is None:
        path = folder / "space.yaml"
        path.write_bytes(item.content or b"")
    try:
        spec = load(path, item.overrides)
    except UserError as error:
        text = str(error)
        lines = text.splitlines()
        assert lines, "an empty message"
        assert len(lines) <= MAX_LINES, f"{len(lines)} lines"
        assert max(map(len, lines)) <= MAX_CHARACTERS, (
            f"a line of {max(map(len, lines))} characters: {text[:200]}"
        )
        return error.exit_code
    _use(spec)
    if after:
        # As it is written into a sweep's folder.
        written = folder / "written.yaml"
        written.write_text(to_yaml({"spec": spec.to_dict()}), encoding="utf-8")
        assert SweepSpec.from_dict(read_yaml(written, times=OWN)["spec"]) == spec, "not what was written"
    with contextlib.suppress(UserError):
        fingerprint(spec, "a device")
    return 0


def _use(spec: SweepSpec) -> None:
    """What a sweep does with its specification before anything runs."""
    tree = spec.to_dict()
    json.dumps(tree, allow_nan=False).encode()
    assert SweepSpec.from_dict(tree) == spec, "to_dict and back"
    spec.size()
    baseline = spec.baseline_config()
    first = spec.config({name: parameter.first_value() for name, parameter in spec.space.items()})
    for config in (baseline, first, *spec.references()):
        config.key()
        config.quality_key()
        config.work_key()
        config.optimizer.lr_at(config.global_batch)
        spec.params_of(config)
    assert spec.params_of(first) is not None, "a configuration of the space has no parameters"


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"longer than {LIMIT_SECONDS} s")


def main(arguments: list[str]) -> int:
    """Fuzzes, works on one share, or shows one input; returns the exit code."""
    if arguments[0] == "--worker":
        print(json.dumps(_worker(*map(int, arguments[1:]))))  # type: ignore[arg-type]
        return 0
    if arguments[0] == "--one":
        with _at_work() as (folder, inputs):
            item = inputs.make(random.Random(f"{arguments[2]}/{arguments[1]}"))
            print(json.dumps(shown(item), indent=1))
            print(_code(folder, item, after=True))
        return 0
    found = fuzz(int(arguments[0]), int(arguments[1]))
    print(json.dumps(found, indent=1))
    return 1 if found["tracebacks"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
