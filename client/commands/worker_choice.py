"""Which worker `sluice up` runs: one with the real handlers where there is a model, else echo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum

from client.commands.served_model import ServedModel, served_model

#: What may be asked for: as it fits, always the real handlers, always echo.
WISHES = ("auto", "real", "echo")
_HINT = "Answers are echoes. For a real model: make model (or: sluice model install, then serve)"


class Kind(Enum):
    """The two workers."""

    ECHO = "echo"
    REAL = "real"


class Choice:
    """Follows what `sluice model serve` announces, unless somebody has said what is wanted.

    A model that ends in good order takes its word back, and echo answers again. One that crashed
    does not: its jobs wait for it.
    """

    def __init__(self, wish: str) -> None:
        named = os.environ.get("MODEL_URL", "").strip()
        self._fixed: Kind | None = None
        if wish != WISHES[0]:
            self._fixed = Kind(wish)
        elif named:
            self._fixed = Kind.REAL
        self._named = named
        self._model: ServedModel | None = None
        #: Left behind by one that was killed before we came; nobody waits for that.
        self._stale: ServedModel | None = None
        self._mourned: ServedModel | None = None

    def first(self) -> Kind:
        """The one to begin with."""
        found = served_model()
        if found is not None and not found.answers():
            self._stale = found
        return self.now()

    def now(self) -> Kind:
        """The one that should run."""
        found = served_model()
        self._model = None if found == self._stale else found
        if self._fixed is not None:
            return self._fixed
        return Kind.ECHO if self._model is None else Kind.REAL

    def news(self) -> Iterator[str]:
        """A word on a model that is gone without a word of its own."""
        model = self._model
        if model is None or model == self._mourned or model.is_running():
            return
        if served_model() == model:  # else it took its leave since we looked
            self._mourned = model
            yield f"{model.name} is gone (process {model.pid}); jobs wait for it: make model"

    def words(self, kind: Kind) -> str:
        """Who answers now."""
        if kind is Kind.ECHO:
            return "The echo worker answers everything." if self._fixed else _HINT
        name = self._model.name if self._model is not None else ""
        by = self._named or name or "the model that MODEL_URL or `sluice model serve` names"
        return f"chat, plan and code are answered by {by} now"
