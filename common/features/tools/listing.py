"""A list of tools as workers publish it and gateways read it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from sluice.common import codec
from sluice.common.contracts.models import ToolOrigin

#: Most tools in a list.
MOST_TOOLS: Final = 512
#: Bytes of JSON after which tools are listed without schema and with a short description.
MOST_DETAIL_BYTES: Final = 256 * 1024
SHORT_DESCRIPTION: Final = 200
#: Longer lists are ignored.
MOST_BYTES: Final = 1024 * 1024
#: Seconds after which a list expires that no worker has published again.
TTL_S: Final = 120

Name = Annotated[str, Field(max_length=256)]


@dataclass(frozen=True)
class ListedTool:
    """A tool as `GET /v1/tools` shows it."""

    name: Name
    description: Annotated[str, Field(max_length=10_000)]
    #: JSON Schema of the arguments; None if the list has become too long.
    parameters: dict[str, Any] | None
    origin: ToolOrigin
    #: Name of the MCP server; empty for other tools.
    server: Name = ""


def encode_tools(tools: Iterable[ListedTool]) -> bytes:
    """The list as JSON, with a limited number of tools and of bytes."""
    parts: list[bytes] = []
    left = MOST_DETAIL_BYTES
    for tool in islice(tools, MOST_TOOLS):
        encoded = _encode(tool)
        if len(encoded) <= left:
            left -= len(encoded)
        else:
            short = tool.description[:SHORT_DESCRIPTION]
            encoded = _encode(replace(tool, description=short, parameters=None))
        parts.append(encoded)
    return b"[%b]" % b",".join(parts)


def _encode(tool: ListedTool) -> bytes:
    try:
        return codec.dumps(asdict(tool))
    except (TypeError, ValueError, RecursionError):  # texts that UTF-8 cannot represent
        return codec.dumps(asdict(replace(tool, description="", parameters=None)))


def digest_of(raw: bytes) -> str:
    """The digest that names a list."""
    return hashlib.sha256(raw).hexdigest()[:32]


def parse_tools(raw: bytes | None) -> Sequence[ListedTool] | None:
    """Parse a list; None if it is missing or invalid."""
    if raw is None or len(raw) > MOST_BYTES:
        return None
    try:
        return _reader().validate_json(raw)
    except ValidationError:
        return None


@cache
def _reader() -> TypeAdapter[list[ListedTool]]:
    """The validator. It is built on first use: workers do not read lists."""
    return TypeAdapter(list[ListedTool])
