"""What a GPU is asked on the day there is one: six calls of at most nine minutes.

python benchmarks/gpu.py pack [DIR] [--python 3.12]    fetches the wheels that a bare machine lacks
python benchmarks/gpu.py A --out DIR                   490 s: is anything fatal, and what does tune do
python benchmarks/gpu.py B --out DIR                   170 s: tests, trials, a production run
python benchmarks/gpu.py C1 --out DIR                  540 s: tune on two scripts; C2 and C3 on two more
python benchmarks/gpu.py D --out DIR                   100 s: are scripts that take turns as fast as alone
python benchmarks/gpu.py read DIR                      writes results, fixtures and the table in docs/gpus.md
python benchmarks/gpu.py step NAME                     runs one step by itself

--rehearse runs the same without a GPU, shortened, on the tests' strict stand-in for CUDA, and --fail NAME ...
has steps fail on purpose. docs/gpus.md describes the calls.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Neither the project nor its benchmarks need be installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_day.main import main

if __name__ == "__main__":
    sys.exit(main())
