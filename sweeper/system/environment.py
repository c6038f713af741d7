"""Selects a trial's environment variables: an allow-list without credentials, plus what the user names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

MIN_SECRET_LENGTH = 8
"""Minimum length of a value that is masked; shorter values may be common words."""
MAX_SHOWN = 8

PASS_ENV = "SWEEPER_ENV_NAMES"
"""Environment variable with names or globs of more variables to pass on (`--pass-env`), a line each."""

_PASSED = (
    # User, shell and locale.
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME", "TERM", "COLUMNS", "LINES", "NO_COLOR"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR", "TMP", "TEMP", "XDG_*", "SCRATCH"),
    # Libraries, and compilers: Triton and Inductor start one.
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
    *("CC", "CXX", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "MAX_JOBS", "MALLOC_*", "PKG_CONFIG_PATH"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "MAMBA_*", "MODULEPATH", "LOADEDMODULES", "_LMFILES_"),
    # Devices, communication and threads.
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NV_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "KINETO_*"),
    *(
        "TORCH*",
        "PYTORCH_*",
        "TRITON_*",
        "INDUCTOR_*",
        "ACCELERATE_*",
        "HIP_*",
        "HSA_*",
        "ROCR_*",
        "MIOPEN_*",
    ),
    *("OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "GOMP_*", "NUMEXPR_*", "BLIS_*", "ONEDNN_*", "DNNL_*"),
    *("NUMBA_*", "NPY_*", "RAYON_*", "TOKENIZERS_*", "OPENCV_*", "TQDM_*", "MPLBACKEND", "MPLCONFIGDIR"),
    # Schedulers and launchers.
    *("SLURM_*", "SLURMD_*", "PBS_*", "LSB_*", "SGE_*", "OMPI_*", "PMI_*", "PMIX_*", "I_MPI_*", "SWEEPER_*"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    # Locations of models and data, and the network.
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "HF_ENDPOINT"),
    *("HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "WANDB_MODE", "WANDB_DIR"),
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
)
_NOT_OURS = ("SWEEPER_*URI*", "SWEEPER_*URL*")
_CLOUD = (
    *(
        "AWS_*",
        "AZURE_*",
        "GOOGLE_*",
        "GCP_*",
        "GCS_*",
        "S3_*",
        "MINIO_*",
        "RCLONE_*",
        "B2_*",
        "HF_*",
        "HUGGING*",
    ),
    *("WANDB_*", "COMET_*", "NEPTUNE_*", "KAGGLE_*", "CLEARML_*", "PG*", "DATABASE_URL", "REDIS_URL"),
)
"""Variables of services that a trial may use; the user gets a note when they are withheld."""

_STORE = ("MLFLOW_*", "PGCONNECT_TIMEOUT")
"""Variables of the tracking store, which only the supervisor uses; `sweeper.tracking.mlflow` sets some."""
_DESKTOP = ("SSH_*", "GPG_*", "DBUS_*", "XAUTHORITY", "*KEYRING*", "PGDATA", "OLDPWD", *_STORE)
"""Variables that no training needs."""

_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|JWT|TOKEN(?!IZ)|AUTH(?!OR(?!IZ))"
    r"|KEYS?(?![A-Z])|(?<=_)(?:PWD|PASS)(?![A-Z])|^PGPASS",
    re.IGNORECASE,
)
_USERINFO = re.compile(
    # A scheme starts where no scheme character precedes it, so a long word is scanned once.
    r"(?:(?<![\w+.-])(?P<scheme>[A-Za-z][\w+.-]*:))?//(?P<user>[^/?#\s@:]*)(:(?P<password>[^/?#\s@]*))?@"
)


def is_secret_name(name: str) -> bool:
    """Returns whether a variable's name suggests a key, a token, a password or the like."""
    return bool(_SECRET.search(name))


