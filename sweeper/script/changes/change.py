"""Defines what a change to a script is: one class, `Change`, says everything about it.

What it needs is here as well: the kinds of changes, the measured `Step` and the `SpeedupCeiling` that follows
from it, the `ReportCallback` that `apply` calls, and the `Editor` that `edit` calls. `begin_passes`,
`tolerance_of_kernels` and `reason_of` help several changes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .facts import is_on_gpu, may_convolve

if TYPE_CHECKING:
    from typing import ClassVar, NoReturn

EXACT, CLOSE = "exact", "close"
"""Kinds of changes: equal in every bit, or except for rounding. Each change is verified before it is used."""

DRAWS = "other draws"
"""Kind that changes only the random numbers, as another seed would; tried only on request."""

CHANGES_TRAINING = "changes training"
"""Kind that no comparison can show to be harmless; tried only on request, within a limit on the loss."""

LOADER, ARITHMETIC, UPDATES, COLLECTIONS = "loader", "arithmetic", "updates", "collections"
"""Parts of a step that a change could save."""

SINGLE, HALF = 1e-3, 0.08
"""Relative differences of early gradients that the rounding of 32-bit and of 16-bit floats explains."""

ORIGINAL = "original"
"""Value of a change that leaves everything as the script has it."""

NO_EDIT = "it takes more than a few lines of code; use `sweeper exec`"


def tolerance_of_kernels(facts: Mapping[str, Any]) -> float:
    """Returns the relative difference between kernels that compute the same.

    On a GPU, cuDNN may compute convolutions and recurrent layers in TF32, which has 10 bits, as torch allows
    by default. Another kernel may be one in float32.
    """
    has_layers_of_cudnn = may_convolve(facts) or facts.get("recurs", True)
    return HALF if is_on_gpu(facts) and has_layers_of_cudnn and facts.get("cudnn_tf32", True) else SINGLE


class ChangeRefusedError(Exception):
    """Raised if a change is not made to a loader or a model; its text says why."""


def reason_of(error: Exception) -> str:
    """Returns why a change is not made: the text of a refusal, or an error that nobody foresaw."""
    return str(error) if isinstance(error, ChangeRefusedError) else f"{type(error).__name__}: {error}"[:300]


def begin_passes(torch: Any, begin: Callable[[Any, Callable[[Any], Any]], Any]) -> None:
    """Makes the passes of loaders that begin from now on begin with `begin(loader, original)`.

    With persistent workers that is the first pass alone: torch resets its iterator for the others.
    A later call wraps the earlier ones: `original` may be another change's.
    """
    module = torch.utils.data.dataloader
    original = module.DataLoader._get_iterator

    @functools.wraps(original)
    def get_iterator(loader: Any) -> Any:
        return begin(loader, original)

    module.DataLoader._get_iterator = get_iterator


class ReportCallback(Protocol):
    """Callback that receives whether a change is in effect and, if it is not, the reason.

    A change calls `report(True)` once it is in effect, `report(False, why)` if it is not made, and
    `report(False, why, was_applied=True)` if it was in effect and is given up (`given_up` in the
    message to sweeper).
    """

    def __call__(self, is_applied: bool, why: str = "", /, *, was_applied: bool = False) -> None:
        """Reports that the change is in effect, or why it is not, or no longer."""


@dataclasses.dataclass(frozen=True)
class SpeedupCeiling:
    """The largest speedup that a change can bring.

    Attributes:
        ratio: The speed without the part of a step that the change could save, over the speed as it is.
        without: That part, in words: `without updates`.
        min_ratio: The change is not tried if the ratio is below.
    """

    ratio: float
    without: str
    min_ratio: float = 1.02


@dataclasses.dataclass(frozen=True)
class Step:
    """A measured step of the training, and its parts, in seconds.

    Attributes:
        collecting: Seconds in which Python looks for garbage.
        launching: Seconds in which the device waits for the host to launch its operations; None if unknown.
        one_batch_ratio: Speed on one batch that is used repeatedly, over the speed as it is; 0 if unknown.
        shares_cores: Whether the loader's workers take cores that the training computes on.
        is_rough: Whether a device was only seen from the host, which launches its work.
    """

    seconds: float
    data: float = 0.0
    compute: float = 0.0
    optimizer: float = 0.0
    collecting: float = 0.0
    launching: float | None = None
    one_batch_ratio: float = 0.0
    shares_cores: bool = False
    is_rough: bool = False

    def without_loader(self) -> SpeedupCeiling | None:
        """Returns the ceiling of a change that could save all waiting for data; None if it is unknown."""
        if not self.one_batch_ratio and self.shares_cores:
            # Workers slow the rest of the step, too.
            return None
        # The larger of two estimates: a busy machine distorts one, and workers take cores in the other.
        return SpeedupCeiling(max(self._without(self.data), self.one_batch_ratio), "without its loader")

    def without_arithmetic(self) -> SpeedupCeiling:
        """Returns the ceiling of a change of how the model computes."""
        return SpeedupCeiling(self._without(self.compute), "without its arithmetic")

    def without_launches(self) -> SpeedupCeiling | None:
        """Returns the ceiling of a change that launches all operations at once; None if it is unknown."""
        if self.launching is None:
            return None
        return SpeedupCeiling(self._without(self.launching), "without waiting for launches", min_ratio=1.25)

    def without_updates(self) -> SpeedupCeiling | None:
        """Returns the ceiling of a change of the optimizer; None if it is unknown."""
        if self.is_rough:
            return None
        return SpeedupCeiling(self._without(self.optimizer), "without updates")

    def without_collections(self) -> SpeedupCeiling:
        """Returns the ceiling of a change of when garbage is collected."""
        return SpeedupCeiling(self._without(self.collecting), "without looking for garbage")

    def _without(self, part: float) -> float:
        return self.seconds / max(1e-9, self.seconds - part)


class Editor(Protocol):
    """Writes a change into the user's source (`sweeper.script.patch.edits`).

    Each call raises CannotEditError if the source has no place for it.
    """

    value: str
    """The change's value."""
    original: str
    """The script's own value."""
    threads: int
    """Number of threads that the script's operations use."""

    def refuse(self, why: str) -> NoReturn:
        """Leaves the change out of the source, for a reason."""

    def set_argument(self, call: str, name: str, text: str) -> None:
        """Sets an argument where the `loader` or every `optimizer` like the script's is made."""

    def scale_argument(self, call: str, name: str, factor: Callable[[str], float]) -> None:
        """Multiplies an argument by a factor that may depend on the name of the called class."""

    def use_no_workers(self) -> None:
        """Makes the training process read the rows of the loader."""

    def gather_batches(self) -> None:
        """Makes the loader gather its batches from a data set in memory."""

    def call_on_model(self, text: str) -> None:
        """Inserts a statement before the optimizer is made; `{model}` stands for its model."""

    def define(self, name: str) -> None:
        """Adds a function of `sweeper.script.patch.code` to the file that makes the optimizer."""

    def set_globally(self, text: str, *modules: str) -> None:
        """Inserts lines after the imports of the script, and imports `modules`."""

    def set_variable(self, name: str, text: str) -> None:
        """Sets an environment variable before the script imports anything."""


