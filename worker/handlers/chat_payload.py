"""What a chat job may ask for: OpenAI's words, checked and bounded."""

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

from common import codec
from worker.features.model.output_parsing import nesting_depth

#: Most characters of one text. A payload that came over HTTP is shorter still.
TEXT_CHARS = 1_000_000
#: A schema beyond these is nobody's form for an answer.
SCHEMA_BYTES = 64 * 1024
SCHEMA_LEVELS = 40
#: Names of functions and tools; dots stand between a server and its tool.
NAME = r"^[A-Za-z0-9_.-]{1,128}$"

Text = Annotated[str, Field(max_length=TEXT_CHARS)]
Name = Annotated[str, Field(pattern=NAME)]
#: Names and ids of whoever spoke; the model's own inventions among them.
Label = Annotated[str, Field(min_length=1, max_length=256)]


class StrictModel(BaseModel):
    """Refuses what it does not know, by name."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingOptions(StrictModel):
    """How an answer is drawn. What is absent is left to the model server."""

    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)


def check_schema_size(schema: Any) -> Any:
    """A schema of reasonable size; whether it is one is found out elsewhere."""
    if not isinstance(schema, (dict, bool)):
        raise ValueError("a JSON Schema is an object")
    size = len(codec.dumps(schema))
    if size > SCHEMA_BYTES:
        raise ValueError(f"the schema has {size} bytes, {SCHEMA_BYTES} at most")
    if nesting_depth(schema) > SCHEMA_LEVELS:
        raise ValueError(f"the schema is nested deeper than {SCHEMA_LEVELS} levels")
    return schema


class FunctionCall(StrictModel):
    """A call that the model made in an earlier turn."""

    name: Label
    arguments: Text


class MessageToolCall(StrictModel):
    """The same with its id."""

    id: Label
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(StrictModel):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | None = None
    name: Label | None = None
    tool_calls: list[MessageToolCall] | None = Field(None, min_length=1, max_length=128)
    tool_call_id: Label | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("only an assistant has tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("a tool message, and no other, has a tool_call_id")
        if self.content is None and self.tool_calls is None:
            raise ValueError("content is missing")
        return self

    def view(self) -> dict[str, Any]:
        """As the model server wants it."""
        return {"content": None, **self.model_dump(exclude_none=True)}


class Function(StrictModel):
    """A function of the caller's own, which the model may want called."""

    name: Name
    description: str | None = Field(None, max_length=10_000)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    _small = field_validator("parameters")(check_schema_size)


class FunctionTool(StrictModel):
    """The same as OpenAI wraps it."""

    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    """Which function the model has to call."""

    name: Name


class FunctionChoice(StrictModel):
    """The same as OpenAI wraps it."""

    type: Literal["function"]
    function: FunctionName


class AnswerSchema(StrictModel):
    """The form an answer has to have."""

    name: str = Field("answer", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(None, max_length=10_000)
    schema_: Any = Field(alias="schema")
    strict: bool | None = None

    _small = field_validator("schema_")(check_schema_size)


class ResponseFormat(StrictModel):
    """Free text, any JSON object, or JSON of a given form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("the type json_schema, and no other, has a json_schema")
        return self

    def view(self) -> dict[str, Any] | None:
        """As the model server wants it."""
        if self.type == "text":
            return None
        # The schema is the caller's: its own nulls stay.
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
    """`text`, or `messages` of a whole conversation, and how they are to be answered."""

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
    #: Names of tools that the worker has and may call, or functions of the caller's own.
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
            raise ValueError("either names of tools or functions of your own, not both")
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> ChatPayload:
        if (self.text is None) == (self.messages is None):
            raise ValueError("either text or messages")
        said = self.messages and any(message.role == "system" for message in self.messages)
        if self.system is not None and said:
            raise ValueError("a system prompt is given twice: as system and among the messages")
        if self.tool_choice is not None and self.tools is None:
            raise ValueError("tool_choice without tools")
        return self

    @property
    def tool_names(self) -> list[str]:
        """The worker's tools that the model may call, each once."""
        return list(dict.fromkeys(tool for tool in self.tools or () if isinstance(tool, str)))

    @property
    def functions(self) -> list[dict[str, Any]]:
        return [
            tool.model_dump(exclude_none=True)
            for tool in self.tools or ()
            if isinstance(tool, FunctionTool)
        ]

    def conversation(self) -> list[dict[str, Any]]:
        """All that is said to the model."""
        said: list[dict[str, Any]] = []
        if self.system:
            said.append({"role": "system", "content": self.system})
        if self.messages is not None:
            said += [message.view() for message in self.messages]
        else:
            said.append({"role": "user", "content": self.text})
        return said
