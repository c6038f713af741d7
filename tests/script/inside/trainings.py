"""Training loops of many kinds, as people write them: python trainings.py [KIND]

Without a kind it reads kinds from its input, and runs each in a fork of its own.

Each prints, as its last line, what a person would say of it: steps, samples, the mean loss, and a digest
of all losses, to be held against what the hook saw.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

ROWS, BATCH, EPOCHS = 1000, 32, 3


class Truth:
    """What really happened."""

    def __init__(self) -> None:
        self.steps = self.samples = 0
        self.losses: list[float] = []

    def step(self, samples: int, loss: Any) -> None:
        self.steps += 1
        self.samples += samples
        self.losses.append(float(loss))

    def tell(self) -> None:
        digest = hashlib.sha256(" ".join(each.hex() for each in self.losses).encode()).hexdigest()
        mean, spread = statistics.mean(self.losses), statistics.pstdev(self.losses)
        counts = {"steps": self.steps, "samples": self.samples}
        print(json.dumps({**counts, "loss": mean, "loss_spread": spread, "digest": digest}))


def rows(count: int = ROWS) -> TensorDataset:
    x = torch.randn(count, 20)
    return TensorDataset(x, x[:, :1] * 2 + 0.1 * torch.randn(count, 1))


def mlp(inputs: int = 20, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, outputs))


def loop(truth: Truth, loader: Any, model: Any, optimizer: Any, *, validation: Any = None) -> None:
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            truth.step(len(x), loss)
        if validation is not None:
            model.eval()
            with torch.no_grad():
                for x, y in validation:
                    nn.functional.mse_loss(model(x), y)
            time.sleep(0.05)


def plain(truth: Truth) -> None:
    model = mlp()
    loader = DataLoader(rows(), batch_size=BATCH, shuffle=True)
    loop(truth, loader, model, torch.optim.Adam(model.parameters()), validation=DataLoader(rows(), BATCH))


def workers(truth: Truth) -> None:
    model = mlp()
    loader = DataLoader(rows(), batch_size=BATCH, shuffle=True, num_workers=2)
    validation = DataLoader(rows(), BATCH, num_workers=1, persistent_workers=True)
    loop(truth, loader, model, torch.optim.AdamW(model.parameters()), validation=validation)


def careless(truth: Truth) -> None:
    """Puts the model into evaluation mode and never back, without no_grad around the loader."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train, test = DataLoader(rows(), BATCH, shuffle=True), DataLoader(rows(), BATCH)
    for _ in range(EPOCHS):
        for x, y in train:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            truth.step(len(x), loss)
        model.eval()
        for x, _ in test:
            with torch.no_grad():
                model(x)


def accumulation(truth: Truth) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    total = 0.0
    for index, (x, y) in enumerate(DataLoader(rows(1024), BATCH, shuffle=True)):
        loss = nn.functional.mse_loss(model(x), y) / 4
        loss.backward()
        total += float(loss)
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            truth.step(4 * BATCH, total)
            total = 0.0


