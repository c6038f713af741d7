"""Keeps the collated rows of a data set on the GPU, and gathers batches there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..change import ChangeRefusedError, ReportCallback, reason_of
from .trees import build_batch

if TYPE_CHECKING:
    from .collating import CollatedRows

FIRST_BATCHES = 4
"""Batches that are gathered on the host: by then the model and its optimizer have taken their memory."""
MAX_SHARE = 0.8
"""Maximum share of the GPU's free memory that the rows may take."""
GIB = 2**30


class DeviceRows:
    """The collated rows of a loader, which move to the GPU once the training uses it."""

    def __init__(self, torch: Any, collated: CollatedRows, report: ReportCallback) -> None:
        self._torch, self._collated, self._report = torch, collated, report
        self._leaves: list[Any] | None = None
        self._num_batches, self._is_refused = 0, False

    def gather(self, indices: Any) -> Any:
        """Returns the batch of the rows `indices`; None as long as, or if, it is gathered on the host."""
        self._num_batches += 1
        if self._leaves is None and not self._is_refused and self._is_due():
            try:
                self._leaves = self._copy_to_gpu()
                self._report(True)
            except Exception as error:
                self._is_refused = True
                self._report(False, reason_of(error))
        if self._leaves is None or (index := self._collated.index_of(indices)) is None:
            return None
        # From pinned memory, the copy does not wait for the GPU.
        on_device = index.pin_memory().to(self._leaves[0].device, non_blocking=True)
        return build_batch(
            self._collated.tree, iter([leaf.index_select(0, on_device) for leaf in self._leaves])
        )

    def _is_due(self) -> bool:
        return self._num_batches > FIRST_BATCHES and bool(self._torch.cuda.is_initialized())

    def _copy_to_gpu(self) -> list[Any]:
        """Returns copies of the rows on the current GPU.

        Raises:
            ChangeRefusedError: They do not fit beside the model.
        """
        cuda = self._torch.cuda
        size, (free, _) = self._collated.num_bytes, cuda.mem_get_info()
        if size > MAX_SHARE * free:
            raise ChangeRefusedError(
                f"its rows take {size / GIB:.2f} GiB, more than {MAX_SHARE * free / GIB:.2f} GiB,"
                f" {MAX_SHARE:.0%} of what the training leaves free on the GPU"
            )
        device = self._torch.device("cuda", cuda.current_device())
        return [leaf.to(device) for leaf in self._collated.leaves]
