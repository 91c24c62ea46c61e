"""The installed model of embeddings."""

from __future__ import annotations

from pathlib import Path

from sluice.common.settings.models_dir import EMBED_DIRECTORY, models_dir
from sluice.worker.features.embedding.factory import WEIGHTS_FILE
from tests.support.servers import missing


def weights() -> Path:
    """The folder of the installed model; skips the test if it is missing (fails in CI)."""
    folder = models_dir() / EMBED_DIRECTORY
    if not (folder / WEIGHTS_FILE).exists():
        missing("no embedding model is installed; run `sluice model install`")
    return folder
