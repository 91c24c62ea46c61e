"""The app: `uvicorn gateway.main:app` or `python -m gateway`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from common import logs, runtime, tracing_setup
from common.audit import Auditor
from common.coalescer import Coalescer
from common.connection import async_client
from common.promoter import Promoter
from common.queue import QueueStore
from common.settings import GatewaySettings, load
from common.store import JobStore
from common.version import VERSION
from common.wire import Wire
from gateway import docs_page, listening, openapi, problems
from gateway.access import Access
from gateway.admission import DrainRate
from gateway.door import Door
from gateway.edge import Edge
from gateway.guard import Guard, keys_required
from gateway.hosts import Hosts
from gateway.lane import Gateway
from gateway.metrics import Metrics
from gateway.openai import known_models
from gateway.origins import Origins
from gateway.pressure import Pressure
from gateway.protocol import protocol_for
from gateway.routes import (
    audit,
    cancel,
    dead_letters,
    events,
    health,
    jobs,
    keys,
    metrics,
    openai_chat,
    openai_embeddings,
    openai_models,
    rag_documents,
    rag_search,
    redrive,
    status,
    trail,
    workers,
)
from gateway.serving import Server
from gateway.state import GatewayState
from gateway.tail import Hub

log = logging.getLogger(__name__)

#: Room in a body for everything but the payload.
ENVELOPE_BYTES = 4096
#: How long a request is tried against a Redis that is away before it gets 503.
PATIENCE_S = 2.5
#: How long a client may take to read the farewell of its stream.
FAREWELL_S = 2.0
#: How long requests under way and unread farewells may hold up the end.
GRACEFUL_S = 4
#: Connections for single reads; writes and streams have their own.
READ_CONNECTIONS = 4


@asynccontextmanager
async def running(settings: GatewaySettings, url: str) -> AsyncIterator[GatewayState]:
    """Everything the routes need, for as long as the block lasts."""
    keys = settings.keys
    client = async_client(url, connections=READ_CONNECTIONS)
    writing, reading = Wire(url), Wire(url)
    coalescer = Coalescer(writing, keys, PATIENCE_S)
    store = JobStore(client, keys, coalescer)
    queue = QueueStore(client, keys, coalescer)
    access = Access.over(client, store, queue)
    listening = Wire(url, on_message=lambda message: hub.hinted(message))
    hub = Hub(reading, listening, keys, settings.sse_heartbeat_s, settings.sse_max_life_s)
    drain_rate = DrainRate(store)
    sampling = asyncio.create_task(drain_rate.run())
    promoting = asyncio.create_task(Promoter(queue).run())
    pressure = Pressure.over(client, settings)
    looking = asyncio.create_task(pressure.run())
    hub.start()
    try:
        auditor = Auditor(client, keys, settings.worker_group)
        yield GatewayState(
            settings, store, hub, drain_rate, queue, auditor, client, access, pressure
        )
    finally:
        await access.close()
        sampling.cancel()
        promoting.cancel()
        looking.cancel()
        await hub.stop()
        await coalescer.close()
        for connection in (writing, reading, listening, client):
            await connection.aclose()


def create_app(
    settings: GatewaySettings | None = None, *, beyond_loopback: bool = False
) -> FastAPI:
    """The gateway as an ASGI app; settings come from the environment unless given.

    `beyond_loopback`: it will be served, whatever HOST says, where other machines reach it.
    """
    chosen = settings or load(GatewaySettings)
    guard = partial(Guard, required=keys_required(chosen, beyond_loopback=beyond_loopback))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            shared = runtime.redis_url(chosen)
            url = await loop.run_in_executor(None, shared.__enter__)
            stack.push_async_callback(
                lambda: loop.run_in_executor(None, shared.__exit__, None, None, None)
            )
            tracing_setup.start(chosen.service)
            stack.callback(tracing_setup.stop)
            measuring = asyncio.create_task(app.state.metrics.loop_lag.run())
            stack.callback(measuring.cancel)
            app.state.gateway = await stack.enter_async_context(running(chosen, url))
            _say_goodbye_on_signal(app.state.gateway.hub)
            yield

    app = Gateway(
        title="Sluice",
        version=VERSION,
        description="POST a job, watch it happen live, never lose it.",
        lifespan=lifespan,
        redirect_slashes=False,  # would redirect to whatever Host the client names
        docs_url=None,  # it would load scripts from elsewhere; we have a page of our own
        redoc_url=None,
    )
    app.include_router(jobs.router)
    app.include_router(cancel.router)
    app.include_router(events.router)
    app.include_router(openai_chat.router)
    app.include_router(openai_embeddings.router)
    app.include_router(openai_models.router)
    app.include_router(dead_letters.router)
    app.include_router(redrive.router)
    app.include_router(rag_documents.router)
    app.include_router(rag_search.router)
    app.include_router(audit.router)
    app.include_router(keys.router)
    app.include_router(trail.router)
    app.include_router(metrics.router)
    app.include_router(status.router)
    app.include_router(workers.router)
    app.include_router(health.router)
    problems.install(app)
    openapi.install(app)
    known_models.install(app)
    docs_page.install(app)
    app.state.metrics = numbers = Metrics()
    edge = partial(
        Edge,
        max_body_bytes=chosen.max_payload_bytes + ENVELOPE_BYTES,
        # In JSON a text is longer than it is.
        max_document_bytes=2 * chosen.max_document_bytes + ENVELOPE_BYTES,
        body_timeout_s=chosen.body_timeout_s,
        hosts=Hosts(chosen.allowed_hosts),
        origins=Origins(chosen.allowed_origins),
        numbers=numbers.http,
    )
    app.add_middleware(guard)
    app.add_middleware(edge)
    app.open_lane("POST", "/v1/jobs", jobs.create_job, lambda lane: edge(guard(lane)))
    return app


def _say_goodbye_on_signal(hub: Hub) -> None:
    """End event streams as soon as the server is told to stop.

    The server waits for open connections before it shuts the app down, so waiting for that
    would be too late. sse-starlette's own way cuts streams off in the middle.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    loop = asyncio.get_running_loop()

    def cut_off() -> None:
        AppStatus.should_exit = True  # for clients that do not even read the farewell

    def chain(number: signal.Signals) -> None:
        previous = signal.getsignal(number)

        def on_signal(signum: int, frame: FrameType | None) -> Any:
            loop.call_soon_threadsafe(hub.say_goodbye)
            loop.call_soon_threadsafe(loop.call_later, FAREWELL_S, cut_off)
            if callable(previous):
                previous(signum, frame)

        signal.signal(number, on_signal)

    chain(signal.SIGTERM)
    chain(signal.SIGINT)


def run(settings: GatewaySettings) -> int:
    """Serve until told to stop; returns the exit code."""
    sockets = listening.inherited()
    runtime.look_at_redis(settings)
    app = create_app(settings, beyond_loopback=listening.beyond_loopback(sockets))
    app.state.metrics.door = door = Door.of(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        # Only where the operator has named the proxies that may say whom they speak for.
        proxy_headers=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
        http=protocol_for(door),
        ws="none",
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    server = Server(config, lambda: app.state.gateway)
    # When it has shut down, the server raises the signal again for whoever had it before.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: sys.exit(0))
    server.run(sockets=sockets or None)
    return 0 if server.started else 1


def main() -> None:
    """Entry point of `python -m gateway`."""
    runtime.run_process(GatewaySettings, run)


def __getattr__(name: str) -> Any:
    """`gateway.main:app`, made when a server asks for it: importing reads no settings."""
    if name == "app":
        settings = load(GatewaySettings)
        logs.configure(settings)
        runtime.look_at_redis(settings)
        return create_app(settings)
    raise AttributeError(name)
