"""Ways to write to what is the user's: `python ways.py NAME...`, `python ways.py all`, or `--list`.

It is also the training script of the project that folder.py makes, and runs in that folder, by itself:
standard library, and numpy, torch and the rest only in the ways that need them.

A way gets a path of its own below the current folder: an existing file `files/NAME`, an existing folder
`folders/NAME` (a.txt, sub/b.txt), or a free name `new/NAME`. It returns the file in which its text is to be
found, if there is one. Each says in one line what became of it:

    way NAME: wrote
    way NAME: refused: PermissionError: ...
    way NAME: skipped: why

After the word `train`, a tiny model is trained, for WAYS_EPOCHS epochs (200).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import errno
import fcntl
import importlib
import mmap
import os
import platform
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TEXT = b"written by a way\n"
START = os.getcwd()
DAEMON_SECONDS = 0.5
RACE_SECONDS = float(os.environ.get("RACE_SECONDS", "1"))
AT_FDCWD, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = -100, 0x400, 0x1000

Way = Callable[[str], "str | None"]
WAYS: dict[str, Way] = {}
TAGS: dict[str, frozenset[str]] = {}
LATER = "\0later"
"""What a way returns whose line is printed later."""

libc = ctypes.CDLL(None, use_errno=True)


class Skipped(Exception):  # noqa: N818
    """What a way needs is not here."""


def way(*tags: str) -> Callable[[Way], Way]:
    """A way, under the function's name.

    Tags:
        folder, new: What it is given, rather than a file.
        absolute: It goes by a path outside the current folder, to the originals.
        either: Whether a guard redirects or refuses it is the guard's matter.
        unsure: Even without a guard it may be refused or skipped: the kernel, rights, a missing module.
        torch: It imports torch.
        late: It writes when the script has ended.
        large: It needs the large folders in full.
        allowed: It writes where a script may.
    """

    def add(function: Way) -> Way:
        WAYS[function.__name__] = function
        TAGS[function.__name__] = frozenset(tags)
        return function

    return add


def target_of(name: str) -> str:
    """The path that a way is given."""
    place = next(
        (place for tag, place in (("folder", "folders"), ("new", "new")) if tag in TAGS[name]), "files"
    )
    return f"{place}/{name}"


def original(path: str) -> str:
    """The absolute path, of the user's own, as his configuration has it."""
    lines = dict(line.split(": ", 1) for line in Path("config.yaml").read_text().splitlines())
    return os.path.join(lines["folder"], path)


def data(name: str) -> str:
    lines = dict(line.split(": ", 1) for line in Path("config.yaml").read_text().splitlines())
    return os.path.join(lines["data"], name)


def write(path: str | bytes | Path | int, mode: str = "ab", **options) -> None:
    with open(path, mode, **options) as file:
        file.write(TEXT)


def write_to(descriptor: int) -> None:
    os.write(descriptor, TEXT)
    os.close(descriptor)


def checked(result: int) -> int:
    """The result of a C function, or the error it left."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments) -> int:
    """A system call by its number on x86-64, or by one that all machines share."""
    if number < 424 and platform.machine() != "x86_64":
        raise Skipped("the number is one of x86-64")
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    libc.syscall.restype = ctypes.c_long
    return checked(libc.syscall(ctypes.c_long(number), *words))


def tool(*command: str, **options) -> None:
    """Runs a program, and raises what it has to say if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    except FileNotFoundError as error:
        if shutil.which(command[0]):
            raise
        raise Skipped(f"no {command[0]}") from error
    if result.returncode:
        raise RuntimeError(f"{command[0]} ended with {result.returncode}: {result.stderr.strip()}")


def in_child(function: Callable[[], object]) -> None:
    """Has a forked child do it, and raises what was raised there."""
    said, says = os.pipe()
    child = os.fork()
    if not child:
        text = ""
        try:
            function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(says, text.encode(errors="replace"))
            os._exit(bool(text))
    os.close(says)
    with open(said, "rb") as file:
        text = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise RuntimeError(text or f"the child ended with {status}")


