"""The `search_documents` tool: searches the documents of the job's tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol

from pydantic import Field

from sluice.common.codec import schema_pattern
from sluice.common.contracts.rag import DEFAULT_NAMESPACE, NAMESPACE_PATTERN
from sluice.worker.features.tools.builtin.arguments import Arguments
from sluice.worker.features.tools.tool import Call, Tool, make_tool

MOST_HITS = 20


class DocumentSearcher(Protocol):
    """The document store as the tool uses it."""

    async def search(self, tenant: str, ns: str, query: str, k: int) -> Sequence[Any]:
        """The best `k` passages, best first: dataclasses or JSON values."""


class SearchArguments(Arguments):
    """Arguments of `search_documents`."""

    query: str = Field(min_length=1, max_length=2000, description="What to search for, in words.")
    ns: str = Field(
        DEFAULT_NAMESPACE,
        pattern=schema_pattern(NAMESPACE_PATTERN),
        description="The namespace to search.",
    )
    top_k: int = Field(5, ge=1, le=MOST_HITS, description="How many passages.")


def search_tool(searcher: DocumentSearcher) -> Tool:
    """The tool, for `ToolBox.put`. It searches only the documents of the job's tenant."""

    async def search_documents(call: Call, arguments: SearchArguments) -> list[Any]:
        """Searches the stored documents and returns the best passages with their positions."""
        hits = await searcher.search(call.tenant, arguments.ns, arguments.query, arguments.top_k)
        return [_view(hit) for hit in hits]

    return make_tool(search_documents, repeatable=True)


def _view(hit: Any) -> Any:
    if hasattr(hit, "view"):
        return hit.view()
    if is_dataclass(hit) and not isinstance(hit, type):
        return asdict(hit)
    return hit
