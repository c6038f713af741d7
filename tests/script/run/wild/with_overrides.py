"""A script with `--key=value`, and the time of a step in ms, in the style of PyTorch's language models."""

import sys
import time

import work

options = {"batch_size": 20, "epochs": 100_000, "steps_per_epoch": 400, "log_interval": 20, "lr": 5.0}
for item in sys.argv[1:]:
    key, _, value = item.removeprefix("--").partition("=")
    if key not in options:
        sys.exit(f"unknown option {key}")
    options[key] = type(options[key])(value)

meter = work.meter()
samples = 0
for epoch in range(1, options["epochs"] + 1):
    began = time.perf_counter()
    for step in range(1, options["steps_per_epoch"] + 1):
        work.train_step(options["batch_size"])
        samples += options["batch_size"]
        loss = work.loss_after(samples)
        meter.step(samples=options["batch_size"], loss=loss)
        if step % options["log_interval"] == 0:
            ms = 1e3 * (time.perf_counter() - began) / options["log_interval"]
            print(
                f"| epoch {epoch:3d} | {step:5d}/{options['steps_per_epoch']:5d} batches"
                f" | lr {options['lr']:.2f} | ms/batch {ms:5.4f} | loss {loss:5.4f} | ppl {2**loss:8.2f}"
            )
            began = time.perf_counter()
