"""The process: `python -m sluice.gateway`, or `uvicorn sluice.gateway.main:app`."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import uvicorn

from sluice.common.observability import logs
from sluice.common.process import runtime
from sluice.common.settings.base import load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import TRUSTED_PROXIES, create_app
from sluice.gateway.http import server as listening
from sluice.gateway.http.connection_limits import ConnectionLimits
from sluice.gateway.http.protocol import protocol_for
from sluice.gateway.http.server import GatewayServer

__all__ = ["create_app", "main", "run"]

#: How long requests under way and unread shutdown notices may delay the end of the process.
GRACEFUL_S: Final = 4
#: Idle connections are closed after this time. Many clients close theirs after 5 s; if the gateway
#: did so at the same moment, it could reset the connection of a client that sends a request.
KEEP_ALIVE_S: Final = 15


def run(settings: GatewaySettings) -> int:
    """Serve until stopped by a signal; returns the exit code."""
    sockets = listening.inherited_sockets()
    runtime.check_configured_redis(settings)
    limits = ConnectionLimits.of(settings)
    app = create_app(
        settings,
        beyond_loopback=listening.beyond_loopback(sockets),
        connection_limits=limits,
    )
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        # Only if the operator has named the proxies whose forwarded headers are trusted.
        proxy_headers=bool(os.environ.get(TRUSTED_PROXIES)),
        http=protocol_for(limits),
        ws="none",
        timeout_graceful_shutdown=GRACEFUL_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = GatewayServer(config, lambda: app.state.gateway)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.on_stop_signal)
    server.run(sockets=sockets or None)
    return 0 if server.started or server.should_exit else 1


def main() -> None:
    """Entry point of `python -m sluice.gateway`."""
    runtime.run_process(lambda: load_settings(GatewaySettings), run)


def __getattr__(name: str) -> Any:
    """Create `sluice.gateway.main:app` on first access: importing the module reads no settings."""
    if name == "app":
        settings = load_settings(GatewaySettings)
        logs.configure(settings)
        runtime.check_configured_redis(settings)
        return create_app(settings)
    raise AttributeError(name)
