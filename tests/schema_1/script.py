"""A user's script that prints its speed."""

import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
batch = parser.parse_args().batch_size
began, seen = time.perf_counter(), 0
for epoch in range(40):
    time.sleep(0.02)
    seen += 10 * batch
    print(f"epoch {epoch}: {seen / (time.perf_counter() - began):.1f} samples/s", flush=True)
