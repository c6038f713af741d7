"""The points of torch that the hook wraps: few, stable, and all restored once an observation fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_MISSING = object()
if TYPE_CHECKING:
    Function = Callable[..., Any]


class Points:
    """Wrapped functions.

    Args:
        failed: Is told, once, what went wrong in an observation.

    Attributes:
        is_active: Whether nothing has gone wrong yet.
    """

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._undo: list[Callable[[], None]] = []
        self.is_active = True

    def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> Callable[[], None]:
        """Puts `make(original)` in the place of a function of a class or module.

        Returns:
            What restores it; calling it twice does no harm.
        """
        before = vars(owner).get(name, _MISSING)
        function = getattr(owner, name)
        wrapper = functools.wraps(function)(make(function))
        setattr(owner, name, wrapper)

        def restore() -> None:
            if restore in self._undo:
                self._undo.remove(restore)
            # Whoever wrapped it after us goes on calling our wrapper, which calls the original.
            if vars(owner).get(name) is not wrapper:
                return
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(restore)
        return restore

    def fail(self, error: Exception) -> None:
        """Restores everything, since an observation raised; the script goes on unwatched."""
        if self.is_active:
            self.is_active = False
            while self._undo:
                self._undo[-1]()
            self._failed(f"{type(error).__name__}: {error}")

    def guarded(self, report: Function) -> Function:
        """Returns `report` as a function that never raises, and does nothing once one has."""

        def guarded(*args: Any) -> None:
            if self.is_active:
                try:
                    report(*args)
                except Exception as error:
                    self.fail(error)

        return guarded
