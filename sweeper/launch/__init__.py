"""Places jobs: `submit(folder)` returns a `Handle`.

On a cluster, workers run jobs through `node.py`; `cluster.py` looks at a job's stage to keep compared
trials on one worker.
"""
