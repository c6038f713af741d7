"""Reserves a TCP port for each running script, since every `torchrun` would bind port 29500."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

# Below the kernel's ephemeral ports (from 32768), and far from torch's own 29400 and 29500.
PORTS = range(23000, 25000)
PORT_VARIABLES = ("PET_MASTER_PORT", "MASTER_PORT")
"""Variables of torchrun's default `--master-port`, and of the port that `init_process_group` reads."""


@contextlib.contextmanager
def reserved_port() -> Iterator[int | None]:
    """Yields a free port that no other script gets meanwhile; None if all are taken.

    The name of an abstract socket reserves the port: the script can still bind the port itself, and
    the kernel releases the name when the process ends for any reason. Names and ports have the same
    scope, the network namespace.
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
    """Returns whether a server can listen on a port on all addresses, as torch's does."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError:
        return False
    return True
