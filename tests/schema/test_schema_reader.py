import json
import os
import time
from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.schema import read_yaml


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(content):
        Path("f.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_yaml(Path("f.yaml"))

    return read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1e-3", 1e-3),
        ("2.0e9", 2e9),
        (".5", 0.5),
        ("1.", 1.0),
        ("1E5", 1e5),
        ("010", 10),
        ("-7", -7),
        ("+7", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("9223372036854775807", 2**63 - 1),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("0b1", "0b1"),
        ("1e", "1e"),
        ("nan", "nan"),
        ("true", True),
        ("false", False),
        ("True", True),
        ("tRue", "tRue"),
        ("'true'", "true"),
        ('"1"', "1"),
        ("null", None),
        ("~", None),
        ("", None),
        ("''", ""),
        ("../x", "../x"),
        ("|\n  1\n", "1\n"),
    ],
)
def test_scalars_follow_yaml_1_2(read, text, value):
    got = read(f"a: {text}")["a"]
    assert got == value
    assert type(got) is type(value)


def test_json_is_read_alike(read):
    value = {"a": [1, 1e-4, 2e9, True, None, "no"], "b": {"c": "é\n", "d": {}, "e": []}}
    assert read(json.dumps(value, indent="\t")) == value
    assert read(json.dumps(value, separators=(",", ":"))) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: .inf", "f.yaml:2:4: `b` must be a finite number, but got .inf."),
        ("a: [1, -.INF]", "f.yaml:1:8: `a[1]` must be a finite number, but got -.INF."),
        ("a: .nan", "f.yaml:1:4: `a` must be a finite number, but got .nan."),
        ("a: 1e999", "f.yaml:1:4: `a` must be a finite number, but got '1e999'."),
        ("a: 9223372036854775808", "f.yaml:1:4: `a` must fit in 64 bits, but got '9223372036854775808'."),
        ("é: {é: é, ü: .nan}", "f.yaml:1:14: `é.ü` must be a finite number, but got .nan."),
        ('a: "\\0"', "f.yaml:1:4: `a` must be text, but got the character '\\x00'."),
        (
            "a: 1\nb: {c: 1, c: 2}",
            "f.yaml:2:11: `b.c` must be given once, but it is also on line 2. Remove one.",
        ),
        (
            "a: &x 1",
            "f.yaml:1:4: Anchors and aliases are not supported, but got one at `a`. Write the value out.",
        ),
        (
            "a: !!int 1",
            "f.yaml:1:4: Tags are not supported, but got 'tag:yaml.org,2002:int' at `a`. Remove the tag.",
        ),
        ("<<: {a: 1}", "f.yaml:1:1: Merge keys are not supported, but got `<<`. Write the values out."),
        ("1: 2", "f.yaml:1:1: A key must be a string, but got 1. Put it in quotes."),
        ("a: 1\n[b]: 2", "f.yaml:2:1: A key must be a string, but got something else."),
        ('"a\\nb": 2', "f.yaml:1:1: A key must be a word, but got 'a\\nb'."),
        ("a: 1\n---\nb: 1", "f.yaml:2:1: must be one document, but got a second `---`."),
        ("a: [1\nb: 2", "f.yaml:2:2: must be YAML, but got 'b: 2' (did not find expected ',' or ']')."),
        (
            "a:\n\tb: 1",
            "f.yaml:2:1: must be YAML, but got '\\tb: 1' (found character that cannot start any token).",
        ),
        (
            'a: "\\ud800"',
            "f.yaml:1:7: must be YAML, but got 'a: \"\\\\ud800\"' "
            "(found invalid Unicode character escape code).",
        ),
        ("a: b\nc: \0", "f.yaml:2:4: must be text, but got the character '\\x00'. Save the file as UTF-8."),
        (
            "\ufeffa: 1",
            "f.yaml:1:1: must be UTF-8 without a byte-order mark, but got one. Save the file without it.",
        ),
        (
            "a: 1".encode("utf-16"),
            "f.yaml:1:1: must be UTF-8, but got byte 0xff. Save the file as UTF-8.",
        ),
        (b"a: 1\nb: \xed\xa0\x80", "f.yaml:2:4: must be UTF-8, but got byte 0xed. Save the file as UTF-8."),
        ("[" * 3000, "f.yaml:1:33: must have at most 32 levels, but got more."),
        ("- 1\n" * 30_000, "f.yaml:20000:3: must have at most 20000 values, but got more."),
        ("a: " + "b" * 9000, "f.yaml:1:4: `a` must have at most 8192 characters, but got 9000."),
        ("a: " + "b" * 300_000, "f.yaml:1:1: must be at most 262144 bytes, but got 300003."),
    ],
)
def test_what_is_not_allowed_is_one_line_with_its_place(read, text, message):
    with pytest.raises(UserError) as caught:
        read(text)
    assert str(caught.value) == message


def test_every_bad_node_is_named(read):
    with pytest.raises(UserError) as caught:
        read("a: .inf\nb: &x [1]\nc: *x\na: 2\nd: [\n")
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == [
        "f.yaml:1:4:",
        "f.yaml:2:4:",
        "f.yaml:3:4:",
        "f.yaml:4:1:",
        "f.yaml:6:1:",
    ]


LIMIT = 256 * 1024 - 16


@pytest.mark.parametrize(
    "text",
    [
        "[" * LIMIT,
        "{" * LIMIT,
        "? " * (LIMIT // 2),
        "- " * (LIMIT // 2),
        '"' + "a" * LIMIT,
        "[" + "1," * (LIMIT // 2) + "]",
        "{" + "a," * (LIMIT // 2) + "}",
        "a: " * (LIMIT // 3),
        "%FOO\n" * (LIMIT // 5),
        "\n".join(" " * depth + "a:" for depth in range(600)),
        "a: &a [1]\nb: [" + "*a," * 15_000 + "]",
        "\n".join([f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 60)]),
        "a: 1\n" * 9000,
    ],
    ids=lambda text: text[:6],
)
def test_hostile_text_is_refused_quickly(read, text):
    start = time.process_time()
    with pytest.raises(UserError) as caught:
        read(text)
    assert time.process_time() - start < 2.0
    assert len(str(caught.value).splitlines()) <= 101


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: os.mkfifo(path), "must be a regular file, but got something else."),
        (lambda path: path.mkdir(), "cannot be read: Is a directory."),
        (lambda path: path.symlink_to("/dev/zero"), "must be a regular file, but got something else."),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links."),
        (lambda path: None, "No such file or directory."),
    ],
)
def test_only_a_regular_file_is_read(tmp_path, make, reason):
    path = tmp_path / "f.yaml"
    make(path)
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith(reason)


def test_a_large_file_is_refused_by_its_size(tmp_path):
    path = tmp_path / "f.yaml"
    with open(path, "wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="must be at most 262144 bytes, but got 1073741824"):
        read_yaml(path)
