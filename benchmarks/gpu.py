"""Everything there is to measure on a GPU, in five calls of at most nine minutes each.

python benchmarks/gpu.py pack DIR [--python 3.12]      fetches the wheels that a bare machine lacks
python benchmarks/gpu.py 1 --out OUT [--wheels DIR]    1 alive, 2 product, 3 bars, 4 ladders, 5 a script
python benchmarks/gpu.py read OUT                      writes results, fixtures and the table in docs/gpus.md
python benchmarks/gpu.py step NAME [--rehearse]        runs one step by itself

--rehearse runs shortened versions of the same steps on the CPU. docs/gpus.md describes the five calls.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Neither the project nor its benchmarks need be installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_day.main import main

if __name__ == "__main__":
    sys.exit(main())
