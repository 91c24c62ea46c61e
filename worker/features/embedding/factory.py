"""Chooses the embedder according to EMBEDDER."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.common.errors import SettingsError
from sluice.common.settings.models_dir import EMBED_DIRECTORY, models_dir
from sluice.worker.features.embedding.types import DamagedModel, EmbeddingResult, NoEmbedder, OnDone
from sluice.worker.registry import Service, WorkerServices

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.embedding.local import LocalEmbedder
    from sluice.worker.features.embedding.server import ServerEmbedder
    from sluice.worker.features.model.client import ModelClient

MODEL_NAME: Final = EMBED_DIRECTORY
WEIGHTS_FILE: Final = "model.safetensors"
DIMENSIONS: Final = 384
#: Tokens of a text that the model processes, including the start and end tokens.
MAX_TOKENS: Final = 256
INSTALL_HINT: Final = "run `sluice model install`"
NUMPY_MISSING: Final = "numpy is not installed; run `pip install 'sluice[rag]'`"


def find_model_problem(folder: Path) -> str:
    """Why the model cannot be used; empty if it can. Checks the files without loading them."""
    weights = folder / WEIGHTS_FILE
    if not weights.exists():
        return f"there is no embedding model in {folder}; {INSTALL_HINT}"
    if importlib.util.find_spec("numpy") is None:
        return NUMPY_MISSING
    from sluice.worker.features.embedding.safetensors import TensorFile

    try:
        TensorFile(weights).close()
    except DamagedModel as error:
        return f"{error}; {INSTALL_HINT} again"
    return ""


log = logging.getLogger(__name__)

_DISABLED = "embeddings are disabled (EMBEDDER=off)"


class NullEmbedder(Service):
    """Stand-in for a missing embedder: each request raises NoEmbedder with the reason."""

    name = ""
    ready = False

    def __init__(self, why: str, *, missed: bool = False) -> None:
        self._why = why
        self._is_expected = missed

    async def start(self, services: WorkerServices) -> None:
        """Log the reason once, if an embedder could be expected."""
        if self._is_expected:
            log.info("embeddings unavailable: %s", self._why)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        raise NoEmbedder(self._why)

    async def embed_all(
        self, texts: Sequence[str], dimensions: int | None = None, on_done: OnDone | None = None
    ) -> EmbeddingResult:
        raise NoEmbedder(self._why)


def choose_embedder(
    settings: WorkerSettings, model: ModelClient
) -> LocalEmbedder | ServerEmbedder | NullEmbedder:
    """Return the embedder for the settings.

    Raises SettingsError if the configured one is unavailable.
    """
    if settings.embedder == "off":
        return NullEmbedder(_DISABLED)
    if settings.embedder == "server":
        return _server_embedder(settings, model)
    folder = models_dir() / EMBED_DIRECTORY
    problem = find_model_problem(folder)
    if settings.embedder == "minilm":
        if problem:
            raise SettingsError(f"EMBEDDER=minilm: {problem}")
        return _local_embedder(folder, eager=True)
    if not problem:
        return _local_embedder(folder)
    if settings.embed_url is not None:
        return _server_embedder(settings, model)
    if settings.model_url is not None:
        from sluice.worker.features.embedding.server import ProbedEmbedder

        return ProbedEmbedder(model, settings.embed_name, problem)
    why = f"{problem}, or set EMBED_URL to an embedding server"
    return NullEmbedder(why, missed=True)


def _local_embedder(folder: Path, *, eager: bool = False) -> LocalEmbedder:
    from sluice.worker.features.embedding.local import LocalEmbedder

    return LocalEmbedder(folder, eager=eager)


def _server_embedder(settings: WorkerSettings, model: ModelClient) -> ServerEmbedder:
    from sluice.worker.features.embedding.server import ServerEmbedder
    from sluice.worker.features.model.client import ModelClient

    url = settings.embed_url or settings.model_url
    if url is None:
        raise SettingsError(
            "EMBEDDER=server needs a server: set EMBED_URL, or MODEL_URL if one server does both"
        )
    if url == settings.model_url:
        return ServerEmbedder(model, settings.embed_name)
    # It shares the timeouts of the model server but has its own slots, name and key.
    other = {
        "model_url": url,
        "model_name": settings.embed_name,
        "model_api_key": settings.embed_api_key,
        "model_slots": 0,
    }
    client = ModelClient(settings.model_copy(update=other), embeddings_only=True)
    return ServerEmbedder(client, own=True)
