"""Memory and time to prepare a KuaiRand folder of 5 million rows, whole and in shards, to the same tensors.

python benchmarks/kuairand_csv.py [ROWS]      adds to benchmarks/results/<device>/guides.json
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Figure, publish

from pipelines import kuairand
from pipelines.kuairand.made_up import MadeUp
from pipelines.kuairand.made_up_files import write_csv

ROWS = 5_000_000
USERS, ROWS_PER_VIDEO = 1000, 5
SHARDS = 3


def prepare(folder: str) -> None:
    """Prepares `folder` in this process, and prints its time and memory and a digest of the result."""
    started = time.perf_counter()
    prepared = kuairand.prepare({"path": folder})
    seconds = time.perf_counter() - started
    digest = hashlib.sha256()
    for name, array in sorted(prepared.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    # Not ru_maxrss, which a process inherits from its parent.
    status = Path("/proc/self/status").read_text()
    peak_gib = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    print(json.dumps({"seconds": seconds, "peak_gib": peak_gib, "digest": digest.hexdigest()}))


def main() -> None:
    rows = int(sys.argv[1]) if sys.argv[1:] else ROWS
    figures, digests = [], set()
    made = MadeUp(USERS, rows // ROWS_PER_VIDEO, rows, seed=0)
    for kind, parts in (("whole", 1), ("shards", SHARDS)):
        with tempfile.TemporaryDirectory() as folder:
            write_csv(made, Path(folder), parts=parts)
            csv_gib = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**30
            command = [sys.executable, __file__, "--prepare", folder]
            report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"{kind}: {csv_gib:.2f} GiB of CSV")
        digests.add(report["digest"])
        for name, value, unit, bar in (
            ("peak_rss", report["peak_gib"], "GiB", "<= 4"),
            ("seconds", report["seconds"], "s", ""),
        ):
            figure = f"kuairand_csv {kind} {rows} rows {name}"
            figures.append(
                Figure(figure=figure, value=value, low=value, high=value, bar=bar, unit=unit, repeats=1)
            )
    assert len(digests) == 1, "shards gave other tensors"
    publish("guides", figures, f"python benchmarks/kuairand_csv.py {rows}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        prepare(sys.argv[2])
    else:
        main()
