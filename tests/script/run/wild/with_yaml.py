"""A script that reads nothing but config.yaml, with tqdm on stderr and a validation after each epoch."""

import time

import work
import yaml
from tqdm import tqdm

with open("config.yaml") as file:
    config = yaml.safe_load(file)

meter = work.meter()
samples, size = 0, config["train"]["batch_size"]
for epoch in range(config["train"]["epochs"]):
    steps = config["data"]["samples"] // size
    for _ in (bar := tqdm(range(steps), desc=f"Epoch {epoch}", mininterval=0.02)):
        work.train_step(size)
        samples += size
        loss = work.loss_after(samples)
        meter.step(samples=size, loss=loss)
        bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    with meter.pause():
        for _ in tqdm(range(5), desc="Validating", mininterval=0.02):
            time.sleep(0.02)
        meter.evaluated(work.loss_after(samples) * 1.1)
        tqdm.write(f"val_loss: {work.loss_after(samples) * 1.1:.4f}")
