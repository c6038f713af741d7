"""The bounded log: head and tail, and its last lines made safe to print."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.worker.log import HEAD_BYTES, TAIL_BYTES, BoundedLog, last_lines


def written(path: Path, pieces) -> bytes:
    log = BoundedLog(path)
    for piece in pieces:
        log.write(piece)
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("piece", [1000, 65536, 3_000_000])
def test_of_many_megabytes_head_and_tail_are_kept(tmp_path: Path, piece: int):
    data = b"".join(b"%09d\n" % i for i in range(1_200_000))
    kept = written(tmp_path / "log", (data[i : i + piece] for i in range(0, len(data), piece)))
    assert len(kept) <= HEAD_BYTES + TAIL_BYTES + max(piece, 65536) + 100
    head, _, rest = kept.partition(b"\n[... ")
    left_out, _, tail = rest.partition(b" bytes left out ...]\n")
    assert head == data[:HEAD_BYTES]
    assert data.endswith(tail)
    assert len(tail) >= TAIL_BYTES
    assert len(head) + int(left_out) + len(tail) == len(data)


def test_what_fits_is_kept_as_it_is(tmp_path: Path):
    for size in (0, 10, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + TAIL_BYTES):
        data = bytes(i % 251 for i in range(size))
        assert written(tmp_path / "log", [data[: size // 2], data[size // 2 :]]) == data


def test_the_head_is_on_disk_while_the_trial_runs(tmp_path: Path):
    log = BoundedLog(tmp_path / "log")
    log.write(b"hello\n")
    assert (tmp_path / "log").read_bytes() == b"hello\n"
    log.close()


def test_last_lines_are_few_and_escaped(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(
        b"".join(b"line %d\n" % i for i in range(10_000)) + b"\xff\x1b[31mred\r\ttab \xc3\xa9\x00\n\n"
    )
    lines = last_lines(path, 3).split("\n")
    assert lines == ["line 9998", "line 9999", "\\xff\\x1b[31mred\\x0d\ttab é\\x00"]
    assert len(last_lines(path, 10**6)) <= 8192 * 4
    path.write_bytes(b"")
    assert last_lines(path) == ""
    path.write_bytes("a\u2028b".encode())
    assert last_lines(path) == "a\\x2028b"


def test_a_secret_is_struck_from_head_and_tail_wherever_it_is_cut(tmp_path: Path):
    secret = "correct-horse-battery"
    line = f"the key is {secret}, really\n".encode()
    data = line * (1 + (HEAD_BYTES + TAIL_BYTES) // len(line))
    for piece in (7, 65_536):
        path, pieces = tmp_path / f"log{piece}", (data[i : i + piece] for i in range(0, len(data), piece))
        log = BoundedLog(path, {secret})
        for each in pieces:
            log.write(each)
        log.close()
        assert secret[:12].encode() not in path.read_bytes()
        assert path.read_bytes().count(b"the key is ***, really\n") > 10_000


def test_a_beginning_of_a_secret_is_written_once_it_is_none(tmp_path: Path):
    log = BoundedLog(tmp_path / "log", {"correct-horse"})
    log.write(b"all correct")
    assert (tmp_path / "log").read_bytes() == b"all "
    log.close()
    assert (tmp_path / "log").read_bytes() == b"all correct"
