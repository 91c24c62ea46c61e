"""What turns texts into vectors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker.errors import InvalidPayload, JobError

#: Under this name a heartbeat tells which model makes the vectors.
HEARTBEAT_FIELD = "embedder"
#: Called with how many texts are done. What it raises ends the request.
OnDone = Callable[[int], Awaitable[None]]


class NoEmbedder(JobError):
    """Nobody here makes vectors."""

    kind = "no_embedder"


class WrongDimensions(InvalidPayload):
    """The model makes longer or shorter vectors than were asked for."""

    def __init__(self, model: str, wanted: int, made: int) -> None:
        super().__init__(
            f"dimensions: {model} makes vectors of {made}, not of {wanted}; leave it out"
        )


class DamagedModel(Exception):
    """An installed model cannot be read. The message says what is wrong with it."""


@dataclass(frozen=True)
class EmbeddingResult:
    """Vectors, and what they took."""

    vectors: list[list[float]] = field(default_factory=list)
    #: How many tokens were read.
    tokens: int = 0
    #: How many texts were longer than the model reads.
    truncated: int = 0


class Embedder(Protocol):
    """Makes vectors of length one."""

    @property
    def name(self) -> str:
        """Which model makes them; empty where there is none. Vectors of two models do not mix."""

    @property
    def ready(self) -> bool:
        """Whether there is one at all."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text. Raises NoEmbedder, or what keeps the server from answering."""

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        """The same with more to tell.

        Raises WrongDimensions for a length that the model does not make.
        """
