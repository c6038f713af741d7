"""Real services for tests, each thrown away afterwards: SLURM, PostgreSQL, an MLflow server.

`make services` installs what they need. Each listens on loopback alone, on free ports, and has a folder of
its own, so that neither another test process nor a service of the machine is in its way. Where one cannot
run, its fixture skips with the reason.
"""
