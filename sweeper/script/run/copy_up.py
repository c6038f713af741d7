"""Copies a file into the script's mirror when the script is about to write it.

The script's processes wait in the system call meanwhile (`sweeper.system.seccomp`). Landlock then judges the
write; this only makes sure that what it is meant for lies in the mirror. Changes of modes, owners, times and
attributes, which Landlock does not judge, are made here, on the mirror alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sweeper.script.run.mirror import Mirror
from sweeper.system import landlock
from sweeper.system.seccomp import Call, CallListener

MAX_LINKS = 40
MAX_REFUSED = 100
_CURRENT = -100
_NO_FOLLOW, _EMPTY_PATH = 0x100, 0x1000
_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2


@dataclass(frozen=True, slots=True)
class _Where:
    """The arguments of a call that name a file.

    Attributes:
        folder: The argument with the descriptor of the folder that the path is relative to; None if there is
            none, which is the working directory.
        path: The argument with the path; None if `folder` is the file itself.
        follows: Whether a link at the end of the path is followed.
        flags: The argument with flags that say otherwise.
    """

    folder: int | None
    path: int | None
    follows: bool = True
    flags: int | None = None


_CONTENT = MappingProxyType(
    {
        "open": (_Where(None, 0),),
        "creat": (_Where(None, 0),),
        "openat": (_Where(0, 1),),
        "openat2": (_Where(0, 1),),
        "truncate": (_Where(None, 0),),
        "chdir": (_Where(None, 0),),
        "mkdir": (_Where(None, 0, follows=False),),
        "mkdirat": (_Where(0, 1, follows=False),),
        "mknod": (_Where(None, 0, follows=False),),
        "mknodat": (_Where(0, 1, follows=False),),
        "rmdir": (_Where(None, 0, follows=False),),
        "unlinkat": (_Where(0, 1, follows=False),),
        "symlink": (_Where(None, 1, follows=False),),
        "symlinkat": (_Where(1, 2, follows=False),),
        "rename": (_Where(None, 0, follows=False), _Where(None, 1, follows=False)),
        "renameat": (_Where(0, 1, follows=False), _Where(2, 3, follows=False)),
        "renameat2": (_Where(0, 1, follows=False), _Where(2, 3, follows=False)),
        "link": (_Where(None, 0, follows=False), _Where(None, 1, follows=False)),
        "linkat": (_Where(0, 1, follows=False), _Where(2, 3, follows=False)),
    }
)
"""Calls that Landlock judges."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A call that changes what Landlock does not judge; `make` makes it at another path to the same file."""

    where: _Where
    make: Callable[[Call, str], None]


def _mode(argument: int) -> Callable[[Call, str], None]:
    return lambda call, place: os.chmod(place, call.arguments[argument] & 0o7777)


def _owner(first: int) -> Callable[[Call, str], None]:
    def make(call: Call, place: str) -> None:
        user, group = (
            struct.unpack("=i", struct.pack("=Q", number)[:4])[0] for number in call.arguments[first:][:2]
        )
        os.chown(place, user, group)

    return make


def _times(argument: int, form: str, unit_ns: int) -> Callable[[Call, str], None]:
    """Returns what sets times.

    Args:
        form: The form of two times in the caller's memory.
        unit_ns: Nanoseconds of a time's second part; 0 if there is none.
    """

    def make(call: Call, place: str) -> None:
        address = call.arguments[argument]
        if not address:
            os.utime(place)
            return
        numbers = struct.unpack(form, call.memory(address, struct.calcsize(form)))
        if not unit_ns:
            os.utime(place, numbers)
            return
        before = os.stat(place)
        if unit_ns == 1 and _NOW in numbers[1::2]:
            os.utime(place)
        now = os.stat(place)
        pairs = ((before.st_atime_ns, now.st_atime_ns), (before.st_mtime_ns, now.st_mtime_ns))
        times = []
        for seconds, part, (old, new) in zip(numbers[::2], numbers[1::2], pairs, strict=True):
            special = {_NOW: new, _OMIT: old} if unit_ns == 1 else {}
            times.append(special.get(part, seconds * 10**9 + part * unit_ns))
        os.utime(place, ns=(times[0], times[1]))

    return make


