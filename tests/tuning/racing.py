"""Two processes that train one model in shared memory, without locks."""

import random
import time

import torch
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank, model, together):
    system = random.SystemRandom()
    torch.manual_seed(1 + rank)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(512, 20, generator=generator)
    labels = (rows.sum(1) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        for batch, wanted in DataLoader(TensorDataset(rows, labels), batch_size=32, shuffle=True):
            # However busy the machine is, they meet at each step, and either may come first.
            together.wait()
            time.sleep(0.001 * system.random())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), wanted).backward()
            optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    shared = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)).share_memory()
    meeting = multiprocessing.Barrier(2)
    processes = [multiprocessing.Process(target=train, args=(rank, shared, meeting)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
