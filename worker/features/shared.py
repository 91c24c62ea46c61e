"""The services that several features of a worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.worker.features.embedding.factory import choose_embedder
from sluice.worker.features.model.checker.checker import Checker
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.rag.service import RagService

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.embedding.factory import NullEmbedder
    from sluice.worker.features.embedding.local import LocalEmbedder
    from sluice.worker.features.embedding.server import ServerEmbedder
    from sluice.worker.registry import Service


@dataclass(frozen=True)
class SharedServices:
    """One of each per worker; features receive them in `register`."""

    model: ModelClient
    #: Validates the output of models against JSON schemas.
    checker: Checker
    embedder: LocalEmbedder | ServerEmbedder | NullEmbedder
    rag: RagService

    @classmethod
    def create(
        cls, settings: WorkerSettings, model_tasks: Callable[[], frozenset[str]]
    ) -> SharedServices:
        """Build all of them; raises SettingsError if the configured embedder is unavailable.

        `model_tasks` returns the tasks that need the model, once all handlers are registered.
        """
        model = ModelClient(settings, tasks=model_tasks)
        embedder = choose_embedder(settings, model)
        return cls(model, Checker(), embedder, RagService(embedder, settings.rag_max_documents))

    def all(self) -> tuple[Service, ...]:
        """In the order in which the worker starts them."""
        return self.model, self.checker, self.embedder, self.rag