def _set_attribute(call: Call, place: str) -> None:
    value = call.memory(call.arguments[2], size) if (size := call.arguments[3]) else b""
    os.setxattr(place, call.text(1), value, call.arguments[4])


def _remove_attribute(call: Call, place: str) -> None:
    os.removexattr(place, call.text(1))


_SECONDS, _TIMEVALS = "=qq", "=qqqq"
_CHANGES = MappingProxyType(
    {
        "chmod": _Change(_Where(None, 0), _mode(1)),
        "fchmod": _Change(_Where(0, None), _mode(1)),
        "fchmodat": _Change(_Where(0, 1), _mode(2)),
        "fchmodat2": _Change(_Where(0, 1, flags=3), _mode(2)),
        "chown": _Change(_Where(None, 0), _owner(1)),
        "lchown": _Change(_Where(None, 0, follows=False), _owner(1)),
        "fchown": _Change(_Where(0, None), _owner(1)),
        "fchownat": _Change(_Where(0, 1, flags=4), _owner(2)),
        "utime": _Change(_Where(None, 0), _times(1, _SECONDS, 0)),
        "utimes": _Change(_Where(None, 0), _times(1, _TIMEVALS, 1000)),
        "futimesat": _Change(_Where(0, 1), _times(2, _TIMEVALS, 1000)),
        "utimensat": _Change(_Where(0, 1, flags=3), _times(2, _TIMEVALS, 1)),
        "setxattr": _Change(_Where(None, 0), _set_attribute),
        "lsetxattr": _Change(_Where(None, 0, follows=False), _set_attribute),
        "fsetxattr": _Change(_Where(0, None), _set_attribute),
        "removexattr": _Change(_Where(None, 0), _remove_attribute),
        "lremovexattr": _Change(_Where(None, 0, follows=False), _remove_attribute),
        "fremovexattr": _Change(_Where(0, None), _remove_attribute),
    }
)