def scaler(truth: Truth) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in DataLoader(rows(), BATCH, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        truth.step(len(x), loss)


def lbfgs(truth: Truth) -> None:
    model = nn.Linear(20, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8)
    for x, y in DataLoader(rows(), 100):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        truth.step(len(x), loss)


def gan(truth: Truth) -> None:
    generator, critic = mlp(8, 20), mlp(20, 1)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    loss_of = nn.BCEWithLogitsLoss()
    for x, _ in DataLoader(rows(), BATCH, shuffle=True):
        fake = generator(torch.randn(len(x), 8))
        of_critic.zero_grad()
        real = loss_of(critic(x), torch.ones(len(x), 1))
        loss = real + loss_of(critic(fake.detach()), torch.zeros(len(x), 1))
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        loss_of(critic(fake), torch.ones(len(x), 1)).backward()
        of_generator.step()
        truth.step(len(x), loss)


def folds(truth: Truth) -> None:
    for _ in range(3):
        model = mlp()
        loop(truth, DataLoader(rows(320), BATCH), model, torch.optim.Adam(model.parameters()))


def by_hand(truth: Truth) -> None:
    """A textbook's own SGD, over batches cut by hand."""
    model, data = nn.GRU(20, 16), rows().tensors[0]
    for step in range(100):
        x = data[step * 8 : step * 8 + 8].reshape(1, 8, 20)
        output, _ = model(x)
        loss = output.square().mean()
        model.zero_grad()
        loss.backward()
        for each in model.parameters():
            each.data.add_(each.grad, alpha=-0.01)
        truth.step(8, loss)


def cut(truth: Truth) -> None:
    """Batches cut by hand, and losses estimated now and then."""
    model, (x, y) = mlp(), rows().tensors
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(200):
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(20):
                    model(x)
            time.sleep(0.05)
            model.train()
        index = torch.randint(len(x), (BATCH,))
        loss = nn.functional.mse_loss(model(x[index]), y[index])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        truth.step(BATCH, loss)


def time_first(truth: Truth) -> None:
    """A recurrent model with (time, batch, features), as nn.LSTM has it by default."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 16), nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][-1])

    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(60):
        x = torch.randn(12, BATCH, 4)
        loss = nn.functional.mse_loss(model(x), x[-1, :, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(BATCH, loss)


def compiled(truth: Truth) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    fast = torch.compile(model, fullgraph=True)
    loop(truth, DataLoader(rows(320), BATCH, shuffle=True), fast, optimizer)


def compiled_step(truth: Truth) -> None:
    """The whole of forward and the optimizer compiled, over batches cut by hand."""
    model, (x, y) = mlp(), rows().tensors
    optimizer = torch.optim.Adam(model.parameters())
    forward = torch.compile(lambda a, b: nn.functional.mse_loss(model(a), b), fullgraph=True)
    update = torch.compile(lambda: optimizer.step())
    for _ in range(30):
        loss = forward(x[:BATCH], y[:BATCH])
        loss.backward()
        update()
        optimizer.zero_grad()
        truth.step(BATCH, loss)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(*rows().tensors, strict=True)


def stream(truth: Truth) -> None:
    model = mlp()
    loop(truth, DataLoader(Stream(), batch_size=BATCH), model, torch.optim.Adam(model.parameters()))


def ahead(truth: Truth) -> None:
    """Reads a batch ahead, as accelerate does to know the last one."""

    class Ahead:
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            source = iter(self.loader)
            held = next(source)
            for following in source:
                yield held
                held = following
            yield held

    model = mlp()
    loader = Ahead(DataLoader(rows(), BATCH, shuffle=True))
    loop(truth, loader, model, torch.optim.Adam(model.parameters()))


def pictures(truth: Truth) -> None:
    """Lists of tensors of different sizes, as detection has them; batches of dictionaries."""
    sizes = [(3, 4 + index % 5, 6) for index in range(96)]
    data = [{"image": torch.rand(size), "target": {"boxes": torch.rand(2, 4)}} for size in sizes]

    def collate(items: list[Any]) -> Any:
        return [each["image"] for each in items], [each["target"] for each in items]

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for images, _ in DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate):
        loss = torch.stack([model(each.mean().reshape(1, 1)) for each in images]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(len(images), loss)


def two_loaders(truth: Truth) -> None:
    """A few labelled rows and many without a label in each step; losses estimated with gradients on."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    few, many = (
        DataLoader(rows(160), 16, shuffle=True),
        DataLoader(rows(960), 96, shuffle=True, num_workers=1),
    )
    held = DataLoader(rows(320), BATCH)
    for epoch in range(10):
        for (x, y), (more, _) in zip(few, many, strict=True):
            output = model(torch.cat([x, more]))
            loss = nn.functional.mse_loss(output[: len(x)], y) + output[len(x) :].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # One of the loaders is known to train after two steps.
            truth.step(96, loss)
        if epoch % 2:
            for x, y in held:
                nn.functional.mse_loss(model(x), y)
                time.sleep(0.01)


