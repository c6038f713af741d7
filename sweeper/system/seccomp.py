"""Hands system calls that change files to a supervisor before they are made (seccomp's user notification).

A thread installs the filter for itself and for whatever it starts. It needs no privileges, and most calls
are not affected: opening a file to read it, making a shared or temporary file, unlink, which ends the latter.

Source: https://man7.org/linux/man-pages/man2/seccomp_unotify.2.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType


def _numbers(text: str) -> Mapping[str, int]:
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


_X86_64 = _numbers("""
    open 2  truncate 76  chdir 80  rename 82  mkdir 83  creat 85  link 86  symlink 88  chmod 90  fchmod 91
    chown 92  fchown 93  lchown 94  utime 132  mknod 133  setxattr 188  lsetxattr 189  fsetxattr 190
    removexattr 197  lremovexattr 198  fremovexattr 199  utimes 235  openat 257  mkdirat 258  mknodat 259
    fchownat 260  futimesat 261  renameat 264  linkat 265  symlinkat 266  fchmodat 268  utimensat 280
    renameat2 316  rmdir 84  unlinkat 263  openat2 437  fchmodat2 452
""")
_AARCH64 = _numbers("""
    setxattr 5  lsetxattr 6  fsetxattr 7  removexattr 14  lremovexattr 15  fremovexattr 16  mknodat 33
    mkdirat 34  symlinkat 36  linkat 37  renameat 38  truncate 45  chdir 49  fchmod 52  fchmodat 53
    fchownat 54  fchown 55  openat 56  utimensat 88  renameat2 276  openat2 437  fchmodat2 452
""")
_REFUSED = {"io_uring_setup": 425, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469}
"""Calls that programs do without: queues of calls that pass the filter by, and new names for old calls."""
_IOCTL = {"x86_64": 16, "aarch64": 29}
_SET_FLAGS = (0x40086602, 0x40046602, 0x401C5820)
"""Requests that set flags of a file, such as those of chattr, on a descriptor that only reads."""
_OLD_CALLS = (
    *(15, 16, 30, 94, 95, 182, 198, 207, 212, 226, 227, 228, 235, 236, 237, 271, 298, 299, 306, 320, 412),
    *(425, 452, 463, 466, 469),
)
"""Calls of 32-bit programs on x86-64 that Landlock does not judge."""
_X32 = 0x40000000
"""Bit of calls with 32-bit pointers, which kernels are built without."""
_MACHINES = MappingProxyType({"x86_64": (0xC000003E, 317, _X86_64), "aarch64": (0xC00000B7, 277, _AARCH64)})

_FLAGS = {"open": 1, "openat": 2}
"""Which argument of a call that opens a file has its flags."""
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NEW_AND_NO_LINK = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
"""Flags of temporary files, and of shared memory, of which a loader's workers make several per batch."""