class CopyUp:
    """Answers the system calls of a script's processes in a background thread until all of them have exited.

    Args:
        listener: Where the calls arrive.
        mirror: The script's mirror.
        writable: Resolved folders and files that the script may write to; the mirror is among them.

    Attributes:
        refused: Places of the user's that the script tried to write and may not, in order.
    """

    def __init__(self, listener: CallListener, mirror: Mirror, writable: Sequence[Path]) -> None:
        self._listener, self._mirror = listener, mirror
        self._writable = tuple(f"{str(path).rstrip('/')}/" for path in writable)
        self._root = f"{mirror.root}/"
        self.refused: dict[str, None] = {}
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="sweeper-copy-up", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what the script's processes still want to write fails."""
        if self._waker >= 0:
            os.close(self._waker)
            self._thread.join()
            os.close(self._wake)
            self._waker = -1

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._listener.descriptor, select.POLLIN)
        poller.register(self._wake, 0)
        try:
            # The other end of the pipe is closed to end this; the listener hangs up after the last process.
            while (events := dict(poller.poll())) and self._wake not in events:
                if not events[self._listener.descriptor] & select.POLLIN:
                    break
                if (call := self._listener.receive()) is not None:
                    self._decide(call)
        finally:
            # What waits must not wait for ever.
            self._listener.close()

    def _decide(self, call: Call) -> None:
        """Answers a call."""
        if change := _CHANGES.get(call.name):
            error = errno.EPERM
            try:
                error = self._make(call, change)
            except OSError as failed:
                error = failed.errno or errno.EPERM
            except (ValueError, OverflowError, struct.error):
                error = errno.EINVAL
            self._listener.answer(call, error)
            return
        try:
            places = [self._prepare(call, where) for where in _CONTENT[call.name]]
            result = self._result(call, places)
        except (OSError, ValueError, struct.error):
            # Whatever went wrong, Landlock judges the call.
            result = errno.EACCES if _truncates_alone(call) else None
        if result is None:
            self._listener.let_go(call)
        else:
            self._listener.answer(call, result)

    def _result(self, call: Call, places: Sequence[str]) -> int | None:
        """Returns the result of a call that Landlock does not judge, or wrongly; None of all others."""
        if call.name == "truncate":
            return self._truncate(call, places[0])
        if _truncates_alone(call) and not self._may_write(os.path.realpath(places[0])):
            return errno.EACCES
        if landlock.version() < landlock.MOVES_SINCE and call.name in _MOVES:
            flags = _MOVES[call.name]
            if (flags is not None and call.arguments[flags]) or not all(map(self._may_write, places)):
                return None
            try:
                (os.rename if call.name.startswith("rename") else _link)(*places)
            except OSError as error:
                return error.errno or errno.EXDEV
            return 0
        return None

    def _truncate(self, call: Call, place: str) -> int:
        with contextlib.ExitStack() as at_the_end:
            try:
                descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
                at_the_end.callback(os.close, descriptor)
                link = f"/proc/self/fd/{descriptor}"
                if not self._may_write(os.readlink(link)):
                    return errno.EACCES
                os.truncate(link, call.arguments[1])
            except OverflowError:
                return errno.EINVAL
            except OSError as error:
                return error.errno or errno.EINVAL
        return 0

    # -- content ---------------------------------------------------------------------------------

    def _prepare(self, call: Call, where: _Where) -> str:
        """Makes sure that what a call is about to write lies in the mirror; returns its place."""
        assert where.path is not None
        flags = _flags(call)
        # A new file does not replace a link.
        follows = where.follows and flags & (os.O_CREAT | os.O_EXCL) != os.O_CREAT | os.O_EXCL
        start, path = _start(call, where), call.text(where.path)
        if not self._listener.is_valid(call):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        place = self._resolve(call, start, path, follows=follows, empty=bool(flags & os.O_TRUNC))
        if call.name != "chdir" and not self._may_write(place) and _would_change(call, place, flags):
            self._refuse(place)
        return place

    def _resolve(
        self, call: Call, start: str, path: str, *, follows: bool, empty: bool = False, content: bool = True
    ) -> str:
        """Returns where a path leads, once links that lead out of the mirror have become copies on the way.

        Args:
            empty: Whether the file at its end is about to be truncated.
            content: Whether its content is about to change, and not its mode and the like.
        """
        here = "/" if path.startswith("/") else start
        parts = path.split("/")[::-1]
        num_links = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                here = os.path.dirname(here)
                continue
            place = os.path.join(here, part)
            is_last = not any(parts)
            if is_last and not follows:
                return place
            try:
                target = f"/proc/{call.pid}" if place in _OWN_PROCESS else os.readlink(place)
            except OSError:
                here = place
                continue
            num_links += 1
            if num_links > MAX_LINKS:
                return place
            if self._leads_out(place, target):
                if not self._copy(place, empty=empty and is_last, content=content):
                    return os.path.realpath(os.path.join(place, *reversed(parts)))
                here = place
                continue
            here = "/" if target.startswith("/") else here
            parts.extend(target.split("/")[::-1])
        return here

    def _leads_out(self, link: str, target: str) -> bool:
        """Returns whether a link where the script may write leads to where it may not."""
        if not self._may_write(link) or link.startswith(("/proc/", "/dev/")):
            return False
        to = os.path.normpath(os.path.join(os.path.dirname(link), target))
        return not f"{to}/".startswith(self._root) and not self._may_write(os.path.realpath(to))

    def _may_write(self, place: str) -> bool:
        return f"{place}/".startswith(self._writable)

    def _copy(self, link: str, *, empty: bool, content: bool) -> bool:
        """Replaces a link by what it leads to; returns whether it was possible."""
        try:
            status = os.stat(link)
        except OSError:
            # By hand, the file would be made where the link leads.
            if not os.access(os.path.dirname(os.path.realpath(link)), os.W_OK):
                return False
            os.unlink(link)
            return True
        if stat.S_ISDIR(status.st_mode):
            return self._mirror.open_folder(link)
        # By hand, too, others could not be changed.
        is_own = not content and status.st_uid == os.geteuid()
        if not stat.S_ISREG(status.st_mode) or not (is_own or os.access(link, os.W_OK)):
            return False
        return self._mirror.copy_file(link, empty=empty)

    def _refuse(self, place: str) -> None:
        if len(self.refused) < MAX_REFUSED:
            self.refused.setdefault(place)

    # -- modes, owners, times, attributes --------------------------------------------------------

    def _make(self, call: Call, change: _Change) -> int:
        """Makes a change where the script may write; returns the number of the error that it fails with."""
        where = change.where
        path = "" if where.path is None or not call.arguments[where.path] else call.text(where.path)
        flags = 0 if where.flags is None else call.arguments[where.flags]
        if not path:
            if where.path is not None and call.arguments[where.path] and not flags & _EMPTY_PATH:
                return errno.ENOENT
            assert where.folder is not None
            # The descriptor may be of a file that has been removed, or of none.
            place = f"/proc/{call.pid}/fd/{_c_int(call.arguments[where.folder])}"
            name = os.readlink(place)
            # A link that is the end of a path has been followed when the file was opened.
            descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
        else:
            follows = where.follows and not flags & _NO_FOLLOW
            name = self._resolve(call, _start(call, where), path, follows=follows, content=False)
            kept = 0 if follows else os.O_NOFOLLOW
            descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC | kept)
        try:
            if not self._listener.is_valid(call):
                return errno.EINTR
            link = f"/proc/self/fd/{descriptor}"
            real = os.readlink(link)
            if real.startswith("/") and not real.startswith("/memfd:") and not self._may_write(real):
                if os.access(link, os.W_OK):
                    self._refuse(real)
                return errno.EACCES
            change.make(call, link)
        finally:
            os.close(descriptor)
        return 0


