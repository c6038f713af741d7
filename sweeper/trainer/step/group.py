"""Trains on several devices: one process each, in lockstep (DistributedDataParallel).

rank 0 (the trial) ──byte per step──► rank 1, 2, ...   forked before anything touches a device
        ▲──── watches ────┘                            one that ends early takes the trial with it
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

CLOSE_SECONDS = 10.0
GRACE_SECONDS = 2.0
_FOLLOWER_IS_GONE = re.compile(r"closed by peer|Broken pipe|gloo|NCCL|ProcessGroup")


class Group:
    """The ranks of a trial; for a trial on one device, a group of one without other processes.

    Attributes:
        rank: This process's rank, 0 for the trial itself.
        size: Number of ranks.
    """

    def __init__(self, rank: int, size: int, store: Path) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._pids: list[int] = []
        self._step_pipes: list[int] = []
        self._closing = threading.Event()
        self._ending = threading.Lock()

    @classmethod
    def start(cls, size: int, follow: Callable[[Group, int], None]) -> Group:
        """Forks ranks 1 to `size - 1` to run `follow(group, step_pipe)`; returns rank 0's group.

        A follower takes a step for every byte that it reads from the pipe, and exits at its end.
        """
        folder = tempfile.mkdtemp(prefix="sweeper-group-") if size > 1 else ""
        group = cls(0, size, Path(folder) / "store")
        for rank in range(1, size):
            reads, writes = os.pipe()
            pid = os.fork()
            if pid == 0:
                for descriptor in (*group._step_pipes, writes):
                    os.close(descriptor)
                _run_follower(cls(rank, size, group._store), reads, follow)
            os.close(reads)
            group._pids.append(pid)
            group._step_pipes.append(writes)
        if size > 1:
            threading.Thread(target=group._watch, name="group", daemon=True).start()
        return group

    def connect(self, device: torch.device) -> None:
        """Joins the ranks: NCCL between GPUs, gloo between processes on a CPU."""
        if self.size == 1:
            return
        # All ranks are on this machine, so host names do not have to resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{self._store}",
            rank=self.rank,
            world_size=self.size,
        )

    def step_followers(self) -> None:
        """Makes every follower take a step; rank 0 takes its own right after."""
        for descriptor in self._step_pipes:
            os.write(descriptor, b".")

    def _watch(self) -> None:
        """Ends this process soon after a follower ends, instead of waiting for it forever."""
        descriptors = [os.pidfd_open(pid) for pid in self._pids]
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        poller.poll()
        # If all ranks fail, rank 0 reports the error.
        if not self._closing.wait(GRACE_SECONDS):
            self.end_like_follower()

    def end_like_follower(self) -> None:
        """Ends this process in the same way as the first follower that ended; returns if none has.

        The follower's last output is in their common log and shows the kind of failure.
        """
        # Not released by the thread that ends the process.
        self._ending.acquire()
        ended = {}
        for rank, pid in enumerate(self._pids, 1):
            has_ended, status = os.waitpid(pid, os.WNOHANG)
            if has_ended:
                ended[rank] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if not ended:
            self._ending.release()
            return
        # A killed rank comes first: others may have ended because of it.
        rank, number = max(ended.items(), key=lambda item: item[1])
        how = f" by {signal.Signals(number).name}" if number else " with an error"
        print(f"rank {rank} of {self.size} ended early{how}", flush=True)
        self._forget_store()
        if number:
            os.kill(os.getpid(), number)
            # It may be delivered to another thread, a moment later.
            time.sleep(1)
        os._exit(1)

    def end_if_follower_caused(self, error: Exception) -> None:
        """Ends this process like a follower if `error` is only a consequence of that follower's end."""
        deadline = time.monotonic() + GRACE_SECONDS
        while _FOLLOWER_IS_GONE.search(str(error)) and time.monotonic() < deadline:
            self.end_like_follower()
            time.sleep(0.01)

    def close(self) -> None:
        """Leaves the group together with the followers, and kills those that stay.

        NCCL ends a communicator on all ranks together: a rank that leaves alone would wait forever.
        """
        self._closing.set()
        for descriptor in self._step_pipes:
            os.close(descriptor)
        self._step_pipes = []
        deadline = time.monotonic() + CLOSE_SECONDS
        leaving = threading.Thread(target=leave, name="leave", daemon=True)
        leaving.start()
        while self._pids:
            for pid in list(self._pids):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._pids.remove(pid)
            time.sleep(0.005)
        # If a follower was killed, this rank would wait forever: the thread is left behind.
        leaving.join(max(0.0, deadline - time.monotonic()))
        if self.size > 1:
            self._forget_store()

    def _forget_store(self) -> None:
        shutil.rmtree(self._store.parent, ignore_errors=True)


def leave() -> None:
    """Leaves the process group, if any; returns once all of its ranks leave."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _run_follower(group: Group, step_pipe: int, follow: Callable[[Group, int], None]) -> NoReturn:
    status = 1
    try:
        follow(group, step_pipe)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
