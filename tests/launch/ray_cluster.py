"""A Ray cluster on loopback as a process of its own: a head, and nodes with a GPU each in name.

Reads orders, a line each: `add` and `kill` (the oldest node); answers each with a line.
"""

import os
import shutil
import sys
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_TMPDIR"] = folder = tempfile.mkdtemp(prefix="ray-test-")
os.environ["SWEEPER_SCRATCH"] = sys.argv[1]

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20}

try:
    cluster = Cluster()
    cluster.add_node(num_gpus=0, **NODE)
    nodes = [cluster.add_node(num_gpus=1, **NODE) for _ in range(2)]
    print("address", cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
        else:
            nodes.append(cluster.add_node(num_gpus=1, **NODE))
        print("done", flush=True)
    cluster.shutdown()
finally:
    shutil.rmtree(folder, ignore_errors=True)
