"""What every process does first and last: settings, logs, a Redis to talk to, an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from common.errors import SluiceError, UnsuitableRedis
from common.observability import logs
from common.observability.logs import mask
from common.process import preflight, schema_version

if TYPE_CHECKING:
    from common.settings.base import CommonSettings

Settings = TypeVar("Settings", bound="CommonSettings")

#: How long tasks that were canceled at the end may take to hear of it.
CANCEL_TIMEOUT_S = 1.0
#: Found out while the process was running already.
_unsuitable: list[UnsuitableRedis] = []


@contextmanager
def redis_url(settings: CommonSettings) -> Iterator[str]:
    """REDIS_URL, or a share in the private server for as long as the block lasts."""
    if settings.redis_url is not None:
        yield settings.redis_url
        return
    from common.process.embedded_redis import (
        EmbeddedRedis,  # nobody else needs what it takes to have one
    )

    embedded = EmbeddedRedis(settings.sluice_data_dir, settings.embedded_fsync)
    try:
        url = embedded.acquire()
        schema_version.ensure_compatible(url, settings.partitions, _terminate)
        yield url
    finally:
        embedded.release()


def check_configured_redis(settings: CommonSettings) -> None:
    """Say what is wrong with a Redis that is not ours; raises if it will not do at all.

    If it answers only later, and will not do, the process is ended then.
    """
    if settings.redis_url is not None:
        url = settings.redis_url
        replicas: int = getattr(settings, "wait_replicas", 0)  # a gateway's
        answers = preflight.check_redis(url, _terminate, replicas=replicas)
        schema_version.ensure_compatible(url, settings.partitions, _terminate, answers=answers)


def _terminate(error: UnsuitableRedis) -> None:
    _unsuitable.append(error)
    os.kill(os.getpid(), signal.SIGTERM)


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run until `work` is done, on uvloop where it is installed: about a tenth less CPU a job.

    Whatever else still runs then is canceled, and not waited for any longer than `STOP_GRACE_S`:
    asyncio's own way waits for ever.
    """
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(work)
    finally:
        loop.run_until_complete(_cancel_remaining())
        asyncio.set_event_loop(None)
        if not asyncio.all_tasks(loop):
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _cancel_remaining() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=CANCEL_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


def exit_process(code: int) -> NoReturn:
    """End the process, also where a handler's thread would keep the interpreter."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if any(not thread.daemon for thread in others):
        os._exit(code)
    sys.exit(code)


def run_process(load: Callable[[], Settings], body: Callable[[Settings], int]) -> NoReturn:
    """Run a process to its end; an expected failure is one clear line and an exit code."""
    try:
        settings = load()
        logs.configure(settings)
        try:
            code = body(settings)
        finally:  # also where a signal ended it
            if _unsuitable:
                raise _unsuitable[0]
        exit_process(code)
    except SluiceError as error:
        print(f"sluice: {mask(str(error))}", file=sys.stderr)
        exit_process(error.exit_code)
