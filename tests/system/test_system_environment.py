"""What a trial gets of the environment, what is a secret in it, and what a person is told is held back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from sweeper.system.environment import (
    added_variables,
    held_back_line,
    is_secret_name,
    secrets,
    trial_env,
    withheld_names,
)

SECRET_NAMES = (
    *(
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
    ),
    *(
        "WANDB_API_KEY",
        "OPENAI_API_KEY",
        "NVIDIA_API_KEY",
        "NGC_API_KEY",
        "CONDA_TOKEN",
        "SLURM_JWT",
        "APIKEY",
    ),
    *(
        "GITHUB_TOKEN",
        "GITLAB_OAUTH_TOKEN",
        "PGPASSWORD",
        "PGPASSFILE",
        "MYSQL_PWD",
        "DB_PASS",
        "db_password",
    ),
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "BASIC_AUTH"),
    *(
        "AZURE_CLIENT_SECRET",
        "HTTP_AUTHORIZATION",
        "SWEEPER_TOKEN",
        "TORCH_HUB_TOKEN",
        "PYTHON_KEYS",
        "SSH_KEY2",
    ),
)
PLAIN_NAMES = (
    *("PATH", "HOME", "PWD", "OLDPWD", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "TZ"),
    *("PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "CUDA_HOME"),
    *("NVIDIA_VISIBLE_DEVICES", "NCCL_DEBUG", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "TRITON_CACHE_DIR"),
    *("PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_SPINCOUNT"),
    *(
        "OPENBLAS_NUM_THREADS",
        "SLURM_JOB_ID",
        "SWEEPER_CRASH_AT",
        "SWEEPER_HOME",
        "HF_HOME",
        "HF_HUB_OFFLINE",
    ),
    *("TOKENIZERS_PARALLELISM", "https_proxy", "NO_PROXY", "SSL_CERT_FILE", "CC", "MASTER_ADDR"),
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_credential_is_passed_only_where_it_is_named_in_full(name: str):
    environ = {name: "canary-123456"}
    assert is_secret_name(name)
    assert trial_env(environ) == {}
    assert trial_env(environ, ["*", name[:3] + "*"]) == {}
    assert trial_env(environ, [name]) == environ
    assert secrets(environ) == {"canary-123456"}


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_what_training_needs_is_passed(name: str):
    value = "http://proxy:3128" if "proxy" in name else "a-value"
    assert not is_secret_name(name)
    assert name == "OLDPWD" or trial_env({name: value}) == {name: value}
    assert secrets({name: value}) == set()
    assert withheld_names({name: value}) == ()


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("http://me:correct-horse@proxy:3128", "correct-horse"),
        ("postgresql+psycopg2://me:correct-horse@db/x?y=1", "correct-horse"),
        ("a,//me:correct-horse@db,b", "correct-horse"),
        ("https://ghostly-token@github.com/me/x", "ghostly-token"),
        ("redis://:correct-horse@db", "correct-horse"),
    ],
)
def test_a_password_in_a_url_is_a_secret_whatever_the_name(value: str, secret: str):
    for name in ("HTTPS_PROXY", "TORCH_MIRROR", "PYTHON_INDEX"):
        assert trial_env({name: value}) == {}
        assert secrets({name: value}) == {secret}
        assert withheld_names({name: value}) == (name,)
    assert trial_env({"MIRROR": value}, ["MIRR*"]) == {}
    assert trial_env({"MIRROR": value}, ["MIRROR"]) == {"MIRROR": value}


def test_an_encoded_password_is_known_in_both_spellings():
    assert secrets({"U": "http://me:p%40ss%2Fword@h"}) == {"p%40ss%2Fword", "p@ss/word"}


def test_what_nobody_listed_is_not_passed_but_for_globs_of_the_user():
    environ = {"MYLAB_DATA": "/data", "MYLAB_TOKEN": "12345678", "EDITOR": "vi", "SWEEPER_TRACKING_URI": "x"}
    assert trial_env(environ) == {}
    assert trial_env(environ, ["MYLAB_*"]) == {"MYLAB_DATA": "/data"}


def test_what_the_user_names_is_added_even_if_it_is_usual():
    environ = {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "MYLAB_A": "1", "MYLAB_KEY": "x", "PATH": "/bin"}
    assert added_variables(environ, ["NCCL_DEBUG", "MYLAB_*"]) == {"NCCL_DEBUG": "INFO", "MYLAB_A": "1"}
    assert added_variables(environ, []) == {}


def test_a_short_value_is_no_secret_and_a_long_line_of_one_is():
    assert secrets({"DEBUG_TOKEN": "1", "MY_KEY": "none"}) == set()
    value = "-----BEGIN-----\nMIIEvQIBADANBg\nxy\n"
    assert secrets({"MY_KEY": value}) == {value, value.strip(), "-----BEGIN-----", "MIIEvQIBADANBg"}


def test_one_line_says_what_is_missed_and_no_value():
    environ = {
        "AWS_REGION": "eu-1",
        "AWS_SECRET_ACCESS_KEY": "canary-123456",
        "SSH_AUTH_SOCK": "/run/x/agent",
    }
    environ |= {
        "EDITOR": "vi",
        "DBUS_SESSION_BUS_ADDRESS": "unix:",
        "MLFLOW_TRACKING_PASSWORD": "canary-123456",
    }
    line = (
        "Trials do not see AWS_REGION, AWS_SECRET_ACCESS_KEY. "
        "To pass them on, use --pass-env NAME, or add them to execution.pass_env."
    )
    assert held_back_line(environ) == line
    assert withheld_names(environ, ["AWS_*"]) == ("AWS_SECRET_ACCESS_KEY",)
    assert held_back_line(environ, ["AWS_*", "AWS_SECRET_ACCESS_KEY"]) == ""
    many = held_back_line({f"TOKEN_{i:02}": "12345678" for i in range(10)})
    assert many.startswith("Trials do not see TOKEN_00, ")
    assert "TOKEN_07 and 2 more. " in many


class Changing(Mapping[str, str]):
    """An environment of which another thread has taken a name away since the names were listed."""

    def __iter__(self) -> Iterator[str]:
        return iter(("PATH", "CUDA_GONE", "MY_TOKEN"))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, name: str) -> str:
        return {"PATH": "/bin", "MY_TOKEN": "canary-canary"}[name]


def test_a_name_that_another_thread_takes_away_is_not_there():
    assert trial_env(Changing()) == {"PATH": "/bin"}
    assert secrets(Changing()) == {"canary-canary"}
