"""A command line that may have its options before, between and behind its words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """As argparse's, which gives words that may be missing up at the first option.

    A parser with actions leaves that to theirs, which are of this class too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._within = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse what is known."""
        plain = self._within or self._subparsers is not None or self._takes_the_rest
        if plain:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False

    @property
    def _takes_the_rest(self) -> bool:
        return any(action.nargs == argparse.REMAINDER for action in self._actions)
