"""A script that says nothing on its output, and logs to MLflow wherever its environment points."""

import sys
import time

import mlflow
import work

batch_size = int(sys.argv[1])
with mlflow.start_run():
    began = time.perf_counter()
    for step in range(1, 1_000_000):
        work.train_step(batch_size)
        if step % 50 == 0:
            seconds = time.perf_counter() - began
            mlflow.log_metrics(
                {"train_loss": work.loss_after(step * batch_size), "speed": 50 * batch_size / seconds},
                step=step,
            )
            began = time.perf_counter()
