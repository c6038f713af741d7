"""Updates one MLflow run: sends only what it lacks and keeps what the user wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.tracking.content import RunContent, text
from sweeper.tracking.tracker import Dataset
from sweeper.tracking.view import VIEW_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOTE_TAG = "mlflow.note.content"
WRITTEN_TAG = "mlflow.sweeperWritten"
"""Tag with digests of what sweeper wrote where users may write too; other text is theirs and stays.

The UI hides tags under `mlflow.`, and nobody needs to see this one.
"""

FILES_TAG = "mlflow.sweeperFiles"
"""Tag with the digests of the artifacts that were sent, by path, as JSON."""

MAX_NOTE = 8000
STATUS = {False: "FINISHED", True: "FAILED"}
"""The status of a run that has ended, by whether it failed."""


def update(
    client: MlflowClient, run: Any, content: RunContent, files: Sequence[tuple[Path, str]], *, thorough: bool
) -> None:
    """Sends what `run` lacks; the store keeps repeated data once."""
    from mlflow.entities import Metric, Param, RunTag

    run_id, status = run.info.run_id, STATUS[content.failed]
    done = (run.info.status, run.info.end_time) == (status, content.end_ms)
    tags = content.tags | unchanged_tags(run.data.tags, {NOTE_TAG: content.note})
    points = content.derived if done and not thorough else content.measured + content.derived
    client.log_batch(  # The client keeps to 1000 metrics, 100 parameters and 100 tags per request.
        run_id,
        metrics=[Metric(point.key, point.value, point.timestamp_ms, point.step) for point in points],
        params=[Param(key, value) for key, value in content.params.items() if key not in run.data.params],
        tags=[RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key, "") != value],
    )
    _log_dataset(client, run, content.dataset)
    _log_files(client, run, files, thorough=thorough)
    if content.end_ms is not None and not done:
        # Last, so that a run that counts as done has all its points and files.
        client.set_terminated(run_id, status=status, end_time=content.end_ms)


def _log_dataset(client: MlflowClient, run: Any, dataset: Dataset | None) -> None:
    """Logs the dataset, unless the run already has one."""
    from mlflow.entities import Dataset as MlflowDataset
    from mlflow.entities import DatasetInput, InputTag

    if dataset is None or (run.inputs is not None and run.inputs.dataset_inputs):
        return
    source = json.dumps({"uri": text(dataset.source)})
    there = MlflowDataset(text(dataset.name), dataset.digest, "local", source)
    tags = [InputTag("mlflow.data.context", "training")]
    client.log_inputs(run.info.run_id, [DatasetInput(there, tags)])


def _log_files(client: MlflowClient, run: Any, files: Sequence[tuple[Path, str]], *, thorough: bool) -> None:
    """Sends each existing file, unless the same content was sent before."""
    files = [(path, folder) for path, folder in files if path.is_file()]
    run_id = run.info.run_id
    before = _digests(run.data.tags.get(FILES_TAG, ""))
    sent = dict(before)
    if thorough:
        there = {
            file.path
            for folder in {folder for _, folder in files}
            for file in _list_files(client, run_id, folder)
        }
        sent = {name: digest for name, digest in sent.items() if name in there}
    for path, folder in files:
        name = f"{folder}/{path.name}" if folder else path.name
        digest = _digest_of(path.read_bytes())
        if sent.get(name) != digest:
            client.log_artifact(run_id, str(path), folder or None)
            sent[name] = digest
    if sent != before:
        client.set_tag(run_id, FILES_TAG, json.dumps(sent, sort_keys=True))


def _list_files(client: MlflowClient, run_id: str, folder: str) -> list[Any]:
    return list(client.list_artifacts(run_id, folder or None))


def _digests(tag: str) -> dict[str, str]:
    try:
        digests = json.loads(tag or "{}")
    except ValueError:
        return {}
    return digests if isinstance(digests, dict) else {}


def user_tags(run: Any) -> dict[str, str]:
    """Returns the tags that the user wrote on a run."""
    tags: dict[str, str] = run.data.tags
    plain_tags = {key: value for key, value in tags.items() if not key.startswith(("mlflow.", "sweeper."))}
    note = tags.get(NOTE_TAG)
    written = tags.get(WRITTEN_TAG, "")
    if note is not None and f"{NOTE_TAG}={_digest(note)}" not in written.split():
        plain_tags |= {NOTE_TAG: note, WRITTEN_TAG: written}
    return plain_tags


def unchanged_tags(current: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Returns the tags in `wanted` that the user has not changed since, with `WRITTEN_TAG`, to be written."""
    written = dict(part.split("=", 1) for part in current.get(WRITTEN_TAG, "").split() if "=" in part)
    ours = {
        key: value if key == VIEW_TAG else text(value, MAX_NOTE)
        for key, value in wanted.items()
        if key not in current or written.get(key) == _digest(current[key])
    }
    ours = {key: value for key, value in ours.items() if value or key in current}
    written |= {key: _digest(value) for key, value in ours.items()}
    return ours | ({WRITTEN_TAG: " ".join(f"{k}={v}" for k, v in sorted(written.items()))} if ours else {})


def _digest(value: str) -> str:
    return _digest_of(value.encode())


def _digest_of(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:12]