def trial_env(environ: Mapping[str, str], pass_env: Sequence[str] = ()) -> dict[str, str]:
    """Returns the part of `environ` that a trial gets.

    Args:
        pass_env: Names or globs that the user adds. A secret must be named in full: a glob passes only
            variables whose name and value look harmless.
    """
    return {
        name: value
        for name, value in _snapshot(environ).items()
        if name in pass_env or (_matches(name, (*_PASSED, *pass_env)) and _is_harmless(name, value))
    }


def pass_env_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names and globs of variables that `--pass-env` passes on."""
    return tuple(environ.get(PASS_ENV, "").split())


def script_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of `environ` that the user's own command gets: all but credentials."""
    return trial_env(environ, ("*", *pass_env_names(environ)))


def added_variables(environ: Mapping[str, str], pass_env: Sequence[str]) -> dict[str, str]:
    """Returns the variables that the user adds, which may be among the usual ones, such as `NCCL_DEBUG`."""
    return {name: value for name, value in trial_env(environ, pass_env).items() if _matches(name, pass_env)}


def secrets(environ: Mapping[str, str]) -> set[str]:
    """Returns the values in `environ` that no log may show: those of secret names, and passwords in URLs.

    Each longer line of a multi-line value counts as well. Values of fewer than `MIN_SECRET_LENGTH`
    characters are ignored.
    """
    return set(_secrets(frozenset(_snapshot(environ).items())))


def _snapshot(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns a snapshot; names are listed first, as another thread may change `os.environ`."""
    return {name: value for name in list(environ) if (value := environ.get(name)) is not None}


@functools.lru_cache(maxsize=4)
def _secrets(environ: frozenset[tuple[str, str]]) -> frozenset[str]:
    values: set[str] = set()
    for name, value in environ:
        if is_secret_name(name) and name not in ("SSH_AUTH_SOCK",):
            values |= {value, value.strip(), *(line.strip() for line in value.splitlines())}
        values |= set(_in_urls(value))
    return frozenset(value for value in values if len(value) >= MIN_SECRET_LENGTH)


def withheld_names(environ: Mapping[str, str], pass_env: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the withheld names that a user may miss: credentials and cloud settings."""
    given = trial_env(environ, pass_env)
    return tuple(
        name
        for name, value in sorted(environ.items())
        if name not in given and not _matches(name, _DESKTOP)
        if _matches(name, _CLOUD) or not _is_harmless(name, value)
    )


OF_A_RUN = {"who": "The run does", "how": "add {them} to execution.pass_env"}
"""Words of `held_back_line` for a production run, which reads its export."""


def held_back_line(
    environ: Mapping[str, str],
    pass_env: Sequence[str] = (),
    *,
    who: str = "Trials do",
    how: str = "use --pass-env NAME, or add {them} to execution.pass_env",
) -> str:
    """Returns the note on what is withheld; empty if nothing is.

    Args:
        who: Who does not see it, with a verb.
        how: The remedy, with `{them}` for the variables.
    """
    names = withheld_names(environ, pass_env)
    shown = ", ".join(names[:MAX_SHOWN]) + (
        f" and {more} more" if (more := len(names) - MAX_SHOWN) > 0 else ""
    )
    them = "them" if len(names) > 1 else "it"
    return f"{who} not see {shown}. To pass {them} on, {how.format(them=them)}." if names else ""


def script_held_back_line(environ: Mapping[str, str]) -> str:
    """Returns the note on what the user's own command does not see; empty if it sees everything."""
    pass_env = ("*", *pass_env_names(environ))
    return held_back_line(environ, pass_env, who="The script does", how="use --pass-env NAME")


def _is_harmless(name: str, value: str) -> bool:
    return not (is_secret_name(name) or _USERINFO.search(value) or _matches(name, _NOT_OURS))


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _in_urls(value: str) -> Iterator[str]:
    for userinfo in _USERINFO.finditer(value):
        # A token may take the place of the user name, as in https://TOKEN@HOST.
        is_web = (userinfo["scheme"] or "").lower() in ("http:", "https:")
        secret = userinfo["password"] or (userinfo["user"] if is_web else "")
        yield from {secret, unquote(secret)}