def replay(truth: Truth) -> None:
    """Rows of an earlier task at every fourth step, by an iterator that outlives the epochs."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    earlier = iter(DataLoader(rows(3200), 8))
    for _ in range(EPOCHS):
        for step, (x, y) in enumerate(DataLoader(rows(), BATCH, shuffle=True)):
            if step % 4 == 3:
                more = next(earlier)
                x, y = torch.cat([x, more[0]]), torch.cat([y, more[1]])
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            truth.step(len(x) - 8 * (step % 4 == 3), loss)


class Slotted:
    """A batch that does not show its size."""

    __slots__ = ("x", "y")

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


def _odd(truth: Truth, collate: Any, parts: Any, **options: Any) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(
        rows(), BATCH, shuffle=True, collate_fn=lambda items: collate(*_stacked(items)), **options
    )
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            micro = parts(batch)
            total = 0.0
            for x, y in micro:
                loss = nn.functional.mse_loss(model(x), y) / len(micro)
                loss.backward()
                total += float(loss)
            optimizer.step()
            truth.step(sum(len(x) for x, _ in micro), total)


def _stacked(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def micro(truth: Truth) -> None:
    """Batches that are lists of micro-batches."""
    _odd(truth, lambda x, y: list(zip(x.split(8), y.split(8), strict=True)), lambda batch: batch)


def slotted(truth: Truth) -> None:
    _odd(truth, Slotted, lambda batch: [(batch.x, batch.y)], num_workers=2, persistent_workers=True)


def packed(truth: Truth) -> None:
    """Sequences of different lengths, packed: the first dimension is time and sample."""

    def pack(x: torch.Tensor, y: torch.Tensor) -> Any:
        lengths = [1 + index % 5 for index in range(len(x))]
        return nn.utils.rnn.pack_sequence([x[i].repeat(n, 1) for i, n in enumerate(lengths)], False), y

    def unpack(batch: Any) -> Any:
        padded, _ = nn.utils.rnn.pad_packed_sequence(batch[0], batch_first=True)
        return [(padded[:, 0], batch[1])]

    _odd(truth, pack, unpack)


def features_first(truth: Truth) -> None:
    """Features by samples, beside a number."""
    _odd(truth, lambda x, y: {"n": 20, "x": x.T.contiguous(), "y": y.T}, lambda b: [(b["x"].T, b["y"].T)])


def token_budget(truth: Truth) -> None:
    """Batches of different sizes, as a sampler with a limit of tokens makes them."""
    sizes = [8 + 4 * (index % 7) for index in range(50)]
    starts = [sum(sizes[:i]) for i in range(50)]
    batches: Any = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    model = mlp()
    loader = DataLoader(rows(1000), batch_sampler=batches, num_workers=2)
    loop(truth, loader, model, torch.optim.Adam(model.parameters()))


def two_backwards(truth: Truth) -> None:
    """Sharpness-aware: a second backward pass on the same batch, at other parameters."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x, y in DataLoader(rows(), BATCH, shuffle=True, drop_last=True):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            moves = [each.grad * 0.01 for each in model.parameters() if each.grad is not None]
            for each, move in zip(model.parameters(), moves, strict=True):
                each.add_(move)
        optimizer.zero_grad()
        second = nn.functional.mse_loss(model(x), y)
        second.backward()
        with torch.no_grad():
            for each, move in zip(model.parameters(), moves, strict=True):
                each.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        truth.step(len(x), (loss.detach() + second.detach()) / 2)


def gradients(truth: Truth) -> None:
    """Gradients of `torch.autograd.grad`, and parameters updated by hand."""
    model = mlp()
    parameters = list(model.parameters())
    for _ in range(EPOCHS):
        for x, y in DataLoader(rows(), BATCH, shuffle=True):
            loss = nn.functional.mse_loss(model(x), y)
            found = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for each, gradient in zip(parameters, found, strict=True):
                    each.sub_(0.01 * gradient)
            truth.step(len(x), loss)


def stages(truth: Truth) -> None:
    """A first stage with an optimizer of its own, and a slower second one."""
    for pause_s, epochs in ((0.0, 3), (0.002, 6)):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(epochs):
            for x, y in DataLoader(rows(), BATCH, shuffle=True):
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(pause_s)
                truth.step(len(x), loss)


def slices(truth: Truth) -> None:
    """Takes everything out of the loader once, and cuts batches itself."""
    x, y = next(iter(DataLoader(rows(), batch_size=ROWS)))
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(40):
        for at in range(0, ROWS, 50):
            loss = nn.functional.mse_loss(model(x[at : at + 50]), y[at : at + 50])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            truth.step(50, loss)


