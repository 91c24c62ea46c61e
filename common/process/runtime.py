"""Start and end of every process: settings, logging, Redis checks, event loop, exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sluice.common.errors import SluiceError, UnsuitableRedis
from sluice.common.observability import logs, tracing_setup
from sluice.common.observability.logs import mask
from sluice.common.process import preflight, schema_version

if TYPE_CHECKING:
    from sluice.common.settings.base import CommonSettings

Settings = TypeVar("Settings", bound="CommonSettings")

#: Seconds that remaining tasks get to end after they were canceled.
CANCEL_TIMEOUT_S = 1.0
#: Found while the process was already running.
_unsuitable: list[UnsuitableRedis] = []


@contextmanager
def redis_url(settings: CommonSettings) -> Iterator[str]:
    """REDIS_URL, or the private server, which is used for as long as the block runs."""
    if settings.redis_url is not None:
        yield settings.redis_url
        return
    # Imported only where a private server is needed.
    from sluice.common.process.embedded_redis import EmbeddedRedis

    embedded = EmbeddedRedis(settings.sluice_data_dir, settings.embedded_fsync)
    try:
        url = embedded.acquire()
        schema_version.ensure_compatible(url, settings.partitions, _terminate)
        yield url
    finally:
        embedded.release()


def check_configured_redis(settings: CommonSettings) -> None:
    """Log problems of the Redis at REDIS_URL; raises UnsuitableRedis if it cannot be used.

    If Redis answers only later and cannot be used, the process is terminated then.
    """
    if settings.redis_url is not None:
        url = settings.redis_url
        replicas: int = getattr(settings, "wait_replicas", 0)  # only gateways have it
        answers = preflight.check_redis(url, _terminate, replicas=replicas)
        schema_version.ensure_compatible(url, settings.partitions, _terminate, answers=answers)


def _terminate(error: UnsuitableRedis) -> None:
    _unsuitable.append(error)
    os.kill(os.getpid(), signal.SIGTERM)


def run_service(
    settings: CommonSettings, serve: Callable[[str], Coroutine[Any, Any, None]]
) -> None:
    """Check Redis, then run `serve(url)` with tracing until it ends."""
    gc.collect()
    gc.freeze()  # loaded modules stay: later collections need not traverse them
    check_configured_redis(settings)
    tracing_setup.start(settings.service)
    try:
        with redis_url(settings) as url:
            run_loop(serve(url))
    finally:
        tracing_setup.stop()


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, on uvloop if it is installed (about a tenth less CPU time per job).

    Tasks that still run afterwards are canceled, and awaited for CANCEL_TIMEOUT_S at most;
    asyncio.run would wait without a limit.
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
    """End the process, even if a thread of a handler would keep the interpreter alive."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if any(not thread.daemon for thread in others):
        os._exit(code)
    sys.exit(code)


def run_process(load: Callable[[], Settings], body: Callable[[Settings], int]) -> NoReturn:
    """Run a process to its end; an expected failure prints one line and sets the exit code."""
    try:
        settings = load()
        logs.configure(settings)
        try:
            code = body(settings)
        finally:  # also if a signal ended it
            if _unsuitable:
                raise _unsuitable[0]
        exit_process(code)
    except SluiceError as error:
        print(f"sluice: {mask(str(error))}", file=sys.stderr)
        exit_process(error.exit_code)
