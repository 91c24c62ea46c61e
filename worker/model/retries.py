"""What to do about a request that came to nothing before anything was said: ask again, or whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from common.contracts.workers import ModelState
from worker.errors import JobError
from worker.model.errors import ModelConnectTimeout, ModelFailed
from worker.model.http import Hiccup
from worker.model.watch import Watch

#: Seconds before each further try. A server that is started again is away for longer than this;
#: then jobs wait, which costs them nothing.
PAUSES_S = (0.1, 0.4)
#: A wait that a busy server may ask for without the job giving up its place.
MOST_PATIENCE_S = 5.0

Try = Callable[[], Awaitable[None]]


async def persistently(
    attempt: Try,
    watch: Watch,
    task: str = "",
    remaining_s: Callable[[], float | None] = lambda: None,
) -> None:
    """Run `attempt` until it returns; raises what becomes of the job where it never does.

    It raises Hiccup only where it may be run again.
    """
    hiccups: list[Hiccup] = []
    while True:
        try:
            return await attempt()
        except Hiccup as hiccup:
            hiccups.append(hiccup)
        pause_s = _pause_s(hiccups)
        left_s = remaining_s()
        if pause_s is None or (left_s is not None and pause_s >= left_s):
            raise await _given_up(hiccups, watch, task)
        await asyncio.sleep(pause_s)


def _pause_s(hiccups: list[Hiccup]) -> float | None:
    """How long to wait before the next try; None for no further one."""
    last = hiccups[-1]
    if last.loading or last.slow or len(hiccups) > len(PAUSES_S):
        return None
    pause_s = PAUSES_S[len(hiccups) - 1]
    if last.retry_after_s is None:
        return pause_s
    return max(last.retry_after_s, pause_s) if last.retry_after_s <= MOST_PATIENCE_S else None


async def _given_up(hiccups: list[Hiccup], watch: Watch, task: str) -> JobError:
    """The error that stands for all of them."""
    last, words = hiccups[-1], str(hiccups[-1])
    if last.loading:
        watch.loading(words)
        return watch.unavailable(task, words)
    if not last.reached:
        watch.missed(words)
    if any(hiccup.broke for hiccup in hiccups):
        # It went down with this request in its hands. Should the request be the reason, it must
        # not bring it down for ever: this attempt counts.
        return ModelFailed(words, retry_after_s=watch.retry_after_s(task))
    if last.slow:
        words = f"{words} (MODEL_CONNECT_TIMEOUT_S)"
        return ModelConnectTimeout(words, retry_after_s=watch.retry_after_s(task))
    if not last.reached:
        return watch.unavailable(task, words)
    if last.busy:
        watch.failed(words)  # should it stay so, nobody asks it for a while, and jobs wait
        after_s = max(last.retry_after_s or 0.0, watch.retry_after_s(task))
        error = watch.unavailable(task, words)
        error.retry_after_s = after_s
        return error
    if await watch.look() is not ModelState.READY:
        return watch.unavailable(task)
    return ModelFailed(words, retry_after_s=last.retry_after_s)
