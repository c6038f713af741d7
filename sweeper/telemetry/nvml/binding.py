"""Opens and closes the NVML library, puts its errors into words and finds devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# nvmlReturn_t, which never changes; pynvml itself is only imported if there is a GPU.
SUCCESS, NOT_FOUND = 0, 6
_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND = 3, 4, 13
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _MISMATCH = 9, 12, 18
NO_LIBRARY = "libnvidia-ml.so.1 was not found"
"""The one problem of NVML's with which CUDA may work all the same."""
_LOST = {15: "the GPU was lost", 16: "the GPU must be reset"}
_NEVER = {
    _NOT_SUPPORTED: "not reported by this GPU",
    _NO_PERMISSION: "not permitted for this user",
    _FUNCTION_NOT_FOUND: "not reported by this driver, which is too old or too new",
}
_PROBLEMS = {
    _MISMATCH: "the NVIDIA driver was updated, and its older kernel module is still loaded: reboot or reload "
    "the driver",
    _LIBRARY_NOT_FOUND: f"{NO_LIBRARY}: install the NVIDIA driver, or start the container with its GPUs "
    "(`--gpus all`, and NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
    _DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded: `sudo modprobe nvidia`, or reboot",
    _NO_PERMISSION: "this user may not use the NVIDIA driver: check the permissions of /dev/nvidia*, and the "
    "container's or the scheduler's GPUs",
}


class NeverReportedError(Exception):
    """A reading that this device never gives; the text is the reason."""


class NotThisTimeError(Exception):
    """A reading that is unavailable this time; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or an instance of one.

    Attributes:
        handle: The device's own handle.
        gpu_handle: The GPU's handle: the same, except for an instance.
        instance: The GPU instance's number; None for a whole GPU, or if unknown.
    """

    handle: Any
    gpu_handle: Any
    instance: int | None = None

    @property
    def is_mig_instance(self) -> bool:
        """Whether this is a MIG instance."""
        return self.handle is not self.gpu_handle


def code_of(error: Exception) -> int | None:
    """Returns the number of an NVML error; None for other errors."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def is_lost(error: Exception) -> bool:
    """Returns whether the GPU no longer answers."""
    return code_of(error) in _LOST


def is_final(error: Exception) -> bool:
    """Returns whether retrying is useless, as after errors that are not NVML's."""
    code = code_of(error)
    return code in _NEVER if code is not None else not isinstance(error, NotThisTimeError)


def why_absent(error: Exception) -> str:
    """Returns why a reading is absent."""
    message = _NEVER.get(code_of(error) or SUCCESS)
    return f"{message} ({error})" if message else str(error)


def why_unusable(error: Exception) -> str:
    """Returns why NVML or the device cannot be used, and what to do."""
    code = code_of(error)
    if code in _PROBLEMS:
        return f"{_PROBLEMS[code]} ({error})"
    if code in _LOST:
        return (
            f"{_LOST[code]} ({error}): `sudo dmesg | grep Xid` names the cause; reset it with "
            "`sudo nvidia-smi --gpu-reset`, or reboot"
        )
    if isinstance(error, ImportError):
        return f"pynvml is not installed: `pip install nvidia-ml-py` ({error})"
    if code is None:
        return str(error) or type(error).__name__
    return (
        f"NVML says `{error}`: check whether `nvidia-smi` works; reboot or reload the driver if it does not"
    )


def open_nvml() -> Any:
    """Returns pynvml with NVML initialised; each call needs one `nvmlShutdown`."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@contextlib.contextmanager
def initialised() -> Iterator[Any]:
    """Yields pynvml while NVML is initialised."""
    nvml = open_nvml()
    try:
        yield nvml
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def gpus(nvml: Any) -> Iterator[tuple[int, Any]]:
    """Yields index (NVML's, in PCI bus order) and handle of each GPU that answers."""
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            yield index, nvml.nvmlDeviceGetHandleByIndex(index)


def is_split(nvml: Any, gpu_handle: Any) -> bool:
    """Returns whether a GPU is split into MIG instances."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu_handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        return False


def instances(nvml: Any, gpu_handle: Any) -> Iterator[Any]:
    """Yields the handles of a GPU's MIG devices."""
    if not is_split(nvml, gpu_handle):
        return
    with contextlib.suppress(nvml.NVMLError):
        for mig_index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu_handle)):
            with contextlib.suppress(nvml.NVMLError):
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle, mig_index)


def find_device(nvml: Any, uuid: str) -> Device:
    """Returns the device with a UUID.

    The UUID may be complete, lack its prefix, have a wrong prefix (torch reports a MIG device's UUID
    without one, and others then prepend `GPU-`), or be abbreviated, as in CUDA_VISIBLE_DEVICES.

    Raises:
        NeverReportedError: No device matches, or several do.
        NVMLError: NVML does not answer.
    """
    digits = uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
    if not digits:
        raise NeverReportedError(f"a GPU must be named by its UUID, but got `{uuid}`")
    refused: Exception | None = None
    for exact in dict.fromkeys((uuid, f"MIG-{digits}", f"GPU-{digits}")):
        try:
            return device_of(nvml, nvml.nvmlDeviceGetHandleByUUID(exact))
        except nvml.NVMLError as error:
            # Another GPU that is lost can make this call fail; the walk below asks each GPU separately.
            refused = error if is_lost(error) else refused
    handles = _handles_by_uuid(nvml)
    meant = {candidate for candidate in handles if candidate.lower().startswith(uuid.lower())} or {
        candidate for candidate in handles if candidate.partition("-")[2].lower().startswith(digits)
    }
    if len(meant) == 1:
        return device_of(nvml, handles[meant.pop()])
    if meant:
        raise NeverReportedError(
            f"`{uuid}` must name one GPU, but matches {', '.join(sorted(meant))}: give more digits"
        )
    if refused is not None:
        raise refused
    raise NeverReportedError(
        f"`{uuid}` must name a GPU of this machine, but NVML knows {', '.join(handles) or 'none'}"
    )


def _handles_by_uuid(nvml: Any) -> dict[str, Any]:
    handles = {}
    for _, gpu_handle in gpus(nvml):
        for handle in (gpu_handle, *instances(nvml, gpu_handle)):
            with contextlib.suppress(nvml.NVMLError):
                handles[str(nvml.nvmlDeviceGetUUID(handle))] = handle
    return handles


def device_of(nvml: Any, handle: Any) -> Device:
    """Returns the device of a handle, and of the GPU that it belongs to."""
    try:
        answer = nvml.nvmlDeviceIsMigDeviceHandle(handle)
        is_mig_instance = bool(getattr(answer, "value", answer))
    except nvml.NVMLError as error:
        if is_lost(error):
            raise
        is_mig_instance = False
    if not is_mig_instance:
        return Device(handle, handle)
    gpu_handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    try:
        return Device(handle, gpu_handle, int(nvml.nvmlDeviceGetGpuInstanceId(handle)))
    except nvml.NVMLError:
        return Device(handle, gpu_handle)
