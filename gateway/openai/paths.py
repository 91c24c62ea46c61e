"""Which paths speak OpenAI's language, errors included."""

from __future__ import annotations

from typing import Final

CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
MODELS: Final = "/v1/models"
#: A model's name may have slashes in it, as those of hubs do.
MODEL: Final = MODELS + "/{model:path}"
_WHOLE = frozenset({CHAT, EMBEDDINGS, MODELS})


def is_openai(path: str) -> bool:
    """Whether a path is one of theirs."""
    return path in _WHOLE or path.startswith(MODELS + "/")
