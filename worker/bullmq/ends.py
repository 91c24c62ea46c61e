"""Jobs that end well, told to Redis a few at a time.

The answers of Redis come many at once, each ends a job, and each end is a call. A call for each
costs Redis and us more than what it does. One for all would let Redis do nothing while we work,
and us while Redis does.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from worker.bullmq.line import ScriptLine
from worker.bullmq.scripts import End, QueueScripts

#: Jobs that are told together, unless the turn of the event loop ends sooner.
MOST_TOGETHER: Final = 8

Said = list[tuple[End, "asyncio.Future[Any]"]]


class Ends:
    """Gathers the ends of one turn; each gets the answer that is its own."""

    def __init__(self, line: ScriptLine, scripts: QueueScripts) -> None:
        self._line = line
        self._scripts = scripts
        self._gathered: Said = []
        self._carrying: set[asyncio.Task[None]] = set()

    def say(self, end: End) -> asyncio.Future[Any]:
        """What the script answers; raises what Redis or the network did instead."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        gathered = self._gathered
        gathered.append((end, answered))
        if len(gathered) >= MOST_TOGETHER:
            self._send(gathered)
        elif len(gathered) == 1:
            loop.call_soon(self._send, gathered)
        return answered

    def _send(self, gathered: Said) -> None:
        if self._gathered is gathered:
            self._gathered = []
            task = asyncio.get_running_loop().create_task(self._carry(gathered))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, gathered: Said) -> None:
        try:
            call = self._scripts.complete([end for end, _ in gathered])
            answers = await self._line.call(call)
        except BaseException as error:
            answers = [error] * len(gathered)
            if not isinstance(error, Exception):
                raise
        finally:
            for (_, answered), answer in zip(gathered, answers):
                if answered.done():  # whoever asked has left
                    continue
                if isinstance(answer, BaseException):
                    answered.set_exception(answer)
                else:
                    answered.set_result(answer)
