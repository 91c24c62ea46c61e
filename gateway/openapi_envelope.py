"""What OpenAPI says of errors on the paths of OpenAI's API: its envelope instead of problems."""

from __future__ import annotations

from typing import Any

from gateway.openai.envelope import ErrorView
from gateway.openai.paths import CHAT, is_openai
from gateway.problems import MEDIA_TYPE

_JSON = "application/json"
_SSE = "text/event-stream"
_REF = "#/components/schemas/{model}"
#: Statuses that the door may answer with too, which knows nothing of paths.
OF_THE_DOOR = ("400", "408", "431", "503")


def describe_envelope(schema: dict[str, Any]) -> None:
    """Give every error of these paths its shape."""
    found = {path: item for path, item in schema["paths"].items() if is_openai(path)}
    if not found:
        return
    error = ErrorView.model_json_schema(ref_template=_REF)
    named = schema["components"]["schemas"]
    named.update(error.pop("$defs"))
    named[ErrorView.__name__] = error
    ours = {"schema": {"$ref": _REF.format(model=ErrorView.__name__)}}
    for item in found.values():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if status in OF_THE_DOOR:
                    answer["content"] = {_JSON: ours, MEDIA_TYPE: answer["content"][MEDIA_TYPE]}
                elif int(status) >= 400:
                    answer["content"] = {_JSON: ours}
    _describe_stream(found)


def _describe_stream(paths: dict[str, Any]) -> None:
    """A completion comes whole or in chunks; FastAPI knows one kind of answer a status."""
    if CHAT in paths:
        content = paths[CHAT]["post"]["responses"]["200"]["content"]
        stream = content.pop(_SSE)
        whole = {"schema": {"$ref": _REF.format(model="ChatCompletion")}}
        content.update({_JSON: whole, _SSE: stream})
