"""The calls of `benchmarks/gpu.py`: what a GPU is asked on the day there is one.

main        the command line
steps       the tables of calls and steps, and a step's own view of the day
calls       runs a call's steps, each in a process of its own with a limit
rehearsal   what steps see instead of a GPU
alive       the GPU works, and trials run on it; `breaking` is a pipeline that cannot
probe       what torch and cuDNN do, asked directly
product     the commands that a user types, on the trainings of benchmarks/unedited/gpu.py
recording   what NVML says
pack        the wheels to carry
read        results, fixtures and docs/gpus.md out of what came back

What runs the steps needs no torch: a step that cannot import it costs no other.
"""