class Change:
    """A change that can be made to any script.

    A change is made in the script's process by `apply`, or by the environment variables that `environment`
    returns. To add one, derive a class in a file of this folder, and list it in `sweeper.script.changes`.
    Required: `name`, `choices`, `kind`, `why`, `apply`, and `edit` or `no_edit`. Smallest: see `gpu.Cudnn`.

    Attributes:
        name: Name of its parameter.
        choices: Its values, without the one that leaves the script as it is, the best first: a later one is
            tried only if those before it fail.
        original: The value that leaves the script as it is.
        kind: Kind of its effect on the training.
        why: One line for the report on what it saves.
        saves: Part of a step that it could save: LOADER, ARITHMETIC, UPDATES or COLLECTIONS; empty for no
            part: then its ceiling is unknown, and it is tried among the first.
        rounding: Relative difference that it may make in the first steps.
        takes_other_kernels: Whether it makes the difference of kernels that compute the same, instead.
        only_feeds: Whether it changes only where batches come from, not what is computed with them. Where
            processes share one model, only such changes and those by the environment are tried.
        shared_refusals: Reasons of `report` that hold for all of its values if they hold for one.
        limit_seconds: Seconds that a run with it may take longer than one without, such as for compiling.
        no_edit: Why it is not written into the user's source; empty if `edit` does.
    """

    name: str
    choices: tuple[str, ...]
    kind: str
    why: str
    original: ClassVar[str] = ORIGINAL
    saves: str = ""
    rounding: float = SINGLE
    takes_other_kernels: bool = False
    only_feeds: bool = False
    shared_refusals: frozenset[str] = frozenset()
    limit_seconds: float = 0.0
    no_edit: str = ""

    @property
    def is_of_environment(self) -> bool:
        """Whether environment variables make it, and not `apply`."""
        return type(self).environment is not Change.environment

    @property
    def keeps_arithmetic(self) -> bool:
        """Whether what is computed with a batch stays as it is."""
        return self.only_feeds or self.is_of_environment

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training; empty if it is.

        Args:
            facts: What the training uses, by the keys of `facts.Facts`.
        """
        return ""

    def tolerance(self, facts: Mapping[str, Any]) -> float:
        """Returns the relative difference that it may make in the first steps of a training."""
        return tolerance_of_kernels(facts) if self.takes_other_kernels else self.rounding

    def ceiling(self, value: str, step: Step) -> SpeedupCeiling | None:
        """Returns the largest speedup of a value; None if it is unknown, or if it saves no part of a step."""
        ceilings: Mapping[str, Callable[[], SpeedupCeiling | None]] = {
            LOADER: step.without_loader,
            ARITHMETIC: step.without_arithmetic,
            UPDATES: step.without_updates,
            COLLECTIONS: step.without_collections,
        }
        return ceilings[self.saves]() if self.saves else None

    def environment(self, value: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the environment variables that make the change; empty for one that `apply` makes."""
        return {}

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Makes the change in this process; `report` is called once it is known to be in effect or not.

        It must be called within the first steps: a built-in change without a report counts as one that the
        training never uses. One that acts later reports as it is installed, or as a pass begins.
        """
        raise NotImplementedError

    def edit(self, editor: Editor) -> None:
        """Writes the change into the user's source."""
        raise NotImplementedError
