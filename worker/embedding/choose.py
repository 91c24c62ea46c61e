"""Who makes the vectors, as EMBEDDER says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import SettingsError
from common.models_dir import EMBED_DIRECTORY, models_dir
from worker.embedding.installed import why_not
from worker.embedding.types import Embedded, NoEmbedder, OnDone
from worker.services import House, Service

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from worker.embedding.local import LocalEmbedder
    from worker.embedding.server import ServerEmbedder
    from worker.model.client import ModelClient

log = logging.getLogger(__name__)

_OFF = "vectors are switched off here (EMBEDDER=off)"


class Nobody(Service):
    """No embedder; says why to whoever asks."""

    name = ""
    ready = False

    def __init__(self, why: str, *, missed: bool = False) -> None:
        self._why = why
        self._missed = missed

    async def start(self, house: House) -> None:
        """Say so once, where one might be expected; not before all settings are right."""
        if self._missed:
            log.info("no vectors: %s", self._why)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raise NoEmbedder."""
        raise NoEmbedder(self._why)

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> Embedded:
        """Raise NoEmbedder."""
        raise NoEmbedder(self._why)


def choose(settings: WorkerSettings, model: ModelClient) -> LocalEmbedder | ServerEmbedder | Nobody:
    """The embedder, a service of its own; SettingsError where the one that is wanted cannot be."""
    if settings.embedder == "off":
        return Nobody(_OFF)
    if settings.embedder == "server":
        return _server(settings, model)
    folder = models_dir() / EMBED_DIRECTORY
    trouble = why_not(folder)
    if settings.embedder == "minilm":
        if trouble:
            raise SettingsError(f"EMBEDDER=minilm: {trouble}")
        return _local(folder, eager=True)
    if not trouble:
        return _local(folder)
    if settings.embed_url is not None:
        return _server(settings, model)
    why = f"{trouble}, or set EMBED_URL to a server that makes vectors"
    return Nobody(why, missed=True)


def _local(folder: Path, *, eager: bool = False) -> LocalEmbedder:
    from worker.embedding.local import LocalEmbedder

    return LocalEmbedder(folder, eager=eager)


def _server(settings: WorkerSettings, model: ModelClient) -> ServerEmbedder:
    from worker.embedding.server import ServerEmbedder
    from worker.model.client import ModelClient

    url = settings.embed_url or settings.model_url
    if url is None:
        raise SettingsError(
            "EMBEDDER=server needs a server: set EMBED_URL, or MODEL_URL where one does both"
        )
    if url == settings.model_url:
        return ServerEmbedder(model, settings.embed_name)
    # It gets the model server's budgets; slots, name and key are its own.
    other = {
        "model_url": url,
        "model_name": settings.embed_name,
        "model_api_key": settings.embed_api_key,
        "model_slots": 0,
    }
    return ServerEmbedder(ModelClient(settings.model_copy(update=other), beside=True), own=True)
