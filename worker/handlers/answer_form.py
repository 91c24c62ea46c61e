"""The form that an answer to a chat is to have: checked before it is asked for, and after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common import codec
from worker.errors import InvalidPayload
from worker.handlers.chat_payload import ResponseFormat
from worker.model.checker import Checker, TooHard
from worker.model.json_answers import NoJson, find_json
from worker.model.rounds import Unusable
from worker.model.types import ChatRequest, Completion
from worker.threads import call_in_thread

#: Where the schema stands in a payload.
_SCHEMA = "response_format.json_schema.schema"
_SYSTEM = "system"


class Form:
    """Free text, any JSON object, or JSON that fits a schema."""

    def __init__(self, asked: ResponseFormat | None, checker: Checker) -> None:
        #: Whether it is to be JSON at all.
        self.wanted = asked is not None and asked.type != "text"
        self._schema = None if asked is None else asked.json_schema
        self._checker = checker

    async def check(self) -> None:
        """Refuse a schema that is none, or that nothing can be checked against."""
        if self._schema is not None:
            try:
                faults = await self._checker.schema_faults(self._schema.schema_)
            except TooHard as error:
                raise InvalidPayload(f"{_SCHEMA}: {error}") from None
            if faults:
                raise InvalidPayload(f"{_SCHEMA}: {'; '.join(faults)}")

    async def read(self, completion: Completion, last: bool) -> Any:
        """The value of an answer; raises Unusable."""
        if not self.wanted or completion.tool_calls:
            return None
        try:
            value = await call_in_thread(find_json, completion.text)
        except NoJson as error:
            raise Unusable(str(error), self._hint()) from None
        faults = await self._faults(value)
        if faults:
            raise Unusable("; ".join(faults), self._hint())
        return value

    async def _faults(self, value: Any) -> list[str]:
        if self._schema is None:
            return [] if isinstance(value, dict) else ["it is no JSON object"]
        try:
            return await self._checker.value_faults(self._schema.schema_, value)
        except TooHard as error:
            raise InvalidPayload(f"{_SCHEMA}: {error}") from None

    def in_words(self, request: ChatRequest) -> ChatRequest | None:
        """`request` for a model that is told the form and not held to it; None if there is none."""
        if not self.wanted:
            return None
        first, *rest = request.messages
        told = [{"role": _SYSTEM, "content": self._hint()}, first]
        if first["role"] == _SYSTEM:
            told = [{**first, "content": f"{first['content']}\n\n{self._hint()}"}]
        return replace(request, messages=[*told, *rest], response_format=None)

    def _hint(self) -> str:
        """What a server without grammars has not told its model."""
        if self._schema is None:
            return "Answer with one JSON object and nothing else."
        schema = codec.dumps(self._schema.schema_).decode()
        return f"Answer with JSON and nothing else, as this JSON Schema wants it: {schema}"
