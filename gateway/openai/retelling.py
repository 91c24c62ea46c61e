"""What was said of an answer so far, over attempts and rounds: nothing twice, nothing taken back.

A worker may die in the middle of an answer. What the next attempt says is left out for as long as
it repeats what the client has; it goes on from there, or it turns out to be another answer.
"""

from __future__ import annotations

from typing import Any

from common.contracts.models import DeltaField

#: Between the answers of an agent that asked the model several times.
PARAGRAPH = "\n\n"


class Restarted(Exception):
    """What comes is another answer than the one that the client has a part of."""


class Retelling:
    """One text on its way to a client: the answer, or the thoughts before it."""

    def __init__(self, *, continuing: bool = False) -> None:
        """`continuing`: rounds follow one another; else a later round replaces the earlier."""
        self._continuing = continuing
        self._attempt = 0
        #: Events of this attempt so far, and whether none was missed.
        self._n = 0
        self._whole = True
        #: What the client has of each round, and how much of this one this attempt has said.
        self._said: dict[int, str] = {}
        self._round = 1
        self._place = 0

    def begin(self, attempt: int) -> None:
        """An attempt begins."""
        if attempt > self._attempt:
            self._attempt = attempt
            self._n = self._place = 0
            self._round = 1
            self._whole = True

    def miss(self) -> None:
        """Events were lost on the way."""
        self._whole = False

    def hear(self, data: dict[str, Any]) -> str:
        """What an event adds for the client; raises Restarted."""
        delta = data.get(DeltaField.DELTA.value)
        attempt = data.get(DeltaField.ATTEMPT.value, self._attempt)
        if not isinstance(delta, str) or not isinstance(attempt, int) or attempt < self._attempt:
            return ""
        self.begin(attempt)
        number = data.get(DeltaField.N.value, self._n + 1)
        if number != self._n + 1:
            self.miss()
        self._n = number if isinstance(number, int) else self._n
        if not self._whole:
            return ""  # nobody knows where it belongs; the end will tell
        return self._add(delta, self._key(data.get(DeltaField.ROUND.value, 1)))

    def end(self, text: str) -> str:
        """What is missing of the whole text; raises Restarted."""
        key = max(self._said, default=1)
        said = self._said.get(key, "")
        if text.startswith(said):
            return self._say(text[len(said) :], key)
        current = self._round if self._continuing else 1
        if self._whole and current == key and self._place == len(said):
            return ""  # all was told; the result is worded otherwise
        if self._continuing:
            return self._say(text, key + 1)
        raise Restarted

    def _key(self, number: object) -> int:
        """The round that an event belongs to, as far as the client is concerned."""
        number = number if isinstance(number, int) else 1
        if number != self._round:
            self._round = number
            self._place = 0
        return number if self._continuing else 1

    def _add(self, delta: str, key: int) -> str:
        said = self._said.get(key, "")
        known = said[self._place : self._place + len(delta)]
        if not delta.startswith(known):
            raise Restarted
        self._place += len(delta)
        fresh = delta[len(known) :]
        if fresh and key < max(self._said, default=1):
            raise Restarted  # something else was said after it
        return self._say(fresh, key)

    def _say(self, fresh: str, key: int) -> str:
        if not fresh:
            return ""
        before = self._said.get(key, "")
        self._said[key] = before + fresh
        return PARAGRAPH + fresh if not before and len(self._said) > 1 else fresh
