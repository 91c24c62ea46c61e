"""Directory and file names of the weights that `sluice model install` stores.

The installer imports this with the system's Python, so it uses only the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

#: Overrides the default directory, which is in the virtual environment.
MODELS_DIR_VARIABLE: Final = "SLUICE_MODELS_DIR"
#: The chat model of `sluice model serve`: its file, and its name in requests.
CHAT_FILE: Final = "smollm2-135m-instruct.q4_1.gguf"
CHAT_MODEL: Final = "smollm2-135m-instruct"
#: The offline embedder: a directory with `model.safetensors` and its tokenizer.
EMBED_DIRECTORY: Final = "all-minilm-l6-v2"
#: The face detection model.
FACES_FILE: Final = "centerface.onnx"


def models_dir() -> Path:
    """`SLUICE_MODELS_DIR`, or the default directory in the virtual environment."""
    named = os.environ.get(MODELS_DIR_VARIABLE, "").strip()
    return Path(named).expanduser() if named else Path(sys.prefix) / "share" / "sluice" / "models"
