"""What is installed of all-MiniLM-L6-v2: its files, and whether they can be used."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from common.models_dir import EMBED_DIRECTORY
from worker.embedding.types import DamagedModel

NAME: Final = EMBED_DIRECTORY
WEIGHTS_FILE: Final = "model.safetensors"
DIMENSIONS: Final = 384
#: What the model was trained to read of a text, begin and end included.
MAX_TOKENS: Final = 256
INSTALL: Final = "run `sluice model install`"
NEED_NUMPY: Final = "numpy is not installed; run `pip install 'sluice[rag]'`"


def why_not(folder: Path) -> str:
    """What keeps the model from being used, or nothing. Looks at the files, but loads nothing."""
    weights = folder / WEIGHTS_FILE
    if not weights.exists():
        return f"there is no embedding model in {folder}; {INSTALL}"
    if importlib.util.find_spec("numpy") is None:
        return NEED_NUMPY
    from worker.embedding.safetensors import TensorFile  # not where there is nothing to look at

    try:
        TensorFile(weights).close()
    except DamagedModel as error:
        return f"{error}; {INSTALL} again"
    return ""
