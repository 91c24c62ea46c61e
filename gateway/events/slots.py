"""Limits of open event streams and long polls: for the process, for each key, and a reserve."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sluice.common.contracts.access import Scope
from sluice.gateway.auth.callers import Caller
from sluice.gateway.http.problems import Problem, retry_headers

#: Key in the ASGI scope for the slot of a request. `RequestMiddleware` releases it.
STREAM_SLOT: Final = "sluice.stream_slot"
#: One key may have a tenth of all slots, and a tenth is reserved for operators.
SHARES: Final = 10
#: A key's share has at least this many slots.
LEAST_SHARE: Final = 10


class StreamSlot:
    """The slot of one request, until it is over."""

    def __init__(self, slots: StreamSlots, key_id: str) -> None:
        self._slots = slots
        self._key_id = key_id

    def release(self) -> None:
        self._slots.release(self._key_id)


class StreamSlots:
    """Counts event streams and long polls by key.

    Operators, which are the local operator and keys with the scope `admin`, have no share: they
    may use every slot, also the reserved ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._share = max(LEAST_SHARE, most // SHARES)
        self._reserve = most // SHARES
        self._by_key: Counter[str] = Counter()
        self.open = 0

    def take(self, caller: Caller) -> StreamSlot:
        """A slot for a request; raises a problem if the limit of the process or key is reached."""
        is_operator = caller.may(Scope.ADMIN)
        if self.open >= self._most - (0 if is_operator else self._reserve):
            reserved = "" if is_operator else f", of which {self._reserve} are reserved for admins"
            raise _too_many(
                f"{self.open} event streams and long polls are open. This process may have "
                f"{self._most} (SSE_MAX_CLIENTS){reserved}."
            )
        if not is_operator and self._by_key[caller.key_id] >= self._share:
            raise _too_many(
                f"{self._share} event streams and long polls of this API key are open, the maximum "
                f"of one key: a tenth of SSE_MAX_CLIENTS, at least {LEAST_SHARE}."
            )
        self._by_key[caller.key_id] += 1
        self.open += 1
        return StreamSlot(self, caller.key_id)

    def release(self, key_id: str) -> None:
        """Free a slot of a key."""
        self.open -= 1
        self._by_key[key_id] -= 1
        if not self._by_key[key_id]:
            del self._by_key[key_id]


def _too_many(detail: str) -> Problem:
    return Problem(503, "too_many_streams", detail, headers=retry_headers(5.0))