def whole_batches(truth: Truth) -> None:
    """A data set of whole batches behind a loader of single items."""

    class Batches(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 600

        def __getitem__(self, index: int) -> Any:
            x = torch.randn(BATCH, 20)
            return x, x[:, :1]

    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(Batches(), batch_size=1):
        loss = nn.functional.mse_loss(model(x[0]), y[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(BATCH, loss)


def rough(truth: Truth) -> None:
    """Closes all descriptors it does not know, and forks helpers."""
    os.closerange(3, 256)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    plain(truth)


def distributed(truth: Truth) -> None:
    """Two ranks of torchrun."""
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(mlp())
    data = rows(640)
    sampler: Any = torch.utils.data.DistributedSampler(data)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(data, BATCH, sampler=sampler):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(2 * len(x), loss)
    rank = torch.distributed.get_rank()
    # gloo's threads abort a rank whose peer has gone first.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    time.sleep(0.3)
    if rank:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def trainer(truth: Truth) -> None:
    """The Hugging Face Trainer, with accumulation and an evaluation in each epoch."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    class Sequences(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 320

        def __getitem__(self, index: int) -> Any:
            ids = torch.randint(100, (16,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": ids, "labels": int(ids[0] > 50)}

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    options = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        num_train_epochs=3,
        eval_strategy="epoch",
        logging_strategy="no",
        **options,
    )
    model = BertForSequenceClassification(BertConfig(vocab_size=100, **sizes))
    run = Trainer(model, arguments, train_dataset=Sequences(), eval_dataset=Sequences())
    run.train()
    truth.steps, truth.samples = run.state.global_step, 3 * 320
    truth.losses = [float(each.sum()) for each in model.parameters()]


def lightning(truth: Truth) -> None:
    """Lightning's Trainer, with a validation in each epoch."""
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = mlp()

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x), y)
            truth.step(len(x), loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", nn.functional.mse_loss(self.model(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    options = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False}
    run = framework.Trainer(max_epochs=EPOCHS, accelerator="cpu", **options)
    run.fit(Module(), DataLoader(rows(), BATCH, shuffle=True), DataLoader(rows(), BATCH))


def accelerated(truth: Truth) -> None:
    """accelerate's loop, with accumulation: its loader reads ahead, its optimizer skips steps."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    raw = mlp()
    model, optimizer, loader = accelerator.prepare(
        raw, torch.optim.Adam(raw.parameters()), DataLoader(rows(1024), BATCH, shuffle=True)
    )
    for _ in range(EPOCHS):
        losses = []
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if len(losses) == 2:
                truth.step(2 * BATCH, sum(losses) / 2)
                losses.clear()
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()


def fabric(truth: Truth) -> None:
    """Lightning Fabric's loop: it wraps model, optimizer and loader."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    raw = mlp()
    model, optimizer = fabric.setup(raw, torch.optim.Adam(raw.parameters()))
    loader = fabric.setup_dataloaders(DataLoader(rows(), BATCH, shuffle=True))
    for _ in range(EPOCHS):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            truth.step(len(x), loss)
        model.eval()
        with torch.no_grad():
            model(x)


class Shards(IterableDataset[Any]):
    """Samples in tar files, as webdataset has them: one stream a worker."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        mine = self._paths[worker.id :: worker.num_workers] if worker else self._paths
        for path in mine:
            with tarfile.open(path) as shard:
                for member in shard:
                    file = shard.extractfile(member)
                    assert file is not None
                    values = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
                    yield values[:20], values[20:]


def tars(truth: Truth) -> None:
    """A stream of samples from tar files, by two workers."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{i}.tar" for i in range(4)]
        for path in paths:
            with tarfile.open(path, "w") as shard:
                for i in range(250):
                    data = torch.randn(21).numpy().tobytes()
                    member = tarfile.TarInfo(f"{i}.bin")
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
        model = mlp()
        loader = DataLoader(Shards(paths), BATCH, num_workers=2)
        loop(truth, loader, model, torch.optim.Adam(model.parameters()))


def _hog(model: nn.Module) -> None:
    torch.manual_seed(os.getpid())
    loop(Truth(), DataLoader(rows(), BATCH), model, torch.optim.SGD(model.parameters(), 0.01))


def hogwild(truth: Truth) -> None:
    """Two processes that train the same shared model."""
    model = mlp().share_memory()
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=_hog, args=(model,)) for _ in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    truth.steps, truth.samples, truth.losses = 2 * EPOCHS * 32, 2 * EPOCHS * ROWS, [0.0]


def serve() -> None:
    """Runs what is asked for, each in a child that need not import torch again; says how each ended."""
    # The first optimizer imports it.
    importlib.import_module("torch._dynamo")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            train(line.strip())
            return
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


def train(kind: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    truth = Truth()
    globals()[kind](truth)
    truth.tell()


def main() -> None:
    if sys.argv[1:]:
        train(sys.argv[1])
    else:
        serve()


if __name__ == "__main__":
    main()