def module(name: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(f"no {name}") from error


# Python's open.


@way()
def open_w(target):
    write(target, "wb")
    return target


@way()
def open_a(target):
    write(target, "ab")
    return target


@way()
def open_r_plus(target):
    write(target, "r+b")
    return target


@way()
def open_w_plus(target):
    write(target, "w+b")
    return target


@way()
def open_a_plus(target):
    write(target, "a+b")
    return target


@way("new")
def open_x(target):
    write(target, "xb")
    return target


@way("new")
def open_w_new(target):
    write(target, "wb")
    return target


@way()
def open_unbuffered(target):
    write(target, "r+b", buffering=0)
    return target


@way()
def open_nothing_written(target):
    open(target, "wb").close()


@way()
def path_write_text(target):
    Path(target).write_text(TEXT.decode())
    return target


@way()
def path_touch(target):
    Path(target).touch()


@way()
def print_to_file(target):
    with open(target, "a") as file:
        print(TEXT.decode(), file=file)
    return target


@way()
def fileinput_inplace(target):
    fileinput = module("fileinput")
    with fileinput.input(target, inplace=True) as lines:
        for line in lines:
            print(line.upper(), TEXT.decode())
    return target


@way()
def open_after_read(target):
    with open(target, "rb") as first:
        first.read(1)
        write(target, "wb")
    return target


@way()
def open_twice(target):
    with open(target, "ab") as first, open(target, "ab") as second:
        first.write(TEXT)
        second.write(TEXT)
    return target


@way()
def opener(target):
    write(target, "r+b", opener=lambda path, flags: os.open(path, flags))
    return target


# os.open.


@way()
def os_open_wronly(target):
    write_to(os.open(target, os.O_WRONLY))
    return target


@way()
def os_open_rdwr(target):
    write_to(os.open(target, os.O_RDWR))
    return target


@way()
def os_open_append(target):
    write_to(os.open(target, os.O_WRONLY | os.O_APPEND))
    return target


@way()
def os_open_trunc(target):
    write_to(os.open(target, os.O_WRONLY | os.O_TRUNC))
    return target


@way()
def os_open_trunc_read_only(target):
    # It truncates, although nothing can be written by it.
    os.close(os.open(target, os.O_RDONLY | os.O_TRUNC))
    if os.stat(target).st_size:
        raise OSError("not truncated")


@way()
def os_open_creat(target):
    write_to(os.open(target, os.O_WRONLY | os.O_CREAT))
    return target


@way("new")
def os_open_creat_excl(target):
    write_to(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return target


@way("new")
def os_open_creat_read_only(target):
    os.close(os.open(target, os.O_RDONLY | os.O_CREAT))


@way()
def os_open_sync(target):
    write_to(
        os.open(target, os.O_WRONLY | os.O_SYNC | os.O_DSYNC | os.O_NOCTTY | os.O_NONBLOCK | os.O_LARGEFILE)
    )
    return target


@way("unsure")
def os_open_direct(target):
    descriptor = os.open(target, os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as page:
        page[: len(TEXT)] = TEXT
        os.write(descriptor, page)
    os.close(descriptor)
    return target


@way("either")
def os_open_nofollow(target):
    write_to(os.open(target, os.O_WRONLY | os.O_NOFOLLOW))
    return target


@way("either")
def os_open_path_reopened(target):
    descriptor = os.open(target, os.O_PATH)
    write(f"/proc/self/fd/{descriptor}", "r+b")
    os.close(descriptor)


@way("new", "unsure")
def o_tmpfile_linkat(target):
    descriptor = os.open(os.path.dirname(target), os.O_TMPFILE | os.O_RDWR)
    os.write(descriptor, TEXT)
    source = f"/proc/self/fd/{descriptor}".encode()
    checked(libc.linkat(AT_FDCWD, source, AT_FDCWD, target.encode(), AT_SYMLINK_FOLLOW))
    os.close(descriptor)
    return target


@way()
def pwrite(target):
    descriptor = os.open(target, os.O_RDWR)
    os.pwrite(descriptor, TEXT, 3)
    os.close(descriptor)
    return target


@way()
def writev(target):
    descriptor = os.open(target, os.O_RDWR)
    os.writev(descriptor, [TEXT, TEXT])
    os.pwritev(descriptor, [TEXT], 100)
    os.close(descriptor)
    return target


# C's functions and system calls.


@way()
def c_fopen_append(target):
    libc.fopen.restype = ctypes.c_void_p
    stream = libc.fopen(target.encode(), b"a")
    checked(0 if stream else -1)
    libc.fwrite(TEXT, 1, len(TEXT), ctypes.c_void_p(stream))
    libc.fclose(ctypes.c_void_p(stream))
    return target


@way()
def c_fopen_update(target):
    libc.fopen.restype = ctypes.c_void_p
    stream = libc.fopen(target.encode(), b"r+")
    checked(0 if stream else -1)
    libc.fwrite(TEXT, 1, len(TEXT), ctypes.c_void_p(stream))
    libc.fclose(ctypes.c_void_p(stream))
    return target


@way()
def c_open(target):
    write_to(checked(libc.open(target.encode(), os.O_WRONLY)))
    return target


@way()
def c_creat(target):
    write_to(checked(libc.creat(target.encode(), 0o644)))
    return target


@way()
def c_truncate(target):
    checked(libc.truncate(target.encode(), ctypes.c_long(3)))


@way()
def c_ftruncate(target):
    descriptor = os.open(target, os.O_WRONLY)
    checked(libc.ftruncate(descriptor, ctypes.c_long(3)))
    os.close(descriptor)


@way()
def syscall_open(target):
    write_to(syscall(2, target.encode(), os.O_WRONLY, 0))
    return target


@way()
def syscall_openat(target):
    write_to(syscall(257, AT_FDCWD, target.encode(), os.O_WRONLY | os.O_APPEND, 0))
    return target


@way()
def syscall_creat(target):
    write_to(syscall(85, target.encode(), 0o644))
    return target


@way("either")
def syscall_openat2(target):
    how = struct.pack("QQQ", os.O_WRONLY, 0, 0)
    write_to(syscall(437, AT_FDCWD, target.encode(), how, len(how)))
    return target


@way()
def syscall_truncate(target):
    syscall(76, target.encode(), 5)


@way()
def path_at_the_end_of_a_page(target):
    # Whoever reads the path of another process may not read past its end.
    libc.mmap.restype = ctypes.c_void_p
    size = mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = libc.mmap(None, ctypes.c_size_t(2 * size), 3, flags, -1, ctypes.c_long(0))
    checked(libc.munmap(ctypes.c_void_p(pages + size), ctypes.c_size_t(size)))
    path = target.encode() + b"\0"
    ctypes.memmove(pages + size - len(path), path, len(path))
    descriptor = libc.open(ctypes.c_void_p(pages + size - len(path)), os.O_WRONLY)
    checked(libc.munmap(ctypes.c_void_p(pages), ctypes.c_size_t(size)))
    write_to(checked(descriptor))
    return target


@way()
def path_of_4000_bytes(target):
    write("./" * 1950 + target)
    return target


@way()
def path_with_many_slashes(target):
    write(".//./" + target.replace("/", "///"))
    return target


@way("unsure", "either")
def open_by_handle(target):
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int()
    syscall(303, AT_FDCWD, target.encode(), handle, ctypes.byref(mount), AT_SYMLINK_FOLLOW)
    kept = os.open(target, os.O_RDONLY)
    write_to(syscall(304, kept, handle, os.O_WRONLY))
    os.close(kept)
    return target


# io_uring: what is asked for through it never is a system call of its own.


def uring(
    opcode: int, descriptor: int, address: int, length: int, offset: int, flags: int, third: int = 0
) -> int:
    """Has the kernel do one operation through a ring, and returns its result."""
    parameters = ctypes.create_string_buffer(120)
    ring = syscall(425, 2, parameters)
    try:
        words = struct.unpack("30I", parameters.raw)
        sq, cq = words[10:18], words[20:28]
        with (
            mmap.mmap(ring, sq[6] + 4 * words[0], offset=0) as submissions,
            mmap.mmap(ring, cq[5] + 16 * words[1], offset=0x8000000) as completions,
            mmap.mmap(ring, 64 * words[0], offset=0x10000000) as entries,
        ):
            entry = struct.pack(
                "<BBHiQQIIQHHiQQ", opcode, 0, 0, descriptor, offset, address, length, flags, *[0] * 6
            )
            entries[:64] = entry[:48] + struct.pack("<QQ", third, 0)
            submissions[sq[6] : sq[6] + 4] = struct.pack("I", 0)
            submissions[sq[1] : sq[1] + 4] = struct.pack("I", 1)
            syscall(426, ring, 1, 1, 1, None, 0)
            (result,) = struct.unpack_from("<i", completions, cq[5] + 8)
    finally:
        os.close(ring)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def place_of(text: ctypes.Array) -> int:
    return ctypes.addressof(text)


@way("unsure", "either")
def io_uring_openat(target):
    path = ctypes.create_string_buffer(target.encode())
    write_to(uring(18, AT_FDCWD, place_of(path), 0o644, 0, os.O_WRONLY))
    return target


@way("unsure", "either")
def io_uring_unlinkat(target):
    path = ctypes.create_string_buffer(target.encode())
    uring(36, AT_FDCWD, place_of(path), 0, 0, 0)


@way("unsure", "either")
def io_uring_setxattr(target):
    path, name, value = (ctypes.create_string_buffer(text) for text in (target.encode(), b"user.way", TEXT))
    uring(42, 0, place_of(name), len(TEXT), place_of(value), 0, place_of(path))


@way("unsure", "either")
def io_uring_fsetxattr(target):
    name, value = (ctypes.create_string_buffer(text) for text in (b"user.way", TEXT))
    descriptor = os.open(target, os.O_RDONLY)
    uring(41, descriptor, place_of(name), len(TEXT), place_of(value), 0)
    os.close(descriptor)


# Other calling conventions: a filter that looks at the number alone takes them for other calls.


def call_32(number: int, path: bytes, second: int) -> None:
    """A system call of 32-bit programs, by `int 0x80`."""
    if platform.machine() != "x86_64":
        raise Skipped("x86-64 alone has it")
    # push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; pop rbx; ret
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("5389f889f389d1cd805bc3"))
    map_32bit = 0x40
    low = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_32bit)
    low.write(path + b"\0")
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_int)(
        ctypes.addressof(ctypes.c_char.from_buffer(code))
    )
    result = call(number, ctypes.addressof(ctypes.c_char.from_buffer(low)), second)
    if result < 0:
        raise OSError(-result, os.strerror(-result))


