"""The messages of a chat request: what OpenAI's SDKs send, as far as a text model can take it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

#: What a part of a message may be, as its `type` says.
_TEXT, _REFUSAL = "text", "refusal"
#: The type of the error for what we understand but cannot do.
UNSUPPORTED = "unsupported_value"
#: Where an error of the whole request says which member it is about.
ABOUT = "about"
Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Lenient(BaseModel):
    """History as other servers and SDKs hand it back has members that nobody needs."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(_Lenient):
    """A piece of text."""

    type: Literal["text"]
    text: str


class RefusalPart(_Lenient):
    """What a model said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


def _only_text(value: object) -> object:
    """Refuse images, audio and files by their name."""
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in (_TEXT, _REFUSAL):
            raise PydanticCustomError(
                UNSUPPORTED, "Only text parts are supported: the model here takes text alone"
            )
    return value


Parts = Annotated[list[TextPart], Field(min_length=1)]
Content = Annotated[str | Parts, BeforeValidator(_only_text)]
Spoken = Annotated[str | list[TextPart | RefusalPart] | None, BeforeValidator(_only_text)]


class FunctionCall(_Lenient):
    """What to call, with arguments as text that is meant to be JSON."""

    name: Name
    arguments: str


class Call(_Lenient):
    """A call that the model wanted made."""

    id: Name
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(_Strict):
    """What holds for the whole conversation; `developer` is the same."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(_Strict):
    """What the user said."""

    role: Literal["user"]
    content: Content
    name: Name | None = None


class AssistantMessage(_Lenient):
    """What the model said, or the tools it wanted called."""

    role: Literal["assistant"]
    content: Spoken = None
    refusal: str | None = None
    name: Name | None = None
    tool_calls: Annotated[list[Call], Field(max_length=128)] | None = None
    audio: None = Field(None, description="Not supported.")
    function_call: None = Field(None, description="Not supported: use `tool_calls`.")


class ToolMessage(_Strict):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def message_payload(message: Message) -> dict[str, Any]:
    """The message as a chat job takes it."""
    found = message.model_dump(exclude_none=True, include=_KEPT)
    content = message.content
    if isinstance(message, AssistantMessage) and content is None:
        content = message.refusal if message.refusal or message.tool_calls else ""
    found["content"] = _text(content)
    if isinstance(message, SystemMessage):
        found["role"] = "system"
    if not found.get("tool_calls", True):
        del found["tool_calls"]
    return found


_KEPT = {"role", "content", "name", "tool_calls", "tool_call_id"}


def _text(content: str | list[TextPart] | list[TextPart | RefusalPart] | None) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