_SET_FILTER, _NEW_LISTENER, _NO_SLOWER_SPECULATION, _ONLY_KILLED_WHILE_WAITING = 1, 8, 4, 32
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_ALLOW, _NOTIFY, _FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NO_NEW_PRIVILEGES = 38
_NOTIFICATION = struct.Struct("=QII iIQ 6Q")
_RESPONSE = struct.Struct("=Q q i I")
_CONTINUE = 1
MAX_PATH = 4096

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that waits for an answer.

    Attributes:
        identity: The kernel's number for it.
        name: Its name, such as `openat`.
        pid: The thread that made it.
        arguments: Its six arguments as unsigned numbers; addresses are of the thread's memory.
    """

    identity: int
    name: str
    pid: int
    arguments: tuple[int, ...]

    def memory(self, address: int, size: int) -> bytes:
        """Returns up to `size` bytes of the caller's memory.

        Raises:
            OSError: It cannot be read.
        """
        descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)

    def text(self, argument: int) -> str:
        """Returns the text that an argument points to.

        Raises:
            OSError: It cannot be read.
        """
        return os.fsdecode(self.memory(self.arguments[argument], MAX_PATH).partition(b"\0")[0])


class CallListener:
    """Receives the calls of the processes below a filter.

    Attributes:
        descriptor: A descriptor to poll: it can be read if a call waits, and hangs up after the last process.
    """

    def __init__(self) -> None:
        """Installs the filter in the calling thread, for good.

        Raises:
            OSError: The kernel does not offer it, or a filter that hands on calls is installed already.
        """
        architecture, seccomp, calls = _MACHINES.get(platform.machine(), (0, 0, {}))
        if not architecture:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._names = {number: name for name, number in calls.items()}
        code = b"".join(_filter(architecture, calls))
        program = struct.pack(
            "=HxxxxxxQ", len(code) // 8, ctypes.addressof(text := ctypes.create_string_buffer(code))
        )
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        base_flags = _NEW_LISTENER | _NO_SLOWER_SPECULATION
        for flags in (base_flags | _ONLY_KILLED_WHILE_WAITING, base_flags):
            self.descriptor = int(_libc.syscall(seccomp, _SET_FILTER, flags, program))
            if self.descriptor >= 0:
                break
        del text
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def receive(self) -> Call | None:
        """Returns a call that waits; None if its thread was killed meanwhile."""
        buffer = ctypes.create_string_buffer(_NOTIFICATION.size)
        if self._control(_RECEIVE, buffer) < 0:
            return None
        identity, pid, _, number, _, _, *arguments = _NOTIFICATION.unpack(buffer.raw)
        return Call(identity, self._names[number], pid, tuple(arguments))

    def is_valid(self, call: Call) -> bool:
        """Returns whether a call still waits, so that what was read of its process is its own."""
        return self._control(_IS_VALID, ctypes.create_string_buffer(struct.pack("=Q", call.identity), 8)) == 0

    def let_go(self, call: Call) -> None:
        """Has the kernel make a call."""
        self._control(_SEND, ctypes.create_string_buffer(_RESPONSE.pack(call.identity, 0, 0, _CONTINUE)))

    def answer(self, call: Call, error: int = 0) -> None:
        """Ends a call without making it.

        Args:
            error: The error number that it fails with; 0 if it succeeded.
        """
        self._control(_SEND, ctypes.create_string_buffer(_RESPONSE.pack(call.identity, 0, -error, 0)))

    def close(self) -> None:
        """Closes the listener; calls that wait, and later ones, fail as if the kernel did not know them."""
        os.close(self.descriptor)

    def _control(self, request: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
        # Unlike `fcntl.ioctl`, this lets other threads run.
        return int(_libc.ioctl(self.descriptor, ctypes.c_ulong(request), buffer))


@cache
def is_available() -> bool:
    """Returns whether a filter that hands on calls can be installed; inside of another one, it cannot."""
    answers: list[bool] = []

    def attempt() -> None:
        # A filter stays as long as its thread.
        try:
            CallListener().close()
        except OSError:
            answers.append(False)
        else:
            answers.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return answers == [True]


def _filter(architecture: int, calls: Mapping[str, int]) -> Iterator[bytes]:
    """Yields the instructions of the filter: numbers of calls, and of some the flags."""
    yield _instruction(_LOAD, 4)
    other = list(_refuse(_OLD_CALLS, errno.EPERM))
    yield _instruction(_EQUAL, architecture, len(other) + 2, 0)
    yield _instruction(_LOAD, 0)
    yield from other
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_LOAD, 0)
    # What a loader calls for each file comes first.
    ioctl = [
        _instruction(_LOAD, 16 + 8),
        *_refuse(_SET_FLAGS, errno.EOPNOTSUPP),
        _instruction(_RETURN, _ALLOW),
    ]
    yield _instruction(_EQUAL, _IOCTL[platform.machine()], 0, len(ioctl))
    yield from ioctl
    for name, number in sorted(calls.items(), key=lambda call: call[0] not in _FLAGS):
        body = list(_opens_to_write(16 + 8 * _FLAGS[name])) if name in _FLAGS else []
        yield _instruction(_EQUAL, number, 0, len(body) + 1)
        yield from body
        yield _instruction(_RETURN, _NOTIFY)
    yield from _refuse(_REFUSED.values(), errno.ENOSYS)
    yield _instruction(_AT_LEAST, _X32, 0, 1)
    yield _instruction(_RETURN, _FAIL | errno.ENOSYS)
    yield _instruction(_RETURN, _ALLOW)


def _refuse(numbers: Iterable[int], error: int) -> Iterator[bytes]:
    """Yields instructions that make each of some numbers fail."""
    for number in numbers:
        yield _instruction(_EQUAL, number, 0, 1)
        yield _instruction(_RETURN, _FAIL | error)


def _opens_to_write(flags: int) -> Iterator[bytes]:
    """Yields instructions that allow a file to be opened unless it is to be written and may be a link.

    Args:
        flags: The offset of the flags.
    """
    harmless = (
        (_TO_WRITE, 0),
        (_NEW_AND_NO_LINK, _NEW_AND_NO_LINK),
        (os.O_CREAT | os.O_NOFOLLOW, os.O_NOFOLLOW),
    )
    for mask, value in harmless:
        yield _instruction(_LOAD, flags)
        yield _instruction(_AND, mask)
        yield _instruction(_EQUAL, value, 0, 1)
        yield _instruction(_RETURN, _ALLOW)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
