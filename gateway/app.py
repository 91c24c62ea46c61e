"""The ASGI app: its features and its middleware."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

from fastapi import FastAPI

from sluice.common.settings.base import load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.version import VERSION
from sluice.gateway.admin import audit_log, integrity_audit
from sluice.gateway.admin import queues as queue_admin
from sluice.gateway.admin.dlq import routes as dlq
from sluice.gateway.auth import key_routes, token_routes
from sluice.gateway.auth.middleware import AuthMiddleware, keys_required
from sluice.gateway.dashboard import session_routes, static_files
from sluice.gateway.dashboard.poll_cache import PollCacheMiddleware
from sluice.gateway.feature import Feature
from sluice.gateway.features.bullmq import routes as bullmq
from sluice.gateway.features.images import routes as images
from sluice.gateway.features.images.upload.tokens import UploadTokens
from sluice.gateway.features.openai import routes as openai
from sluice.gateway.features.rag import routes as rag
from sluice.gateway.features.tools import routes as tools
from sluice.gateway.features.workflows import routes as workflows
from sluice.gateway.http import problems, root
from sluice.gateway.http.connection_limits import ConnectionLimits
from sluice.gateway.http.fast_path import GatewayApp
from sluice.gateway.http.middleware import RequestMiddleware
from sluice.gateway.http.openapi import docs_page, schema
from sluice.gateway.http.security import HostPolicy, OriginPolicy
from sluice.gateway.jobs import listing
from sluice.gateway.jobs import routes as jobs
from sluice.gateway.lifespan import run_gateway
from sluice.gateway.observability import workers
from sluice.gateway.observability.history import routes as history
from sluice.gateway.observability.metrics import routes as metrics
from sluice.gateway.observability.metrics.collector import GatewayMetrics
from sluice.gateway.observability.status import routes as status

#: uvicorn's environment variable with the addresses of proxies whose headers it trusts.
TRUSTED_PROXIES: Final = "FORWARDED_ALLOW_IPS"
#: Bytes that a body may have besides the payload.
ENVELOPE_BYTES: Final = 4096


def has_dashboard(settings: GatewaySettings) -> bool:
    return settings.dashboard != "off"


#: In the order of the API reference.
FEATURES: Final[tuple[Feature[Any], ...]] = (
    Feature([jobs.router, jobs.cancel_router, listing.router, jobs.events_router]),
    Feature([openai.router]),
    Feature([dlq.router, dlq.redrive_router]),
    Feature([rag.router]),
    images.FEATURE,
    bullmq.FEATURE,
    Feature([integrity_audit.router]),
    Feature([key_routes.router, token_routes.router]),
    Feature([audit_log.router]),
    Feature([metrics.router]),
    Feature([status.router, root.router]),
    history.FEATURE,
    Feature([queue_admin.router]),
    Feature([workers.router]),
    tools.FEATURE,
    workflows.FEATURE,
    Feature([session_routes.router], enabled=has_dashboard),
)


def create_app(
    settings: GatewaySettings | None = None,
    *,
    beyond_loopback: bool = False,
    connection_limits: ConnectionLimits | None = None,
) -> FastAPI:
    """The gateway as an ASGI app. `settings`: from the environment unless given.

    `beyond_loopback`: other machines can reach the app, regardless of HOST.
    `connection_limits`: those of the server, for the metrics.
    """
    chosen = settings or load_settings(GatewaySettings)
    features = [feature for feature in FEATURES if feature.enabled(chosen)]
    for feature in features:
        if feature.check_settings is not None:
            feature.check_settings(chosen)
    app = GatewayApp(
        title="Sluice",
        version=VERSION,
        description="POST a job, watch it happen live, never lose it.",
        lifespan=partial(run_gateway, settings=chosen, features=features),
        redirect_slashes=False,  # a redirect would use the Host of the request
        docs_url=None,  # FastAPI's page loads scripts from a CDN; see docs_page
        redoc_url=None,
    )
    app.state.metrics = GatewayMetrics(connection_limits)
    for feature in features:
        for router in feature.routers:
            # Not include_router: it analyses each route once more at the first request, which
            # would wait for a tenth of a second. The routers have no prefix or dependencies.
            app.router.routes.extend(router.routes)
    problems.install(app)
    schema.install(app)
    docs_page.install(app)
    if has_dashboard(chosen):
        static_files.install(app)
    _add_middleware(app, chosen, beyond_loopback=beyond_loopback)
    return app


def _add_middleware(app: GatewayApp, settings: GatewaySettings, *, beyond_loopback: bool) -> None:
    """Requests pass RequestMiddleware, then authentication, then the poll cache."""
    edge = partial(
        RequestMiddleware,
        max_body_bytes=settings.max_payload_bytes + ENVELOPE_BYTES,
        # A text is longer when it is escaped in JSON.
        max_document_bytes=2 * settings.max_document_bytes + ENVELOPE_BYTES,
        body_timeout_s=settings.body_timeout_s,
        max_upload_bytes=settings.image_upload_hard_max,
        upload_timeout_s=settings.image_upload_timeout_s,
        hosts=HostPolicy(settings.allowed_hosts),
        origins=OriginPolicy(settings.allowed_origins),
        numbers=app.state.metrics.http,
    )
    guard = partial(
        AuthMiddleware,
        required=keys_required(settings, beyond_loopback=beyond_loopback),
        upload_tokens=UploadTokens.of(settings.image_upload_secret),
        dashboard=settings.dashboard,
        expects_proxy=settings.auth == "off" or bool(os.environ.get(TRUSTED_PROXIES)),
    )
    app.add_middleware(PollCacheMiddleware)
    app.add_middleware(guard)
    app.add_middleware(edge)
    app.add_fast_path("POST", "/v1/jobs", jobs.create_job, lambda route: edge(guard(route)))
