"""A script of the Hugging Face kind: a Trainer, a callback, dictionaries on stdout."""

import argparse
import os

import transformers
import work


class Reporting(transformers.TrainerCallback):
    def __init__(self):
        self.meter, self.loss = work.meter(), None

    def on_step_end(self, args, state, control, **kwargs):
        samples = args.train_batch_size * args.gradient_accumulation_steps
        self.meter.step(samples=samples, loss=self.loss)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.loss = logs["loss"]


parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--max_steps", type=int, default=1_000_000)
parser.add_argument("--logging_steps", type=int, default=20)
parser.add_argument("--output_dir", required=True)
args = parser.parse_args()
args.train_batch_size = args.per_device_train_batch_size
os.makedirs(args.output_dir, exist_ok=True)

transformers.Trainer(args, callbacks=[Reporting()]).train()
