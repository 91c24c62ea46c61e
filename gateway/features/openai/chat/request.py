"""The request body of `POST /v1/chat/completions`, and the payload of its job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

#: Values of `type` in the parts of a message.
_TEXT, _REFUSAL = "text", "refusal"
#: Error type for values that are valid, but not supported.
UNSUPPORTED = "unsupported_value"
#: Key in the context of an error: the member that it concerns.
ABOUT = "about"
Name = Annotated[str, Field(min_length=1, max_length=256)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _LenientModel(BaseModel):
    """Ignores unknown members: SDKs and servers add some to messages of the history."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(_LenientModel):
    """A piece of text."""

    type: Literal["text"]
    text: str


class RefusalPart(_LenientModel):
    """A refusal by a model."""

    type: Literal["refusal"]
    refusal: str


def _only_text(value: object) -> object:
    """Refuse parts that are not text."""
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in (_TEXT, _REFUSAL):
            raise PydanticCustomError(
                UNSUPPORTED, "Only text parts are supported: the models here accept text only"
            )
    return value


Parts = Annotated[list[TextPart], Field(min_length=1)]
Content = Annotated[str | Parts, BeforeValidator(_only_text)]
AssistantContent = Annotated[str | list[TextPart | RefusalPart] | None, BeforeValidator(_only_text)]


class FunctionCall(_LenientModel):
    """A function call; the arguments are JSON as text."""

    name: Name
    arguments: str


class ToolCall(_LenientModel):
    """A tool call by the model."""

    id: Name
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(_StrictModel):
    """Instructions for the whole conversation; `developer` is the same."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(_StrictModel):
    """A message of the user."""

    role: Literal["user"]
    content: Content
    name: Name | None = None


class AssistantMessage(_LenientModel):
    """A message of the model, or its tool calls."""

    role: Literal["assistant"]
    content: AssistantContent = None
    refusal: str | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    audio: None = Field(None, description="Not supported.")
    function_call: None = Field(None, description="Not supported: use `tool_calls`.")


class ToolMessage(_StrictModel):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def message_payload(message: Message) -> dict[str, Any]:
    """The message in the payload of a chat job."""
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


_MOST_TOKENS = 1_000_000
#: The limit of a chat job.
_MOST_MESSAGES = 2000
FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"


class FunctionSpec(_StrictModel):
    """A function that the client implements."""

    name: str = Field(pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments.")
    strict: bool | None = None


class FunctionTool(_StrictModel):
    """A tool that the client runs: the response has the model's `tool_calls`."""

    type: Literal["function"]
    function: FunctionSpec

    def payload(self) -> dict[str, Any]:
        """The tool in the payload of a chat job."""
        view = self.model_dump(exclude_none=True)
        if self.function.parameters is not None:  # nulls inside a schema are kept
            view["function"]["parameters"] = self.function.parameters
        return view


class FunctionChoice(_StrictModel):
    """The function that must be called."""

    name: str = Field(pattern=FUNCTION_NAME)


class NamedChoice(_StrictModel):
    """A choice of one tool."""

    type: Literal["function"]
    function: FunctionChoice


class PlainFormat(_StrictModel):
    """Text, or any JSON object."""

    type: Literal["text", "json_object"]

    def payload(self) -> dict[str, Any]:
        """The format in the payload of a chat job."""
        return self.model_dump()


