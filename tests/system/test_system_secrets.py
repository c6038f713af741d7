"""Secrets are struck from text and from streams, wherever these are cut; what is none stays."""

from __future__ import annotations

import random
import time

import pytest

from sweeper.system.environment import secrets
from sweeper.system.secrets import Striker, kind_of, strike, strike_tree

SHAPES = [
    ("postgresql://me:hunter2@db/x", "postgresql://me:***@db/x", "a URL with a password"),
    ("postgresql://me@db/x?password=hunter2", "postgresql://me@db/x?***", "a password in a URL"),
    ("AKIA" + "ABCDEFGH12345678", "***", "an AWS access key"),
    ("ghp_" + "a1B2" * 9, "***", "a GitHub token"),
    ("github_pat_" + "a1_B2" * 9, "***", "a GitHub token"),
    ("hf_" + "aBcD" * 8, "***", "a Hugging Face token"),
    ("sk-" + "aB3d" * 8, "***", "an API key"),
    ("sk-proj-" + "aB3d" * 8, "***", "an API key"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "***", "a private key"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN", "***", "a JSON web token"),
]


@pytest.mark.parametrize(("secret", "shown", "kind"), SHAPES)
def test_a_key_is_known_by_its_shape(secret: str, shown: str, kind: str):
    assert kind_of(f"x {secret} y") == kind
    assert strike(f"x {secret} y") == f"x {shown} y"
    assert strike_tree({"a": [secret, 1, None], "b": {"c": f"{secret}"}}) == {
        "a": [shown, 1, None],
        "b": {"c": shown},
    }


@pytest.mark.parametrize(
    "text",
    [
        "risk-free",
        "disk-" + "a1" * 12,
        "sk-learn",
        "hf_home",
        "AKIAK",
        "http://host:80/a@b",
        "ssh://git@github.com",
        "https://host/reset?password={new}",
        "me@host: x",
    ],
)
def test_ordinary_text_stays(text: str):
    assert kind_of(text) == ""
    assert strike(text) == text


BEGINNINGS = (
    "sk-",
    "sk-a ",
    "eyJ-",
    "eyJaaaaaaaa.",
    "ghp_",
    "hf_a",
    "-----BEGIN ",
    "://a:",
    "A",
    "a@",
    "+.-",
)


@pytest.mark.parametrize("text", [each * (20_000 // len(each)) for each in BEGINNINGS], ids=repr)
def test_what_only_begins_like_a_secret_takes_no_time(text: str):
    began = time.process_time()
    strike(text)
    kind_of(text)
    secrets({"NAME": text})
    assert time.process_time() - began < 0.5


def test_values_are_struck_the_longest_first():
    assert strike("abcdefgh-long abcdefgh", {"abcdefgh", "abcdefgh-long"}) == "*** ***"


SECRETS = ("abcabcabd-secret", "secret-abcabc", "abcabcab", "zürich-passwort", "line one\nline two")


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_is_struck_wherever_it_is_cut(seed: int):
    chosen = random.Random(seed)
    pieces = [*SECRETS, "abcab", "secret-", "http://me:hunter22@db/", "http://host:80/ ", "x\n", "abcabcabd-"]
    text = "".join(chosen.choice(pieces) + " " * chosen.randint(0, 1) for _ in range(300)).encode()
    whole = Striker(SECRETS)
    expected = whole.take(text) + whole.rest()
    assert not [secret for secret in (*SECRETS, "hunter22") if secret.encode() in expected]
    for most in (1, 3, 50):
        striker, found, at = Striker(SECRETS), b"", 0
        while at < len(text):
            end = at + chosen.randint(1, most)
            found += striker.take(text[at:end])
            at = end
        assert found + striker.rest() == expected


def test_of_two_that_begin_alike_the_longer_goes_whole():
    assert Striker(["abcabcab", "abcabcabd-secret"]).take(b"abcabcabd-secret\n") == b"***\n"


def test_a_stream_waits_for_nothing_but_a_beginning():
    striker = Striker(["correct-horse"])
    assert striker.take(b"hello\n") == b"hello\n"
    assert striker.take(b"it is corr") == b"it is "
    assert striker.take(b"upt\n") == b"corrupt\n"
    assert striker.take(b"correct-hors") == b""
    assert striker.rest() == b"correct-hors"
    assert Striker([]).take(bytes(range(256))) == bytes(range(256))
