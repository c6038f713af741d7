"""A script with `--k v`, a flag, and samples/s every some steps."""

import argparse
import time

import work

parser = argparse.ArgumentParser(description="Trains a model.")
parser.add_argument("--batch-size", type=int, default=32, help="samples a step")
parser.add_argument("--hidden-size", type=int, default=64, help="width of the model")
parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
parser.add_argument("--num-workers", type=int, default=0, help="processes that load data")
parser.add_argument("--amp", action="store_true", help="mixed precision")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--output", default="model.txt")
args = parser.parse_args()

meter = work.meter()
began, since = time.perf_counter(), 0
for step in range(1, args.steps + 1):
    # Half of the arithmetic.
    work.train_step(args.batch_size // (2 if args.amp else 1), args.hidden_size)
    loss = work.loss_after(step * args.batch_size)
    meter.step(samples=args.batch_size, loss=loss)
    since += args.batch_size
    seconds = time.perf_counter() - began
    if seconds >= 0.05:
        print(f"step {step}/{args.steps}  loss {loss:.4f}  {since / seconds:,.1f} samples/s")
        began, since = time.perf_counter(), 0
with open(args.output, "w") as file:
    file.write(f"{loss}\n")
