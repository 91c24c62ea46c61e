"""Steps: each knows whether it is pending, how to apply it and how to undo it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from deploy.installer.output import Output


class Step(ABC):
    """One change to the host."""

    #: Units that must be restarted after the change.
    concerns: tuple[str, ...] = ()

    @abstractmethod
    def pending(self) -> str | None:
        """Describes what is to be done; None if it is already done."""

    def diff(self) -> str:
        return ""

    @abstractmethod
    def apply(self) -> None:
        """Applies the change completely, or changes nothing and raises."""

    def undo(self) -> None:  # noqa: B027 (most steps are harmless to keep)
        ...


class Applied:
    """Applied steps, newest last."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @property
    def concerns(self) -> set[str]:
        """Units that must be restarted."""
        return {unit for step in self.steps for unit in step.concerns}

    def undo(self, output: Output) -> None:
        """Undoes all steps, newest first; reports those that fail and continues."""
        while self.steps:
            step = self.steps.pop()
            try:
                step.undo()
            except Exception as error:
                output.hint(f"could not undo {type(step).__name__}: {error}")


def apply_all(steps: Iterable[Step], output: Output) -> Applied:
    """Applies pending steps; if one fails, undoes the earlier ones."""
    applied = Applied()
    try:
        for step in steps:
            what = step.pending()
            if what is not None:
                output.step(what)
                step.apply()
                applied.steps.append(step)
    except BaseException:
        if applied.steps:
            output.step("failed; restoring the previous state")
        applied.undo(output)
        raise
    return applied


def show_all(steps: Iterable[Step], output: Output) -> int:
    """Prints pending steps with diffs of files; returns their number."""
    count = 0
    for step in steps:
        what = step.pending()
        if what is not None:
            count += 1
            output.step(f"would: {what}")
            if difference := step.diff():
                output.line(difference.rstrip("\n"))
    return count