class SchemaSpec(_StrictModel):
    """The schema of the response."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema.")
    strict: bool | None = None


class SchemaFormat(_StrictModel):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: SchemaSpec

    def payload(self) -> dict[str, Any]:
        """The format in the payload of a chat job."""
        view = self.model_dump(exclude_none=True, by_alias=True)
        view["json_schema"]["schema"] = self.json_schema.schema_  # nulls inside the schema are kept
        return view


class StreamOptions(_StrictModel):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage.")
    include_obfuscation: bool | None = Field(None, description="Ignored.")


Tools = Annotated[list[FunctionTool], Field(max_length=128)]
ToolNames = Annotated[list[Annotated[str, Field(pattern=FUNCTION_NAME)]], Field(max_length=128)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class ChatRequest(_StrictModel):
    """A conversation to continue. `null` is the same as absent."""

    messages: list[Message] = Field(min_length=1, description="The conversation so far.")
    model: Name | None = Field(None, description="One of `GET /v1/models`. Default: any.")
    max_tokens: Tokens | None = Field(None, description="Maximum length of the answer in tokens.")
    max_completion_tokens: Tokens | None = Field(None, description="Newer name of `max_tokens`.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="Sampling temperature."
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Nucleus sampling: probability mass of the candidate tokens."
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = Field(
        None, description="Texts that end the answer."
    )
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = Field(
        None, description="The same seed gives the same answer, if the model server supports it."
    )
    presence_penalty: Penalty | None = Field(
        None, description="Penalty for tokens that occurred before."
    )
    frequency_penalty: Penalty | None = Field(
        None, description="Penalty for tokens by how often they occurred."
    )
    response_format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = (
        Field(None, description="Text, JSON, or JSON that matches a schema.")
    )
    tools: Tools | ToolNames | None = Field(
        None, description="Functions that the client runs, or names of tools that Sluice runs."
    )
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = Field(
        None, description="Whether tools may or must be called; requires `tools`."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="False: at most one call per answer."
    )
    stream: bool | None = Field(
        None, description="Send the answer in chunks while it is generated."
    )
    stream_options: StreamOptions | None = Field(None, description="Requires `stream`.")
    user: Any = Field(None, description="Ignored.")
    metadata: Any = Field(None, description="Ignored.")
    store: Any = Field(None, description="Ignored.")
    service_tier: Any = Field(None, description="Ignored.")
    safety_identifier: Any = Field(None, description="Ignored.")
    prompt_cache_key: Any = Field(None, description="Ignored.")
    prompt_cache_retention: Any = Field(None, description="Ignored.")
    n: Literal[1] | None = Field(None, description="Only 1 is supported.")
    logprobs: Literal[False] | None = Field(None, description="Not supported.")
    top_logprobs: Literal[0] | None = Field(None, description="Not supported.")
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = Field(
        None, description="Not supported."
    )
    modalities: list[Literal["text"]] | None = Field(None, description="Text only.")
    audio: None = Field(None, description="Not supported.")
    prediction: None = Field(None, description="Not supported.")
    functions: None = Field(None, description="Not supported: use `tools`.")
    function_call: None = Field(None, description="Not supported: use `tool_choice`.")
    reasoning_effort: None = Field(None, description="Not supported.")
    verbosity: None = Field(None, description="Not supported.")
    web_search_options: None = Field(None, description="Not supported.")

    @model_validator(mode="after")
    def _agreeing(self) -> ChatRequest:
        if len(self.messages) > _MOST_MESSAGES:
            raise _inconsistency("messages", f"At most {_MOST_MESSAGES} messages are accepted")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise _inconsistency("tool_choice", "`tool_choice` requires `tools`")
        if self.stream_options is not None and not self.stream:
            raise _inconsistency("stream_options", "`stream_options` requires `stream`")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            words = "`max_tokens` and `max_completion_tokens` differ; send one of them"
            raise _inconsistency("max_tokens", words)
        return self

    @property
    def runs_tools(self) -> bool:
        """True if Sluice runs tools, which may take several answers of the model."""
        return any(isinstance(tool, str) for tool in self.tools or ())

    @property
    def wants_json(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    def payload(self) -> dict[str, Any]:
        """The payload of the chat job."""
        found = self.model_dump(include=_PASSED_ON, exclude_none=True)
        found["messages"] = [message_payload(message) for message in self.messages]
        tokens = self.max_completion_tokens or self.max_tokens
        if tokens is not None:
            found["max_tokens"] = tokens
        if self.stop:
            found["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        if self.response_format is not None:
            found["response_format"] = self.response_format.payload()
        if self.tools:
            found["tools"] = [
                tool if isinstance(tool, str) else tool.payload() for tool in self.tools
            ]
        else:
            found.pop("tool_choice", None)
        return found


def _inconsistency(member: str, words: str) -> PydanticCustomError:
    """An error that concerns several members."""
    return PydanticCustomError("invalid_value", words, {ABOUT: member})


#: Members with the same name in the payload of a chat job.
_PASSED_ON = {
    *("model", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"),
    "tool_choice",
}
#: Members of OpenAI's API that are not supported, or only with the values in the schema.
UNSUPPORTED_MEMBERS = frozenset(
    {
        *("n", "logprobs", "top_logprobs", "logit_bias", "modalities", "audio", "prediction"),
        *("functions", "function_call", "reasoning_effort", "verbosity", "web_search_options"),
    }
)
EXAMPLE_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "stream": False,
}
