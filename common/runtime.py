"""What every process does first and last: settings, logs, a Redis to talk to, an exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from common import logs, preflight
from common.embedded import EmbeddedRedis
from common.errors import SluiceError
from common.settings import CommonSettings, Settings, load


@contextmanager
def redis_url(settings: CommonSettings) -> Iterator[str]:
    """REDIS_URL, or a share in the private server for as long as the block lasts."""
    if settings.redis_url is not None:
        yield settings.redis_url
        return
    embedded = EmbeddedRedis(settings.sluice_data_dir, settings.embedded_fsync)
    try:
        yield embedded.acquire()
    finally:
        embedded.release()


def look_at_redis(settings: CommonSettings) -> None:
    """Say what is wrong with a Redis that is not ours; raises if it will not do at all."""
    if settings.redis_url is not None:
        preflight.look_at(settings.redis_url)


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run until `work` is done, on uvloop where it is installed: about a tenth less CPU a job."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def run_process(kind: type[Settings], body: Callable[[Settings], int]) -> NoReturn:
    """Run a process to its end; an expected failure is one clear line and an exit code."""
    try:
        settings = load(kind)
        logs.configure(settings)
        sys.exit(body(settings))
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
