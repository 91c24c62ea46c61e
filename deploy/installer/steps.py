"""Steps: each knows whether it is still to be done, how to do it, and how to take it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from deploy.installer.say import Say


class Step(ABC):
    """One change to the box."""

    #: Units that must be restarted to notice the change.
    concerns: tuple[str, ...] = ()

    @abstractmethod
    def pending(self) -> str | None:
        """What is to be done, in a few words; None where it is done already."""

    def diff(self) -> str:
        """What would change, line by line."""
        return ""

    @abstractmethod
    def apply(self) -> None:
        """Do it whole, or leave everything as it was and raise."""

    def undo(self) -> None:  # noqa: B027 (most steps are harmless to keep)
        """Take it back."""


class Applied:
    """What was done, newest last."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @property
    def concerns(self) -> set[str]:
        """Units that must be restarted."""
        return {unit for step in self.steps for unit in step.concerns}

    def undo(self, say: Say) -> None:
        """Take everything back, newest first, as far as it goes."""
        while self.steps:
            step = self.steps.pop()
            try:
                step.undo()
            except Exception as error:
                say.hint(f"could not be taken back ({type(step).__name__}): {error}")


def apply_all(steps: Iterable[Step], say: Say) -> Applied:
    """Do what is still to be done; when a step fails, take back those before it."""
    applied = Applied()
    try:
        for step in steps:
            what = step.pending()
            if what is not None:
                say.step(what)
                step.apply()
                applied.steps.append(step)
    except BaseException:
        if applied.steps:
            say.step("that failed; putting back what was there before")
        applied.undo(say)
        raise
    return applied


def show_all(steps: Iterable[Step], say: Say) -> int:
    """Say what would be done, with a diff of every file; returns how many steps."""
    count = 0
    for step in steps:
        what = step.pending()
        if what is not None:
            count += 1
            say.step(f"would: {what}")
            if difference := step.diff():
                say.line(difference.rstrip("\n"))
    return count
