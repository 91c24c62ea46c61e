"""Payload of the task `chat`, in OpenAI's format, with limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from sluice.common import codec
from sluice.worker.features.model.output_parsing import nesting_depth

#: Most characters of one text. Payloads sent over HTTP have a lower limit.
TEXT_CHARS = 1_000_000
#: Limits of a JSON Schema.
SCHEMA_BYTES = 64 * 1024
SCHEMA_LEVELS = 40
#: Names of functions and tools; a dot separates a server and its tool.
NAME = r"^[A-Za-z0-9_.-]{1,128}$"

Text = Annotated[str, Field(max_length=TEXT_CHARS)]
Name = Annotated[str, Field(pattern=NAME)]
#: Names and ids in messages, including those that the model generated.
Label = Annotated[str, Field(min_length=1, max_length=256)]


class StrictModel(BaseModel):
    """Rejects unknown members."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingOptions(StrictModel):
    """Sampling options. Missing ones are left to the model server."""

    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)


def check_schema_size(schema: Any) -> Any:
    """Check the size of a schema; its validity is checked later."""
    if not isinstance(schema, (dict, bool)):
        raise ValueError("a JSON Schema is an object")
    size = len(codec.dumps(schema))
    if size > SCHEMA_BYTES:
        raise ValueError(f"the schema has {size} bytes, {SCHEMA_BYTES} at most")
    if nesting_depth(schema) > SCHEMA_LEVELS:
        raise ValueError(f"the schema is nested deeper than {SCHEMA_LEVELS} levels")
    return schema


class FunctionCall(StrictModel):
    """A function call of an earlier turn."""

    name: Label
    arguments: Text


class MessageToolCall(StrictModel):
    """A tool call of an earlier turn, with its id."""

    id: Label
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(StrictModel):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    name: Label | None = None
    tool_calls: list[MessageToolCall] | None = Field(None, min_length=1, max_length=128)
    tool_call_id: Label | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("only an assistant message may have tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id is required in a tool message, and only there")
        if self.content is None and self.tool_calls is None:
            raise ValueError("content is missing")
        return self

    def view(self) -> dict[str, Any]:
        """The message for the model server."""
        return {"content": None, **self.model_dump(exclude_none=True)}


class Function(StrictModel):
    """A function defined by the client; the model may ask for a call of it."""

    name: Name
    description: str | None = Field(None, max_length=10_000)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    _small = field_validator("parameters")(check_schema_size)


class FunctionTool(StrictModel):
    """A function in OpenAI's format."""

    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    """The function that the model must call."""

    name: Name


class FunctionChoice(StrictModel):
    """A tool choice in OpenAI's format."""

    type: Literal["function"]
    function: FunctionName


class AnswerSchema(StrictModel):
    """The JSON Schema of an answer."""

    name: str = Field("answer", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(None, max_length=10_000)
    schema_: Any = Field(alias="schema")
    strict: bool | None = None

    _small = field_validator("schema_")(check_schema_size)


class ResponseFormat(StrictModel):
    """Text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("json_schema is required for the type json_schema, and only there")
        return self

    def view(self) -> dict[str, Any] | None:
        """The format for the model server; None for text."""
        if self.type == "text":
            return None
        # Nulls within the client's schema are kept.
        view = self.model_dump(by_alias=True, exclude_none=True)
        if self.json_schema is not None:
            view["json_schema"]["schema"] = self.json_schema.schema_
        return view


def _tools_tag(value: Any) -> str:
    items = value if isinstance(value, list) else []
    functions = any(isinstance(item, (dict, FunctionTool)) for item in items)
    return "functions" if functions else "names"


def _tool_choice_tag(value: Any) -> str:
    return "function" if isinstance(value, (dict, FunctionChoice)) else "word"


Names = Annotated[list[Name], Field(min_length=1, max_length=128)]
Functions = Annotated[list[FunctionTool], Field(min_length=1, max_length=128)]


class ChatPayload(SamplingOptions):
    """`text`, or `messages` of a conversation, with options."""

    text: Annotated[str, Field(min_length=1, max_length=TEXT_CHARS)] | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1, max_length=2000)
    system: Text | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] | None = Field(
        None, max_length=16
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    response_format: ResponseFormat | None = None
    #: Names of the worker's tools, or functions defined by the client.
    tools: (
        Annotated[
            Annotated[Names, Tag("names")] | Annotated[Functions, Tag("functions")],
            Discriminator(_tools_tag),
        ]
        | None
    ) = None
    tool_choice: (
        Annotated[
            Annotated[Literal["auto", "none", "required"], Tag("word")]
            | Annotated[FunctionChoice, Tag("function")],
            Discriminator(_tool_choice_tag),
        ]
        | None
    ) = None
    model: str | None = Field(None, max_length=256)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("tools", mode="before")
    @classmethod
    def _one_kind(cls, value: Any) -> Any:
        if isinstance(value, list) and len({type(item) for item in value}) > 1:
            raise ValueError("give either names of tools or your own functions, not both")
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> ChatPayload:
        if (self.text is None) == (self.messages is None):
            raise ValueError("give either text or messages")
        has_system = self.messages and any(message.role == "system" for message in self.messages)
        if self.system is not None and has_system:
            raise ValueError("give the system prompt either as system or in messages, not both")
        if self.tool_choice is not None and self.tools is None:
            raise ValueError("tool_choice needs tools")
        return self

    @property
    def tool_names(self) -> list[str]:
        """Names of the worker's tools that the model may call, without duplicates."""
        return list(dict.fromkeys(tool for tool in self.tools or () if isinstance(tool, str)))

    @property
    def functions(self) -> list[dict[str, Any]]:
        return [
            tool.model_dump(exclude_none=True)
            for tool in self.tools or ()
            if isinstance(tool, FunctionTool)
        ]

    def conversation(self) -> list[dict[str, Any]]:
        """The messages for the model."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        if self.messages is not None:
            messages += [message.view() for message in self.messages]
        else:
            messages.append({"role": "user", "content": self.text})
        return messages
