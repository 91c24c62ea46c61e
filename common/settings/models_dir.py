"""Where the weights of `sluice model install` are stored, and their names.

The installer imports this with the system's Python, so it needs the standard library only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

#: Names another place than the virtual environment's.
MODELS_DIR_VARIABLE: Final = "SLUICE_MODELS_DIR"
#: What `sluice model serve` serves, and the name by which it is asked for.
CHAT_FILE: Final = "smollm2-135m-instruct.q4_1.gguf"
CHAT_MODEL: Final = "smollm2-135m-instruct"
#: The offline embedder: a directory with `model.safetensors` and its tokenizer.
EMBED_DIRECTORY: Final = "all-minilm-l6-v2"
#: What finds faces in images.
FACES_FILE: Final = "centerface.onnx"


def models_dir() -> Path:
    """`SLUICE_MODELS_DIR`, or a directory of the virtual environment that goes with it."""
    named = os.environ.get(MODELS_DIR_VARIABLE, "").strip()
    return Path(named).expanduser() if named else Path(sys.prefix) / "share" / "sluice" / "models"
