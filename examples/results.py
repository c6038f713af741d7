"""Reads a sweep into pandas: python results.py NAME [HOME]"""

import sys

import sweeper

frame = sweeper.load(*sys.argv[1:3])
measured = frame[frame["feasible"]].sort_values("throughput", ascending=False)
columns = ["name", "throughput", "speedup", "ratio", "val_loss", "verdict"]
print(measured[columns].head(10).to_string())