@way("unsure", "either")
def call_32_open(target):
    # A kernel without it ends the process.
    in_child(lambda: call_32(5, target.encode(), os.O_WRONLY | os.O_TRUNC))


@way("unsure", "either")
def call_32_chmod(target):
    in_child(lambda: call_32(15, target.encode(), 0o600))


@way("unsure", "either")
def call_x32_chmod(target):
    syscall(0x40000000 | 90, target.encode(), 0o600)


# Memory.


@way()
def mmap_shared(target):
    with open(target, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[: len(TEXT)] = TEXT
    return target


@way()
def mmap_after_close(target):
    descriptor = os.open(target, os.O_RDWR)
    memory = mmap.mmap(descriptor, 0)
    os.close(descriptor)
    memory[: len(TEXT)] = TEXT
    memory.close()
    return target


@way()
def mmap_in_child(target):
    with open(target, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        in_child(lambda: memory.write(TEXT))
    return target


@way()
def mmap_large(_target):
    with open("big.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[2**21 : 2**21 + len(TEXT)] = TEXT
    return "big.bin"


@way("unsure", "either")
def mprotect_of_a_read_only_map(target):
    # The kernel lets nobody: the descriptor is read-only.
    descriptor = os.open(target, os.O_RDONLY)
    libc.mmap.restype = ctypes.c_void_p
    memory = ctypes.c_void_p(
        libc.mmap(None, ctypes.c_size_t(4096), 1, mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
    )
    os.close(descriptor)
    checked(libc.mprotect(memory, ctypes.c_size_t(4096), 3))
    ctypes.memmove(memory, TEXT, len(TEXT))
    return target


# Room, and bytes from elsewhere.


@way()
def os_truncate(target):
    os.truncate(target, 3)


@way()
def os_truncate_longer(target):
    os.truncate(target, 100_000)


@way("unsure")
def posix_fallocate(target):
    descriptor = os.open(target, os.O_RDWR)
    os.posix_fallocate(descriptor, 0, 100_000)
    os.close(descriptor)


@way("unsure")
def fallocate_hole(target):
    descriptor = os.open(target, os.O_RDWR)
    keep_size, punch_hole = 1, 2
    checked(libc.fallocate(descriptor, keep_size | punch_hole, ctypes.c_long(0), ctypes.c_long(10)))
    os.close(descriptor)


@way("unsure")
def copy_file_range(target):
    with open("notes.txt", "rb") as source, open(target, "r+b") as file:
        os.copy_file_range(source.fileno(), file.fileno(), 10)


@way()
def sendfile(target):
    with open("notes.txt", "rb") as source, open(target, "r+b") as file:
        os.sendfile(file.fileno(), source.fileno(), 0, 10)


@way()
def splice(target):
    reads, writes = os.pipe()
    os.write(writes, TEXT)
    with open(target, "r+b") as file:
        os.splice(reads, file.fileno(), len(TEXT))
    os.close(reads)
    os.close(writes)
    return target


# Names.


@way()
def unlink(target):
    os.unlink(target)


@way()
def unlink_and_write(target):
    os.unlink(target)
    write(target, "xb")
    return target


@way("folder")
def rmdir(target):
    os.unlink(f"{target}/sub/b.txt")
    os.rmdir(f"{target}/sub")


@way("new")
def mkdir(target):
    os.mkdir(target)


@way("new")
def makedirs(target):
    os.makedirs(f"{target}/a/b")
    write(f"{target}/a/b/c.txt")
    return f"{target}/a/b/c.txt"


@way()
def rename_file(target):
    os.rename(target, f"new/{os.path.basename(target)}")


@way("folder")
def rename_folder(target):
    os.rename(target, f"{target}.old")
    os.mkdir(target)
    write(f"{target}.old/a.txt")
    return f"{target}.old/a.txt"


@way("folder")
def rename_folder_elsewhere(target):
    os.rename(f"{target}/sub", f"new/{os.path.basename(target)}")


@way()
def replace_over(target):
    write(f"{target}.tmp", "xb")
    os.replace(f"{target}.tmp", target)
    return target


@way()
def replace_each_other(target):
    os.replace("pair_c", target)


@way("unsure", "either")
def rename_exchange(target):
    other = f"{target}.other"
    write(other)
    syscall(316, AT_FDCWD, target.encode(), AT_FDCWD, other.encode(), 2)
    return target


@way("unsure", "either")
def rename_noreplace(target):
    syscall(316, AT_FDCWD, target.encode(), AT_FDCWD, f"new/{os.path.basename(target)}".encode(), 1)


@way("new")
def symlink_made(target):
    os.symlink("../notes.txt", target)


@way("new")
def symlink_made_and_written_through(target):
    os.symlink("../files/symlink_target", target)
    write(target)
    return target


@way()
def link_made(target):
    os.link(target, f"new/{os.path.basename(target)}")


@way("either")
def link_made_and_written_through(target):
    other = f"new/{os.path.basename(target)}"
    checked(libc.linkat(AT_FDCWD, target.encode(), AT_FDCWD, other.encode(), AT_SYMLINK_FOLLOW))
    write(other, "r+b")
    return target


@way("either")
def link_out(target):
    # To a folder where a script may write, and through it.
    other = os.path.expanduser(f"~/.cache/torch/link_out_{os.getpid()}")
    checked(libc.linkat(AT_FDCWD, target.encode(), AT_FDCWD, other.encode(), AT_SYMLINK_FOLLOW))
    write(other, "r+b")
    return target


@way("either")
def link_of_a_descriptor(target):
    descriptor = os.open(target, os.O_RDONLY)
    other = f"new/{os.path.basename(target)}".encode()
    source = f"/proc/self/fd/{descriptor}".encode()
    checked(libc.linkat(AT_FDCWD, source, AT_FDCWD, other, AT_SYMLINK_FOLLOW))
    os.close(descriptor)
    write(other, "r+b")
    return target


@way("unsure", "either")
def link_of_a_descriptor_by_no_path(target):
    descriptor = os.open(target, os.O_RDONLY)
    other = f"new/{os.path.basename(target)}".encode()
    checked(libc.linkat(descriptor, b"", AT_FDCWD, other, AT_EMPTY_PATH))
    os.close(descriptor)
    write(other, "r+b")
    return target


@way("new")
def link_in(target):
    source = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"link_in_{os.getpid()}")
    write(source)
    try:
        os.link(source, target)
    except OSError as error:
        # Another file system.
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
    finally:
        os.unlink(source)
    write(target)
    return target


@way("new")
def fifo(target):
    os.mkfifo(target)


@way("new")
def mknod(target):
    os.mknod(target, stat.S_IFREG | 0o644)


@way("new")
def unix_socket(target):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(target)


@way()
def dir_fd_write(target):
    folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    write_to(os.open(os.path.basename(target), os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    return target


@way()
def dir_fd_unlink(target):
    folder = os.open(os.path.dirname(target), os.O_PATH | os.O_DIRECTORY)
    os.unlink(os.path.basename(target), dir_fd=folder)
    os.close(folder)


@way("folder")
def dir_fd_mkdir(target):
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("made", dir_fd=folder)
    os.rename("a.txt", "made/a.txt", src_dir_fd=folder, dst_dir_fd=folder)
    os.close(folder)


# Modes, owners, times, attributes.


@way()
def chmod(target):
    os.chmod(target, 0o600)


@way("folder", "either")
def chmod_folder(target):
    os.chmod(target, 0o700)


@way("either")
def fchmod_read_only(target):
    descriptor = os.open(target, os.O_RDONLY)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)


@way("either")
def chmod_by_descriptor_path(target):
    descriptor = os.open(target, os.O_PATH)
    os.chmod(f"/proc/self/fd/{descriptor}", 0o600)
    os.close(descriptor)


@way()
def chmod_dir_fd(target):
    folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    os.chmod(os.path.basename(target), 0o600, dir_fd=folder)
    os.close(folder)


@way("unsure", "either")
def fchmodat2_of_a_descriptor(target):
    descriptor = os.open(target, os.O_RDONLY)
    syscall(452, descriptor, b"", 0o600, AT_EMPTY_PATH)
    os.close(descriptor)


@way()
def chown(target):
    os.chown(target, os.getuid(), os.getgid())


@way("either")
def lchown(target):
    os.lchown(target, os.getuid(), os.getgid())


@way("either")
def fchown_read_only(target):
    descriptor = os.open(target, os.O_RDONLY)
    os.fchown(descriptor, os.getuid(), os.getgid())
    os.close(descriptor)


@way("unsure", "either")
def fchownat_of_a_path_descriptor(target):
    descriptor = os.open(target, os.O_PATH)
    syscall(260, descriptor, b"", os.getuid(), os.getgid(), AT_EMPTY_PATH)
    os.close(descriptor)


@way()
def utime(target):
    os.utime(target, (1, 1))


@way()
def utime_now(target):
    os.utime(target)


@way()
def utime_of_access_alone(target):
    utime_omit = (1 << 30) - 2
    times = struct.pack("qqqq", 1, 0, 0, utime_omit)
    checked(libc.utimensat(AT_FDCWD, target.encode(), times, 0))


@way("either")
def futimens_read_only(target):
    descriptor = os.open(target, os.O_RDONLY)
    os.utime(descriptor, (1, 1))
    os.close(descriptor)


@way("folder", "either")
def utime_folder(target):
    os.utime(target, (1, 1))


@way("either")
def syscall_utime(target):
    syscall(132, target.encode(), struct.pack("qq", 1, 1))


@way("either")
def syscall_utimes(target):
    syscall(235, target.encode(), struct.pack("qqqq", 1, 0, 1, 0))


@way("either")
def syscall_futimesat(target):
    syscall(261, AT_FDCWD, target.encode(), struct.pack("qqqq", 1, 0, 1, 0))


@way("unsure")
def setxattr(target):
    os.setxattr(target, "user.way", TEXT)


@way("unsure")
def fsetxattr(target):
    descriptor = os.open(target, os.O_RDONLY)
    os.setxattr(descriptor, "user.way", TEXT)
    os.close(descriptor)


@way("unsure", "either")
def setxattrat(target):
    value = ctypes.create_string_buffer(TEXT)
    given = struct.pack("QII", place_of(value), len(TEXT), 0)
    syscall(463, AT_FDCWD, target.encode(), 0, b"user.way", given, len(given))


@way("unsure")
def removexattr(_target):
    os.removexattr("with_xattr.txt", "user.theirs")


@way("unsure", "either")
def access_list(target):
    # Owner, a user, the group, the mask, others: version 2 of the kernel's format.
    entries = (
        (1, 6, 2**32 - 1),
        (2, 4, os.getuid()),
        (4, 4, 2**32 - 1),
        (16, 4, 2**32 - 1),
        (32, 0, 2**32 - 1),
    )
    given = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(target, "system.posix_acl_access", given)


@way("unsure", "either")
def ioctl_set_flags(target):
    # `chattr +d`, by a read-only descriptor.
    descriptor = os.open(target, os.O_RDONLY)
    flags = array.array("l", [0])
    fcntl.ioctl(descriptor, 0x80086601, flags)
    flags[0] |= 0x40
    fcntl.ioctl(descriptor, 0x40086602, flags)
    os.close(descriptor)


@way("unsure", "either")
def ioctl_set_extended_flags(target):
    descriptor = os.open(target, os.O_RDONLY)
    given = bytearray(28)
    fcntl.ioctl(descriptor, 0x801C581F, given)
    struct.pack_into("I", given, 0, struct.unpack_from("I", given)[0] | 0x80)
    fcntl.ioctl(descriptor, 0x401C5820, given)
    os.close(descriptor)


@way("unsure", "either")
def file_setattr(target):
    given = ctypes.create_string_buffer(24)
    syscall(468, AT_FDCWD, target.encode(), given, 24, 0)
    struct.pack_into("Q", given, 0, struct.unpack_from("Q", given)[0] | 0x80)
    syscall(469, AT_FDCWD, target.encode(), given, 24, 0)


# Formats.


@way()
def sqlite_rollback(_target):
    sqlite3 = module("sqlite3")
    with contextlib.closing(sqlite3.connect("store.db")) as store, store:
        store.execute("INSERT INTO rows VALUES (1, 'rollback')")


@way()
def sqlite_wal(_target):
    sqlite3 = module("sqlite3")
    with contextlib.closing(sqlite3.connect("store_wal.db")) as store, store:
        store.execute("INSERT INTO rows VALUES (2, 'wal')")


@way()
def sqlite_turned_to_wal(_target):
    sqlite3 = module("sqlite3")
    with contextlib.closing(sqlite3.connect("store_turned.db")) as store, store:
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("INSERT INTO rows VALUES (3, 'turned')")


@way("unsure")
def h5py_append(_target):
    h5py = module("h5py")
    with h5py.File("table.h5", "a") as file:
        file.create_dataset("way", data=[1, 2, 3])


@way()
def numpy_memmap(_target):
    numpy = module("numpy")
    table = numpy.load("table.npy", mmap_mode="r+")
    table[0] += 1
    table.flush()


@way()
def numpy_save(_target):
    numpy = module("numpy")
    numpy.save("saved.npy", numpy.ones(10))


@way()
def numpy_savez(_target):
    numpy = module("numpy")
    numpy.savez("saved.npz", rows=numpy.ones(10))


@way()
def numpy_tofile(target):
    module("numpy").ones(10).tofile(target)


@way()
def numpy_savetxt(target):
    module("numpy").savetxt(target, [[1.0, 2.0]])


@way("unsure")
def safetensors_save(target):
    module("safetensors.numpy").save_file({"a": module("numpy").ones(10)}, target)


@way("torch")
def torch_save_large(_target):
    torch = module("torch")
    torch.save({"weight": torch.ones(600_000)}, "ckpt/last.pt")


@way("torch")
def torch_save_small(_target):
    torch = module("torch")
    torch.save({"weight": torch.ones(3)}, "ckpt/small.pt")


@way("torch")
def torch_save_legacy(target):
    torch = module("torch")
    torch.save(torch.ones(3), target, _use_new_zipfile_serialization=False)


@way("torch")
def torch_from_file(target):
    torch = module("torch")
    torch.from_file(target, shared=True, size=16, dtype=torch.uint8).fill_(65)


@way("torch", "new")
def torch_save_new(target):
    torch = module("torch")
    torch.save(torch.ones(3), target)


class Writing:
    """A data set whose items write."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        write(self.path)
        return index


@way("torch")
def loader_worker(target):
    loader = module("torch.utils.data").DataLoader(Writing(target), num_workers=1)
    list(loader)
    return target


@way("torch")
def loader_worker_spawned(target):
    loaders = module("torch.utils.data")
    list(loaders.DataLoader(Writing(target), num_workers=1, multiprocessing_context="spawn"))
    return target


@way()
def pickle_dump(target):
    with open(target, "wb") as file:
        module("pickle").dump({"a": 1}, file)


@way()
def json_dump(target):
    with open(target, "w") as file:
        module("json").dump({"a": 1}, file)


@way()
def csv_writer(_target):
    with open("runs/2026/metrics.csv", "a", newline="") as file:
        module("csv").writer(file).writerow([9, 0.5])


@way("new")
def dbm_dump(target):
    with module("dbm.dumb").open(target, "c") as store:
        store[b"a"] = b"b"


@way()
def logging_file_handler(_target):
    logging = module("logging")
    handler = logging.FileHandler("log.txt")
    handler.emit(logging.makeLogRecord({"msg": TEXT.decode()}))
    handler.close()
    return "log.txt"


@way("folder")
def logging_rotating(target):
    handlers = module("logging.handlers")
    handler = handlers.RotatingFileHandler(f"{target}/a.txt", maxBytes=10, backupCount=2)
    handler.emit(module("logging").makeLogRecord({"msg": TEXT.decode()}))
    handler.close()
    return f"{target}/a.txt"


@way()
def gzip_append(target):
    with module("gzip").open(target, "ab") as file:
        file.write(TEXT)


@way()
def zip_append(_target):
    with module("zipfile").ZipFile("archive.zip", "a") as archive:
        archive.writestr("way.txt", TEXT)


@way()
def tar_append(_target):
    with module("tarfile").open("archive.tar", "a") as archive:
        archive.add("notes.txt", "way.txt")


@way()
def temporary_file_and_replace(target):
    with module("tempfile").NamedTemporaryFile(dir=".", delete=False) as file:
        file.write(TEXT)
    os.replace(file.name, target)
    return target


@way("folder")
def temporary_file_gone_again(target):
    # The folder's own times tell.
    with module("tempfile").NamedTemporaryFile(dir=target) as file:
        file.write(TEXT)


@way("new")
def mkdtemp(_target):
    module("tempfile").mkdtemp(dir="new")


# shutil.


@way()
def shutil_copy(target):
    shutil.copy("notes.txt", target)


@way()
def shutil_copy2(target):
    shutil.copy2("notes.txt", target)


@way()
def shutil_copyfile(target):
    shutil.copyfile("notes.txt", target)


@way()
def shutil_copymode(target):
    shutil.copystat("with_mode.sh", target)


@way("folder")
def shutil_copytree_over(target):
    shutil.copytree("lib", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


@way("folder")
def shutil_move_folder(target):
    shutil.move(target, f"new/{os.path.basename(target)}")


@way()
def shutil_move_file(target):
    shutil.move(target, "new")


@way("folder", "either")
def shutil_move_into(target):
    source = f"{target}.source"
    os.mkdir(source)
    write(f"{source}/c.txt")
    shutil.move(source, target)


@way("folder")
def shutil_rmtree(target):
    shutil.rmtree(target)


@way("folder")
def shutil_rmtree_and_made_anew(target):
    shutil.rmtree(target)
    os.makedirs(f"{target}/sub")
    write(f"{target}/sub/b.txt")
    return f"{target}/sub/b.txt"


@way("large", "either")
def shutil_rmtree_large(_target):
    shutil.rmtree("large_tree/class_07")


@way("folder")
def shutil_make_archive(target):
    shutil.make_archive(f"{target}/a", "tar", "lib")


# Programs.


@way()
def sh_append(target):
    tool("sh", "-c", f"echo written by a way >> {target}")
    return target


@way()
def sh_overwrite(target):
    tool("sh", "-c", f": > {target}")


@way()
def sed_in_place(target):
    tool("sed", "-i", "s/a/b/", target)


@way()
def touch(target):
    tool("touch", target)


@way()
def touch_new(_target):
    tool("touch", "new/touch_new")


@way()
def cp(target):
    tool("cp", "notes.txt", target)


@way()
def cp_archive(target):
    tool("cp", "-a", "with_mode.sh", target)


@way()
def mv(target):
    tool("mv", target, "new/mv")


@way("folder")
def mv_folder(target):
    tool("mv", target, "new/mv_folder")


@way("folder")
def rm_rf(target):
    tool("rm", "-rf", target)


@way()
def truncate_tool(target):
    tool("truncate", "-s", "3", target)


@way()
def chmod_tool(target):
    tool("chmod", "600", target)


@way("folder", "either")
def chmod_tool_recursive(target):
    tool("chmod", "-R", "u=rwX,go=", target)


@way()
def dd(target):
    tool("dd", "if=notes.txt", f"of={target}", "conv=notrunc", "bs=4")


@way()
def tee(target):
    tool("tee", "-a", target, input=TEXT.decode())
    return target


@way("either")
def ln_logical(target):
    tool("ln", "-L", target, "new/ln_logical")
    write("new/ln_logical", "r+b")
    return target


@way()
def ln_symbolic_forced(target):
    tool("ln", "-sfn", "../notes.txt", target)


@way()
def install_tool(target):
    tool("install", "-m", "755", "notes.txt", target)


@way("folder")
def tar_tool(target):
    tool("tar", "xf", "archive.tar", "-C", target)


@way()
def gzip_tool(target):
    tool("gzip", "-f", target)


@way("unsure", "either")
def git_commit(target):
    write(target)
    author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*", "-c", "gc.auto=0")
    tool("git", *author, "--git-dir=.git", "--work-tree=.", "commit", "-qm", "way", "--allow-empty", target)


@way()
def python_isolated(target):
    tool(sys.executable, "-I", "-S", "-c", f"open({target!r}, 'a').write({TEXT.decode()!r})")
    return target


@way()
def without_environment(target):
    tool("/bin/sh", "-c", f"echo written by a way >> {target}", env={})
    return target


@way()
def posix_spawn(target):
    script = f"echo written by a way >> {target}"
    child = os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("the shell could not")
    return target


@way()
def output_of_a_child(target):
    with open(target, "ab") as file:
        subprocess.run(["echo", "written by a way"], stdout=file, check=True)
    return target


# Processes and threads.


@way()
def forked(target):
    in_child(lambda: write(target))
    return target


@way()
def session_of_its_own(target):
    in_child(lambda: (os.setsid(), write(target)))
    return target


@way("unsure", "either")
def user_namespace(target):
    def inside() -> None:
        checked(libc.unshare(0x10000000))
        write(target, "r+b")

    in_child(inside)
    return target


def with_process(method: str, target: str) -> None:
    process = module("multiprocessing").get_context(method).Process(target=write, args=(target,))
    process.start()
    process.join(60)
    if process.exitcode:
        raise RuntimeError(f"the child ended with {process.exitcode}")


@way()
def multiprocessing_fork(target):
    with_process("fork", target)
    return target


@way()
def multiprocessing_spawn(target):
    with_process("spawn", target)
    return target


@way()
def process_pool(target):
    context = module("multiprocessing").get_context("fork")
    with module("concurrent.futures").ProcessPoolExecutor(1, context) as pool:
        pool.submit(write, target).result(60)
    return target


@way()
def thread(target):
    errors = []

    def inside() -> None:
        try:
            write(target)
        except OSError as error:
            errors.append(error)

    worker = threading.Thread(target=inside)
    worker.start()
    worker.join()
    if errors:
        raise errors[0]
    return target


@way("late")
def daemon(target):
    child = os.fork()
    if not child:
        os.setsid()
        if os.fork():
            os._exit(0)
        # It ends by itself, whatever happens.
        signal.alarm(4)
        empty = os.open("/dev/null", os.O_RDWR)
        for descriptor in range(3):
            os.dup2(empty, descriptor)
        time.sleep(DAEMON_SECONDS)
        try:
            write(target)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@way("late")
def shell_in_the_background(target):
    script = f"(sleep {DAEMON_SECONDS}; echo written by a way >> {target}) </dev/null >/dev/null 2>&1 &"
    tool("sh", "-c", script)


@way("late")
def at_exit(target):
    atexit.register(attempt, "at_exit", lambda: write(target))
    return LATER


class Last:
    """Writes when the interpreter takes it apart."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR)

    def __del__(self) -> None:
        os.write(self.descriptor, TEXT)


KEPT: list[object] = []


@way("late")
def at_the_interpreters_end(target):
    KEPT.append(Last(target))


@way()
def on_sigterm(target):
    before = signal.signal(signal.SIGTERM, lambda *_: write(target))
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    return target


# Other paths to the same.


@way()
def chdir_and_relative(target):
    os.chdir("files")
    write(os.path.basename(target))
    return os.path.basename(target)


@way()
def chdir_twice(target):
    os.chdir("runs")
    os.chdir("2026")
    write(f"../../{target}")
    return f"../../{target}"


@way()
def fchdir(target):
    folder = os.open("files", os.O_RDONLY | os.O_DIRECTORY)
    os.fchdir(folder)
    os.close(folder)
    write(os.path.basename(target))
    return os.path.basename(target)


@way("either")
def kept_folder_descriptor(target):
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir("/")
    write_to(os.open(target, os.O_WRONLY, dir_fd=folder))
    os.close(folder)


@way()
def inherited_folder_descriptor(target):
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    script = f"import os; os.write(os.open({target!r}, os.O_WRONLY, dir_fd={folder}), {TEXT!r})"
    tool(sys.executable, "-I", "-S", "-c", script, pass_fds=(folder,), cwd="/")
    os.close(folder)
    return target


@way("either")
def descriptors_there_before(target):
    # Whatever the process was started with.
    harmed = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if number > 2 and stat.S_ISDIR(os.fstat(number).st_mode):
                write_to(os.open(target, os.O_WRONLY, dir_fd=number))
                harmed += 1
    if not harmed:
        write(target)


@way()
def by_parent(target):
    write(f"runs/2026/../../{target}")
    return target


@way("either")
def by_parent_of_the_project(target):
    write(f"../{os.path.basename(START)}/{target}")
    return target


@way("either")
def by_parent_outside(_target):
    write("../outside/by_parent.txt")


@way()
def by_absolute_path_of_the_current_folder(target):
    write(os.path.abspath(target))
    return target


@way()
def by_proc_cwd(target):
    write(f"/proc/self/cwd/{target}")
    return target


@way()
def by_proc_thread_cwd(target):
    write(f"/proc/thread-self/cwd/{target}")
    return target


@way("either")
def by_proc_fd(target):
    descriptor = os.open(target, os.O_RDONLY)
    write(f"/proc/self/fd/{descriptor}", "r+b")
    os.close(descriptor)


@way("either")
def by_dev_fd_in_a_child(target):
    with open(target, "rb") as file:
        tool("sh", "-c", "echo written by a way >> /dev/stdin", stdin=file)


@way("either")
def by_passed_descriptor(target):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(target, "rb") as file:
        socket.send_fds(ours, [b"x"], [file.fileno()])

        def inside() -> None:
            (descriptor,) = socket.recv_fds(theirs, 1, 1)[1]
            write(f"/proc/self/fd/{descriptor}", "r+b")

        in_child(inside)


@way("absolute")
def absolute_open(target):
    write(original(target))


@way("absolute")
def absolute_open_r_plus(target):
    write(original(target), "r+b")


@way("absolute", "new")
def absolute_new(target):
    write(original(target), "xb")


@way("absolute")
def absolute_unlink(target):
    os.unlink(original(target))


@way("absolute", "folder")
def absolute_rmtree(target):
    shutil.rmtree(original(target))


@way("absolute")
def absolute_rename(target):
    os.rename(original(target), original("new/absolute_rename"))


@way("absolute")
def absolute_rename_to_here(target):
    os.rename(original(target), "new/absolute_rename_to_here")


@way("absolute")
def absolute_replace(target):
    write("new/absolute_replace.tmp", "xb")
    os.replace("new/absolute_replace.tmp", original(target))


@way("absolute")
def absolute_link_to_here(target):
    os.link(original(target), "new/absolute_link")
    write("new/absolute_link", "r+b")


@way("absolute")
def absolute_truncate(target):
    os.truncate(original(target), 3)


@way("absolute")
def absolute_chmod(target):
    os.chmod(original(target), 0o600)


@way("absolute")
def absolute_utime(target):
    os.utime(original(target), (1, 1))


@way("absolute", "unsure")
def absolute_setxattr(target):
    os.setxattr(original(target), "user.way", TEXT)


@way("absolute", "new")
def absolute_mkdir(target):
    os.mkdir(original(target))


@way("absolute", "new")
def absolute_symlink(target):
    os.symlink("notes.txt", original(target))


@way("absolute")
def absolute_shell(target):
    tool("sh", "-c", f"echo written by a way >> '{original(target)}'")


@way("absolute", "folder")
def absolute_chdir(target):
    os.chdir(original(target))
    write("a.txt", "wb")


@way("absolute", "folder")
def absolute_dir_fd(target):
    folder = os.open(original(target), os.O_PATH | os.O_DIRECTORY)
    write_to(os.open("a.txt", os.O_WRONLY, dir_fd=folder))
    os.close(folder)


@way("absolute")
def absolute_by_proc_root(target):
    write(f"/proc/self/root{original(target)}")


@way("absolute", "unsure")
def absolute_by_the_first_process(target):
    write(f"/proc/1/root{original(target)}")


@way("absolute", "unsure")
def absolute_by_the_parent_process(target):
    write(f"/proc/{os.getppid()}/root{original(target)}")


@way("absolute", "unsure")
def absolute_by_chroot(target):
    folder, name = os.path.split(original(target))

    def inside() -> None:
        os.chroot(folder)
        write(f"/{name}", "r+b")

    in_child(inside)


@way("absolute", "either")
def absolute_link_made(target):
    os.symlink(original(target), "new/absolute_link_made")
    write("new/absolute_link_made")


@way("absolute", "unsure")
def absolute_io_uring(target):
    path = ctypes.create_string_buffer(original(target).encode())
    write_to(uring(18, AT_FDCWD, place_of(path), 0o644, 0, os.O_WRONLY))


@way("absolute", "unsure")
def absolute_io_uring_setxattr(target):
    path, name, value = (
        ctypes.create_string_buffer(text) for text in (original(target).encode(), b"user.way", TEXT)
    )
    uring(42, 0, place_of(name), len(TEXT), place_of(value), 0, place_of(path))


@way("absolute", "unsure")
def absolute_call_32_chmod(target):
    path = original(target).encode()
    in_child(lambda: call_32(15, path, 0o600))


@way("absolute", "either")
def home_expanded(_target):
    write(os.path.expanduser("~/home.txt"))


@way("absolute", "either")
def home_new(_target):
    write(os.path.expanduser("~/home_new.txt"), "xb")


@way("absolute", "either")
def home_project(target):
    write(os.path.expanduser(f"~/project/{target}"))


@way("absolute", "either")
def home_configuration(_target):
    os.makedirs(os.path.expanduser("~/.config/way"))


@way("allowed")
def home_cache(_target):
    write(os.path.expanduser("~/.cache/torch/way.bin"))


@way("absolute")
def data_append(_target):
    write(data("rows.csv"))


@way("absolute")
def data_new(_target):
    write(data("cache.bin"), "xb")


@way("absolute", "either")
def realpath(target):
    write(os.path.realpath(target))


@way("absolute", "either")
def path_resolve(target):
    Path(target).resolve().write_bytes(TEXT)


@way("absolute", "either")
def readlink(target):
    with contextlib.suppress(OSError):
        target = os.readlink(target)
    os.chmod(target, 0o600)


@way("absolute", "either")
def path_of_a_descriptor(target):
    with open(target, "rb") as file:
        path = os.readlink(f"/proc/self/fd/{file.fileno()}")
    write(path)


@way("either")
def next_to_the_script(target):
    write(Path(__file__).parent / target)


@way("either")
def next_to_the_script_resolved(target):
    write(Path(__file__).resolve().parent / target)


@way("either")
def next_to_a_package(_target):
    lib = imported("lib")
    write(Path(lib.__file__).parent / "cache.txt")


@way("either")
def import_of_a_package(_target):
    imported("fresh")


@way("either")
def import_of_a_folder_with_a_librarys_name(_target):
    imported("wandb")


def imported(name: str):
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return importlib.import_module(name)
    finally:
        sys.dont_write_bytecode = before


@way()
def py_compile(_target):
    module("py_compile").compile("compiled.py", doraise=True)


@way("either")
def through_a_link_to_a_file(_target):
    write("linked.txt")


@way("either")
def through_a_link_to_a_folder(_target):
    write("linked_dir/file.txt", "r+b")


@way("either")
def through_a_link_to_a_folder_new(_target):
    write("linked_dir/new.txt", "xb")


@way("either")
def through_a_link_to_a_folder_and_up(_target):
    write("linked_dir/../up.txt", "ab")


@way("either")
def through_a_link_to_a_folder_unlink(_target):
    os.unlink("linked_dir/gone.txt")


@way("either")
def through_an_absolute_link(_target):
    write("absolute_link")


@way("either")
def through_two_links(_target):
    write("link_of_linked_dir/file.txt")


@way("either")
def through_a_dangling_link(_target):
    write("dangling")


@way("either")
def through_a_link_chmod(_target):
    os.chmod("linked_mode.txt", 0o600)


@way()
def link_replaced(_target):
    os.unlink("link_to_notes")
    write("link_to_notes", "xb")
    return "link_to_notes"


@way()
def loop_replaced(_target):
    os.unlink("loop")
    write("loop", "xb")
    return "loop"


@way()
def link_inside_the_project(_target):
    write("link_to_log")
    return "link_to_log"


@way("either")
def lutime_of_a_link(_target):
    os.utime("link_to_data", (1, 1), follow_symlinks=False)


@way()
def hard_link_inside_the_project(_target):
    write("pair_a", "r+b")


@way()
def hard_link_inside_the_project_chmod(_target):
    os.chmod("pair_b", 0o600)


@way()
def nested_folder(_target):
    write("runs/2026/deep/er/file.txt")
    write("runs/2026/deep/er/new.txt")
    return "runs/2026/deep/er/file.txt"


@way("large")
def large_folder(_target):
    write("images/0007.png", "r+b")
    return "images/0007.png"


@way("large")
def large_folder_new(_target):
    write("images/new.png", "xb")
    return "images/new.png"


@way("large", "either")
def large_folder_unlink(_target):
    os.unlink("images/0008.png")


@way("large", "either")
def large_folder_rename(_target):
    os.rename("large_tree/class_09", "large_tree/class_nine")


@way("large")
def large_folder_chmod(_target):
    os.chmod("images/0009.png", 0o600)


@way()
def odd_folder_name(_target):
    write("odd näme\n dir/fi le.txt", "r+b")
    write("odd näme\n dir/new\n.txt", "xb")


@way()
def bytes_that_are_no_text(_target):
    write(b"files/\xff\xfe", "r+b")


@way("unsure")
def read_only_file(_target):
    os.chmod("read_only.txt", 0o644)
    write("read_only.txt")
    return "read_only.txt"


@way()
def big_file(_target):
    with open("big.bin", "r+b") as file:
        file.seek(2**20)
        file.write(TEXT)
    return "big.bin"


@way()
def python_source(_target):
    write("lib/__init__.py", "wb")


@way()
def the_script_itself(_target):
    write(os.path.join(START, "train.py"), "r+b")


@way("either")
def git_configuration(_target):
    write(".git/config")


# Races: the path is another one when it is looked at a second time.


def racing(path: str, call: Callable[[ctypes.Array], object], is_done: Callable[[], bool]) -> None:
    ours = f"new/{os.path.basename(path)}".encode() + b"\0"
    theirs = path.encode() + b"\0"
    write(ours[:-1].decode())
    buffer = ctypes.create_string_buffer(ours, 4096)
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            ctypes.memmove(buffer, theirs, len(theirs))
            ctypes.memmove(buffer, ours, len(ours))

    flipper = threading.Thread(target=flip)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    flipper.start()
    deadline = time.monotonic() + RACE_SECONDS
    try:
        while not is_done():
            if time.monotonic() > deadline:
                raise PermissionError("not once")
            call(buffer)
    finally:
        over.set()
        flipper.join()
        sys.setswitchinterval(interval)


@way("absolute")
def racing_chmod(target):
    path = original(target)
    racing(path, lambda buffer: libc.chmod(buffer, 0o600), lambda: os.stat(path).st_mode & 0o777 == 0o600)


@way("absolute")
def racing_truncate(target):
    path = original(target)
    racing(path, lambda buffer: libc.truncate(buffer, ctypes.c_long(3)), lambda: os.stat(path).st_size == 3)


@way("absolute")
def racing_open(target):
    path = original(target)

    def call(buffer: ctypes.Array) -> None:
        descriptor = libc.open(buffer, os.O_WRONLY | os.O_TRUNC)
        if descriptor >= 0:
            os.close(descriptor)

    racing(path, call, lambda: not os.stat(path).st_size)


@way("absolute")
def racing_link(target):
    # What is looked at is a file; what is written is a link to the original.
    path, place = original(target), "new/racing_link"
    write("new/racing_file")
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                os.symlink(path, f"{place}.1")
                os.replace(f"{place}.1", place)
                os.link("new/racing_file", f"{place}.2")
                os.replace(f"{place}.2", place)

    flipper = threading.Thread(target=flip)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    flipper.start()
    deadline = time.monotonic() + RACE_SECONDS
    try:
        while os.stat(path).st_mode & 0o777 != 0o600:
            if time.monotonic() > deadline:
                raise PermissionError("not once")
            with contextlib.suppress(OSError):
                os.chmod(place, 0o600)
    finally:
        over.set()
        flipper.join()
        sys.setswitchinterval(interval)


# Everything, and therefore last.


@way("large", "unsure")
def every_file(_target):
    refused = []
    for folder, _, names in os.walk("."):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or path == "./config.yaml":
                continue
            try:
                if not os.stat(path).st_mode & stat.S_IWUSR:
                    os.chmod(path, 0o644)
                with open(path, "ab") as file:
                    file.write(b"\n")
            except OSError as error:
                refused.append(error)
    if refused:
        raise refused[0]


@way("large")
def every_file_touched(_target):
    for folder, _, names in os.walk("."):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                os.utime(path, (1, 1))


def _tagged(tag: str) -> frozenset[str]:
    return frozenset(name for name, tags in TAGS.items() if tag in tags)


ABSOLUTE = _tagged("absolute")
EITHER = _tagged("either")
UNSURE = _tagged("unsure")
TORCH = _tagged("torch")
LATE = _tagged("late")
LARGE = _tagged("large")
ALLOWED = _tagged("allowed")


def attempt(name: str, function: Callable[[], str | None]) -> None:
    """Goes one way, and says what became of it."""
    os.chdir(START)
    try:
        place = function()
        if place == LATER:
            return
        if place is not None and TEXT.strip() not in Path(place).read_bytes():
            raise AssertionError(f"what was written is not in {place}")
        outcome = "wrote"
    except Skipped as error:
        outcome = f"skipped: {error}"
    except Exception as error:
        outcome = f"refused: {type(error).__name__}: {error}"
    finally:
        with contextlib.suppress(OSError):
            os.chdir(START)
    print(f"way {name}: {' '.join(outcome.split())}", flush=True)


def train(epochs: int) -> None:
    """Trains a tiny model, and prints the loss of each epoch."""
    torch = module("torch")
    loaders = module("torch.utils.data")
    torch.manual_seed(0)
    rows = torch.randn(4096, 8)
    table = loaders.TensorDataset(rows, rows.sum(1, keepdim=True))
    loader = loaders.DataLoader(table, batch_size=64, shuffle=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        total = 0.0
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), wanted)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.6f}", flush=True)


def main(names: Sequence[str]) -> None:
    if list(names) == ["--list"]:
        print("\n".join(WAYS))
        return
    ways = [name for name in names if name != "train"]
    for name in WAYS if ways == ["all"] else ways:
        attempt(name, lambda name=name: WAYS[name](target_of(name)))
    if "train" in names:
        train(int(os.environ.get("WAYS_EPOCHS", "200")))


if __name__ == "__main__":
    main(sys.argv[1:])
