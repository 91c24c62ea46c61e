"""The request and response bodies of `POST /v1/embeddings`."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from sluice.common.contracts.models import EMBED_MAX_TEXTS
from sluice.gateway.features.openai.chat.request import UNSUPPORTED, Name
from sluice.gateway.features.openai.errors import answer_invalid

BASE64 = "base64"


def _no_tokens(value: object) -> object:
    """Refuse arrays of tokens: they belong to another model's tokenizer."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, (int, list)):
        raise PydanticCustomError(
            UNSUPPORTED, "Send texts, not tokens: the models here use other tokenizers"
        )
    return value


Text = Annotated[str, Field(min_length=1)]


class EmbeddingsRequest(BaseModel):
    """Texts to embed. `null` is the same as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: Annotated[
        Text | Annotated[list[Text], Field(min_length=1, max_length=EMBED_MAX_TEXTS)],
        BeforeValidator(_no_tokens),
    ] = Field(description="One text, or several.")
    model: Name | None = Field(None, description="One of `GET /v1/models`. Default: any.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or base64 of little-endian 32-bit floats."
    )
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None, description="Length of the vectors, if the model can shorten them."
    )
    user: Any = Field(None, description="Ignored.")

    def payload(self) -> dict[str, Any]:
        """The payload of the embed job."""
        found: dict[str, Any] = {"input": self.input}
        if self.dimensions is not None:
            found["dimensions"] = self.dimensions
        return found

    @property
    def number(self) -> int:
        return 1 if isinstance(self.input, str) else len(self.input)


class _EmbedUsage(BaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _EmbedResult(BaseModel):
    """The members of a job's result that are used."""

    vectors: list[list[float]]
    model: str = ""
    usage: _EmbedUsage | None = None


class EmbeddingView(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(ge=0)
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts; 0 if the worker does not report them."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingJobInfo(BaseModel):
    """Members that OpenAI's API does not have."""

    job_id: str


class EmbeddingList(BaseModel):
    """One vector per text, in order."""

    object: Literal["list"] = "list"
    data: list[EmbeddingView]
    model: str
    usage: EmbeddingUsage
    sluice: EmbeddingJobInfo


def embeddings(job_id: str, body: EmbeddingsRequest, result: Any) -> bytes:
    """The response as JSON; raises a problem for an unexpected result."""
    try:
        made = _EmbedResult.model_validate(result)
    except ValidationError:
        raise answer_invalid("an embedder") from None
    if len(made.vectors) != body.number:
        raise answer_invalid("an embedder of this many texts")
    usage = made.usage or _EmbedUsage()
    packed = body.encoding_format == BASE64
    view = EmbeddingList(
        data=[
            EmbeddingView(index=index, embedding=_packed(vector) if packed else vector)
            for index, vector in enumerate(made.vectors)
        ],
        model=made.model or body.model or "",
        usage=EmbeddingUsage(
            prompt_tokens=usage.prompt_tokens,
            total_tokens=usage.total_tokens or usage.prompt_tokens,
        ),
        sluice=EmbeddingJobInfo(job_id=job_id),
    )
    return view.model_dump_json().encode()


def _packed(vector: list[float]) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


EXAMPLE_EMBEDDINGS: dict[str, Any] = {"input": ["a sluice", "a gate"]}
