"""Tools of MCP servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices
    from sluice.worker.registry import Registry


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    """Offer the tools of the servers in MCP_SERVERS; without any, the feature is not imported."""
    if not settings.mcp_servers:
        return
    from sluice.worker.features.tools.mcp import config
    from sluice.worker.features.tools.mcp.servers import McpServers

    config.check_package()
    servers = config.load(settings.mcp_servers)
    registry.add_service(McpServers(servers, registry.toolbox))
