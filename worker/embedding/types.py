"""What turns texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from worker.errors import JobError


class NoEmbedder(JobError):
    """Nobody here makes vectors."""

    kind = "no_embedder"


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
