"""The app: `uvicorn gateway.main:app` or `python -m gateway`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
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
from common.addresses import for_tag
from common.audit_partitions import auditor_over
from common.cancellation import cancel as end
from common.coalescer import MAX_CALLS, Coalescer
from common.images.scripts import IMAGES
from common.images.storage_choice import storage_of
from common.loop_lag import LoopLag
from common.partition_lines import Lines
from common.partitions import HOME
from common.promoter import Promoter
from common.replication import replicated
from common.settings import GatewaySettings, load
from common.version import VERSION
from common.wire import Wire
from common.workflow.scripts import WORKFLOW
from gateway import docs_page, listening, openapi, problems
from gateway.bullmq import queues as bullmq
from gateway.dashboard.polls import PagePolls
from gateway.door import Door
from gateway.edge import Edge
from gateway.guard import Guard, keys_required
from gateway.hosts import Hosts
from gateway.images.results import BLOCK_S, ResultConsumer
from gateway.images.tokens import UploadTokens
from gateway.lane import Gateway
from gateway.metrics import Metrics
from gateway.openai import known_models
from gateway.origins import Origins
from gateway.partitioned_store import stores_over
from gateway.protocol import protocol_for
from gateway.routes import (
    audit,
    bullmq_events,
    bullmq_jobs,
    cancel,
    dead_letters,
    events,
    health,
    images,
    images_content,
    images_events,
    images_upload,
    jobs,
    jobs_list,
    keys,
    metrics,
    openai_chat,
    openai_embeddings,
    openai_models,
    queues,
    rag_documents,
    rag_ontology,
    rag_search,
    redrive,
    stats,
    status,
    stream,
    trail,
    ui,
    ui_session,
    workers,
    workflow_cancel,
    workflow_definitions,
    workflow_jobs,
    workflow_proposals,
    workflow_results,
    workflow_steps,
    workflow_stream,
    workflow_undo,
    workflow_webhooks,
)
from gateway.serving import Server
from gateway.state import GatewayState
from gateway.stats.keeper import StatsKeeper
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
async def running(
    settings: GatewaySettings, url: str, loop_lag: LoopLag
) -> AsyncIterator[GatewayState]:
    """Everything the routes need, for as long as the block lasts."""
    partitions, home = settings.partitions, settings.keys
    # One server may have many partitions, or all: they share what leads there.
    places = [for_tag(url, keys.tag) for keys in partitions.keys]
    names = settings.lane_names
    lines = Lines.over(partitions, url, connections=READ_CONNECTIONS, lanes=names)
    reading = {place: Wire(place) for place in places}
    writing = {place: Wire(place, block_s=MAX_CALLS * settings.wait_s) for place in places}
    patience_s = PATIENCE_S + MAX_CALLS * settings.wait_s
    durable = partial(
        replicated, replicas=settings.wait_replicas, timeout_ms=settings.wait_timeout_ms
    )
    coalescers = [
        Coalescer(durable(writing[place], keys), keys, patience_s)
        for place, keys in zip(places, partitions.keys)
    ]
    lanes = [
        {
            name: Coalescer(durable(writing[place], keys), keys.in_lane(name), patience_s)
            for name in names
        }
        for place, keys in zip(places, partitions.keys)
    ]
    store, queue = stores_over(lines, coalescers, lanes)
    at_home = durable(writing[places[HOME]], home)
    workflows = Coalescer(at_home, home, patience_s, WORKFLOW)
    images = Coalescer(at_home, home, patience_s, IMAGES)
    consuming = Wire(places[HOME], block_s=BLOCK_S)

    def hinted(message: bytes) -> None:
        state.hinted(message)

    listening = Wire(places[HOME], on_message=hinted)
    patience = settings.sse_heartbeat_s, settings.sse_max_life_s
    hub = Hub([reading[place] for place in places], listening, partitions, *patience)
    auditor = auditor_over(lines, settings.worker_group)
    bull_url = settings.bullmq_redis_url or url
    adding, following = Wire(bull_url), Wire(bull_url)
    queues = bullmq.BullQueues(settings, adding, following, hub.numbers)
    state = GatewayState.over(
        settings, store, hub, queue, auditor, lines, workflows, images, queues
    )
    keeper = StatsKeeper.over(state, lambda: loop_lag.worst_s)
    roles = [state.drain_rate.run(), state.pressure.run(), keeper.run()]
    roles += [Promoter(each).run() for each in queue.each]
    if settings.image_consumer:
        roles.append(ResultConsumer(consuming, state.images, state.image_numbers).run())
    caretakers = [asyncio.create_task(role) for role in roles]
    hub.start()
    state.stages.start()
    queues.hub.start()
    try:
        yield state
    finally:
        await end(*caretakers)
        await keeper.leave()
        await hub.stop()
        await state.close()
        beside = [each for own in lanes for each in own.values()]
        for carrier in (*coalescers, *beside, workflows, images):
            await carrier.close()
        for wire in (*writing.values(), *reading.values()):
            await wire.aclose()
        for connection in (listening, consuming, adding, following, lines):
            await connection.aclose()


def create_app(
    settings: GatewaySettings | None = None, *, beyond_loopback: bool = False
) -> FastAPI:
    """The gateway as an ASGI app; settings come from the environment unless given.

    `beyond_loopback`: it will be served, whatever HOST says, where other machines reach it.
    """
    chosen = settings or load(GatewaySettings)
    storage_of(chosen)  # says now what is missing, and not when an image is fetched
    bullmq.check_settings(chosen)
    guard = partial(
        Guard,
        required=keys_required(chosen, beyond_loopback=beyond_loopback),
        upload_tokens=UploadTokens.of(chosen.image_upload_secret),
        dashboard=chosen.dashboard,
    )

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
            loop_lag = app.state.metrics.loop_lag
            app.state.gateway = await stack.enter_async_context(running(chosen, url, loop_lag))
            _say_goodbye_on_signal(app.state.gateway)
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
    app.include_router(jobs_list.router)
    app.include_router(cancel.router)
    app.include_router(events.router)
    app.include_router(openai_chat.router)
    app.include_router(openai_embeddings.router)
    app.include_router(openai_models.router)
    app.include_router(dead_letters.router)
    app.include_router(redrive.router)
    app.include_router(rag_documents.router)
    app.include_router(rag_search.router)
    app.include_router(rag_ontology.router)
    app.include_router(images_events.router)  # `events` is no image's id
    app.include_router(images.router)
    app.include_router(images_upload.router)
    app.include_router(images_content.router)
    app.include_router(bullmq_jobs.router)
    app.include_router(bullmq_events.router)
    app.include_router(audit.router)
    app.include_router(keys.router)
    app.include_router(trail.router)
    app.include_router(metrics.router)
    app.include_router(status.router)
    app.include_router(stats.router)
    app.include_router(stream.router)
    app.include_router(queues.router)
    app.include_router(workers.router)
    app.include_router(health.router)
    app.include_router(workflow_definitions.router)
    app.include_router(workflow_jobs.router)
    app.include_router(workflow_results.router)
    app.include_router(workflow_steps.router)
    app.include_router(workflow_proposals.router)
    app.include_router(workflow_undo.router)
    app.include_router(workflow_cancel.router)
    app.include_router(workflow_stream.router)
    app.include_router(workflow_webhooks.router)
    if chosen.dashboard != "off":
        app.include_router(ui_session.router)
    problems.install(app)
    openapi.install(app)
    known_models.install(app)
    docs_page.install(app)
    if chosen.dashboard != "off":
        ui.install(app)
    app.state.metrics = numbers = Metrics()
    edge = partial(
        Edge,
        max_body_bytes=chosen.max_payload_bytes + ENVELOPE_BYTES,
        # In JSON a text is longer than it is.
        max_document_bytes=2 * chosen.max_document_bytes + ENVELOPE_BYTES,
        body_timeout_s=chosen.body_timeout_s,
        max_upload_bytes=chosen.image_upload_hard_max,
        upload_timeout_s=chosen.image_upload_timeout_s,
        hosts=Hosts(chosen.allowed_hosts),
        origins=Origins(chosen.allowed_origins),
        numbers=numbers.http,
    )
    app.add_middleware(PagePolls)
    app.add_middleware(guard)
    app.add_middleware(edge)
    app.open_lane("POST", "/v1/jobs", jobs.create_job, lambda lane: edge(guard(lane)))
    return app


def _say_goodbye_on_signal(state: GatewayState) -> None:
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
            loop.call_soon_threadsafe(state.say_goodbye)
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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.told_to_stop)
    server.run(sockets=sockets or None)
    return 0 if server.started or server.should_exit else 1


def main() -> None:
    """Entry point of `python -m gateway`."""
    runtime.run_process(lambda: load(GatewaySettings), run)


def __getattr__(name: str) -> Any:
    """`gateway.main:app`, made when a server asks for it: importing reads no settings."""
    if name == "app":
        settings = load(GatewaySettings)
        logs.configure(settings)
        runtime.look_at_redis(settings)
        return create_app(settings)
    raise AttributeError(name)
