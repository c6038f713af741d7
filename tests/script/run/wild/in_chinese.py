"""A script that tells the seconds of an epoch and nothing else, in Chinese and in colours."""

import argparse
import time

import work

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=100_000)
args = parser.parse_args()

SAMPLES = 3200
meter = work.meter()
samples = 0
print("\x1b[1;34m开始训练\x1b[0m")
for epoch in range(1, args.epochs + 1):
    began = time.perf_counter()
    for _ in range(SAMPLES // args.batch_size):
        work.train_step(args.batch_size)
        samples += args.batch_size
        meter.step(samples=args.batch_size, loss=work.loss_after(samples))
    seconds = time.perf_counter() - began
    print(
        f"\x1b[32m第 {epoch} 轮\x1b[0m  用时: \x1b[33m{seconds:.4f}\x1b[0m 秒"
        f"  训练损失: {work.loss_after(samples):.4f}"
    )
