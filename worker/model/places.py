"""As many requests at once as the server has slots, and no more: the others wait here, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Places:
    """A semaphore whose size may change; use it with `async with`."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def resize(self, size: int) -> None:
        """From now on so many; whoever is inside stays."""
        self.size = size
        self._wake()

    async def __aenter__(self) -> None:
        if self.busy < self.size and not self._waiting:
            self.busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # called and canceled at once
                self._leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self.busy -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.busy < self.size:
            turn = self._waiting.popleft()
            if not turn.done():
                self.busy += 1
                turn.set_result(None)
