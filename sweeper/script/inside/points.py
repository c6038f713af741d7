"""Wraps the points of torch that the hook watches, and restores all of them once an observation fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_MISSING = object()
if TYPE_CHECKING:
    Function = Callable[..., Any]


class Wrapper:
    """A wrapped function of a class or module. Wrappers that others added later stay in place."""

    def __init__(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        self._owner, self._name = owner, name
        self._before = vars(owner).get(name, _MISSING)
        self._original = getattr(owner, name)
        self._wrapper = functools.wraps(self._original)(make(self._original))
        self._is_gone = False
        setattr(owner, name, self._wrapper)

    # `suspend` and `resume` make few calls, since they are part of some steps.
    def suspend(self) -> None:
        """Puts the original back until `resume` is called, since watching every call would cost too much."""
        if self._owner.__dict__.get(self._name) is self._wrapper:
            if self._before is _MISSING:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._before)

    def resume(self) -> None:
        """Puts the wrapper in place again after `suspend`."""
        if self._owner.__dict__.get(self._name, _MISSING) is self._before and not self._is_gone:
            setattr(self._owner, self._name, self._wrapper)

    def restore(self) -> None:
        """Puts the original back for good; calling it twice does no harm."""
        self.suspend()
        self._is_gone = True


class Points:
    """All wrapped functions.

    Args:
        failed: Called once, with the error of the first observation that fails.

    Attributes:
        is_active: Whether nothing has gone wrong yet.
    """

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._wrappers: list[Wrapper] = []
        self.is_active = True

    def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> Wrapper:
        """Puts `make(original)` in the place of a function of a class or module."""
        wrapper = Wrapper(owner, name, make)
        self._wrappers.append(wrapper)
        return wrapper

    def fail(self, error: Exception) -> None:
        """Restores everything after an observation raised `error`; the script continues unwatched."""
        if self.is_active:
            self.is_active = False
            for wrapper in reversed(self._wrappers):
                wrapper.restore()
            self._failed(f"{type(error).__name__}: {error}")

    def guard(self, report: Function) -> Function:
        """Returns `report` as a function that never raises, and does nothing once an observation failed."""

        def report_safely(*args: Any) -> None:
            if self.is_active:
                try:
                    report(*args)
                except Exception as error:
                    self.fail(error)

        return report_safely
