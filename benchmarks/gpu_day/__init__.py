"""The calls of `benchmarks/gpu.py`: what a GPU is asked on the day there is one.

main        the command line
steps       the table of steps, and a step's own view of the day
calls       runs a call's steps, each in a process of its own with a limit
alive       call 1: the GPU works, and trials run on it; `recording` keeps what NVML says
product     call 2: the commands that a user types
bars        call 3: the figures that have a bar on a GPU
ladders     call 4: the guides' ladders, and cells of the LSTM surface
jobs        what trials of these steps run beside the shipped pipelines
pack        the wheels to carry
read        results, fixtures and docs/gpus.md out of what came back

`main`, `steps`, `calls`, `pack` and `read` need the standard library alone.
"""
