"""A TCP port for each running script, since every `torchrun` would bind port 29500."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

# Below the ports that the kernel gives away by itself (32768 on), and far from torch's own 29400 and 29500.
PORTS = range(23000, 25000)
VARIABLES = ("PET_MASTER_PORT", "MASTER_PORT")
"""What `torchrun` takes its `--master-port` from, and what `init_process_group` reads without it."""


@contextlib.contextmanager
def reserved_port() -> Iterator[int | None]:
    """Yields a port on which nobody listens, and which no other script gets meanwhile.

    It is reserved by the name of an abstract socket: unlike a port that is bound and let go again, the script
    can bind it, and the kernel releases the name with the process, however that ends. Such names and ports
    have the same scope, the network namespace. None where all are taken.
    """
    with contextlib.ExitStack() as held:
        for port in PORTS:
            if (claim := _claim(port)) is not None:
                if _is_free(port):
                    held.enter_context(claim)
                    yield port
                    return
                claim.close()
        yield None


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0sweeper-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_free(port: int) -> bool:
    """Returns whether a server can listen on a port, as torch's does: on all addresses."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError:
        return False
    return True
