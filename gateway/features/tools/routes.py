"""`GET /v1/tools`: the tools that live workers offer."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from sluice.common.contracts.models import ToolOrigin
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.auth.permissions import METRICS
from sluice.gateway.feature import Feature, FeatureContext
from sluice.gateway.features.tools.catalog import ServedTool, ToolCatalog
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.paths import TOOLS
from sluice.gateway.state import state_of

router = APIRouter(tags=["tools"])


class ToolView(BaseModel):
    """A tool that jobs may call."""

    name: str = Field(examples=["calculator"])
    description: str = Field(examples=["Evaluates an arithmetic expression."])
    parameters: dict[str, Any] | None = Field(
        description="JSON Schema of the arguments; null if the worker has too many tools to list "
        "all schemas.",
    )
    origin: ToolOrigin = Field(
        description="Built in, from a module in WORKER_HANDLERS, or from an MCP server."
    )
    server: str | None = Field(None, description="Name of the MCP server.")
    worker_count: int = Field(description="Number of live workers that offer it.")
    workers: list[str] | None = Field(
        None, description="Names of these workers, for keys that may read `/v1/workers`."
    )

    @classmethod
    def of(cls, served: ServedTool, *, with_workers: bool) -> ToolView:
        tool = served.tool
        return cls(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            origin=tool.origin,
            server=tool.server or None,
            worker_count=len(served.workers),
            workers=list(served.workers) if with_workers else None,
        )


class ToolList(BaseModel):
    """Tools by name; empty if no live worker has any."""

    tools: list[ToolView] = Field(
        description="A name occurs more than once if workers define it differently."
    )


@router.get(TOOLS, summary="List tools", responses=problem_responses(_503="Redis does not answer."))
async def list_tools(request: Request) -> ToolList:
    """Returns the tools that live workers offer to `tool` and `chat` jobs. A key with a list of
    tools sees only these."""
    caller, beats = caller_of(request), await state_of(request).workers.cached()
    catalog: ToolCatalog = request.app.state.tools
    with_workers = METRICS.allows(caller.scopes)
    found = [each for each in await catalog.served(beats) if _may_use(caller, each.tool.name)]
    return ToolList(tools=[ToolView.of(each, with_workers=with_workers) for each in found])


def _may_use(caller: Caller, name: str) -> bool:
    return caller.tools is None or name in caller.tools


def _build(context: FeatureContext) -> ToolCatalog:
    return ToolCatalog(context.state.client, context.settings.keys)


FEATURE: Final = Feature([router], "tools", build=_build)