def _flags(call: Call) -> int:
    """Returns the flags with which a file is opened; 0 if the call opens none."""
    if call.name == "creat":
        return os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    if call.name == "openat2":
        return int(struct.unpack("=Q", call.memory(call.arguments[2], 8))[0])
    return {"open": call.arguments[1], "openat": call.arguments[2]}.get(call.name, 0)


def _truncates_alone(call: Call) -> bool:
    """Returns whether a call truncates a file without opening it to write, which Landlock does not judge."""
    with contextlib.suppress(OSError):
        flags = _flags(call)
        return call.name == "truncate" or (bool(flags & os.O_TRUNC) and not flags & (os.O_WRONLY | os.O_RDWR))
    return True


def _start(call: Call, where: _Where) -> str:
    """Returns the folder that a path is relative to."""
    folder = _CURRENT if where.folder is None else _c_int(call.arguments[where.folder])
    return os.readlink(f"/proc/{call.pid}/cwd" if folder == _CURRENT else f"/proc/{call.pid}/fd/{folder}")


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)


_MOVES: Mapping[str, int | None] = MappingProxyType(
    {"rename": None, "renameat": None, "renameat2": 4, "link": None, "linkat": 4}
)
"""Calls that give a file another folder, and which argument has flags that say how."""

_OWN_PROCESS = ("/proc/self", "/proc/thread-self")


def _c_int(number: int) -> int:
    """Returns an argument as the C int that it is."""
    return int(struct.unpack("=i", struct.pack("=Q", number)[:4])[0])


def _would_change(call: Call, place: str, flags: int) -> bool:
    """Returns whether a call would change something by hand, as far as modes tell."""
    if call.name.startswith(("mkdir", "mknod")) and os.path.lexists(place):
        return False
    if os.path.lexists(place) and call.name.startswith(("open", "creat", "truncate")):
        return os.access(place, os.W_OK) and bool(
            flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC) or call.name in ("creat", "truncate")
        )
    return os.access(os.path.dirname(place), os.W_OK)
