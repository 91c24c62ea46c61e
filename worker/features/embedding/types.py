"""Interface and errors of the embedders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sluice.worker.errors import InvalidPayload, JobError

#: Heartbeat field with the name of the embedding model.
HEARTBEAT_FIELD = "embedder"
#: Called with the number of texts done. An exception it raises ends the request.
OnDone = Callable[[int], Awaitable[None]]


class NoEmbedder(JobError):
    """No embedder is available."""

    kind = "no_embedder"


class WrongDimensions(InvalidPayload):
    """The model does not produce vectors of the requested length."""

    def __init__(self, model: str, requested: int, actual: int) -> None:
        super().__init__(
            f"dimensions: {model} produces {actual} dimensions, not {requested}; omit it"
        )


class DamagedModel(Exception):
    """An installed model cannot be read; the message gives the reason."""


@dataclass(frozen=True)
class EmbeddingResult:
    """Vectors, and the number of tokens read."""

    vectors: list[list[float]] = field(default_factory=list)
    #: Tokens read.
    tokens: int = 0
    #: Texts longer than the model's limit.
    truncated: int = 0


class Embedder(Protocol):
    """Produces vectors of length one."""

    @property
    def name(self) -> str:
        """Name of the model; empty if there is none.

        Vectors of different models cannot be compared.
        """

    @property
    def ready(self) -> bool:
        """True if an embedder is available."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector per text. Raises NoEmbedder, or the error of the model server."""

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        """Like `embed`, with counts and progress.

        Raises WrongDimensions for a length that the model does not produce.
        """
