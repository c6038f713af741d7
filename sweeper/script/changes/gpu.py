"""Changes how torch uses a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .change import ARITHMETIC, CLOSE, EXACT, HALF, Change, Editor, ReportCallback, begin_passes
from .facts import has_loader, is_in_float32, is_on_gpu, may_convolve


class _GpuChange(Change):
    """A setting of torch for training on a GPU."""

    kind = CLOSE

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        return "" if is_on_gpu(facts) else "it does not train on a GPU"


class Tf32(_GpuChange):
    """Computes matrix products of float32 on tensor cores, with 10 bits of mantissa."""

    name = "tf32"
    choices = ("on",)
    why = "tensor cores multiply float32 matrices"
    saves = ARITHMETIC
    rounding = HALF

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not is_in_float32(facts):
            return "the script computes in a precision other than float32"
        if facts.get("tf32") and facts.get("cudnn_tf32", True):
            return "the script has set it"
        return super().refusal(value, facts)

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Allows TF32 for matrix products and convolutions."""
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        report(True)

    def edit(self, editor: Editor) -> None:
        """Allows TF32 in the script."""
        editor.set_globally(
            "torch.backends.cuda.matmul.allow_tf32 = True\ntorch.backends.cudnn.allow_tf32 = True", "torch"
        )


class Cudnn(_GpuChange):
    """Makes cuDNN measure its algorithms for each shape of a convolution, and take the fastest."""

    name = "cudnn_benchmark"
    choices = ("search",)
    why = "convolutions use the algorithm that was measured to be the fastest"
    saves = ARITHMETIC
    takes_other_kernels = True

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if facts.get("cudnn_search"):
            return "the script has set it"
        return super().refusal(value, facts) or (
            "" if may_convolve(facts) else "it has no convolutions of images"
        )

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Turns on cuDNN's search."""
        torch.backends.cudnn.benchmark = True
        report(True)

    def edit(self, editor: Editor) -> None:
        """Turns on cuDNN's search in the script."""
        editor.set_globally("torch.backends.cudnn.benchmark = True", "torch")


class Pinned(_GpuChange):
    """Puts batches into page-locked memory, from which a GPU copies without the processor's help."""

    name = "pin_memory"
    choices = ("on",)
    kind = EXACT
    why = "batches are in page-locked memory, which a GPU copies faster"
    only_feeds = True

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not has_loader(facts):
            return "its batches do not come from a DataLoader"
        if facts.get("pin_memory"):
            return "its loader already pins memory"
        return super().refusal(value, facts)

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Pins the batches of the passes that begin from now on; the loaders stay as they were."""

        def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
            before, loader.pin_memory = loader.pin_memory, True
            report(True)
            try:
                return original(loader)
            finally:
                loader.pin_memory = before

        begin_passes(torch, begin_pass)

    def edit(self, editor: Editor) -> None:
        """Sets `pin_memory`."""
        editor.set_argument("loader", "pin_memory", "True")
