"""Settings of the tasks that need a model, tools or documents; part of the worker's."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from common.settings.derived import SettingsPart


class ModelSettings(SettingsPart):
    """Where the model is, how long it may take, what tools and agents may do."""

    model_url: str | None = Field(
        None,
        description="`http://` or `https://` URL of an OpenAI-compatible server (llama-server, "
        "Ollama, vLLM), with or without `/v1`. Unset: the one that `sluice model serve` announces "
        "under SLUICE_DATA_DIR.",
    )
    model_name: str = Field(
        "", description="Model to ask for. Empty: the first one that the server lists."
    )
    model_api_key: SecretStr = Field(
        SecretStr(""), description="Key for the model server; better a credential `model_api_key`."
    )
    model_slots: int = Field(
        0,
        ge=0,
        le=1024,
        description="Requests that the model server may be given at once by this process. 0: ask "
        "the server; 1 where it does not say.",
    )
    model_connect_timeout_s: float = Field(
        2.0, gt=0, le=60, description="Seconds the model server may take to accept a connection."
    )
    model_first_token_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="Seconds until the first token of an answer."
    )
    model_idle_timeout_s: float = Field(
        20.0, gt=0, le=3600, description="Seconds between two tokens; pings do not count."
    )
    model_total_timeout_s: float = Field(
        900.0, gt=0, le=86_400, description="Seconds a whole answer may take."
    )
    embedder: Literal["auto", "server", "minilm", "off"] = Field(
        "auto",
        description="Who makes vectors: the model `server`, the offline `minilm` (`sluice model "
        "install`), nobody, or `auto`: the installed one, else the server named by EMBED_URL.",
    )
    embed_url: str | None = Field(
        None, description="OpenAI-compatible server for embeddings. Unset: MODEL_URL."
    )
    embed_name: str = Field("", description="Embedding model to ask that server for.")
    embed_api_key: SecretStr = Field(
        SecretStr(""),
        description="Key for EMBED_URL, which never gets MODEL_API_KEY; better a credential "
        "`embed_api_key`.",
    )
    tools: str = Field(
        "all",
        description="Tools that jobs may use, separated by commas; `all` that are registered, or "
        "`none`.",
    )
    tool_timeout_s: float = Field(
        10.0, gt=0, le=3600, description="Seconds a tool may take, unless it says otherwise."
    )
    tool_output_bytes: int = Field(
        8192, ge=64, le=200_000, description="Longest output of a tool; the rest is cut off."
    )
    mcp_servers: str = Field(
        "", description="JSON file with MCP servers whose tools are added (extra `tools`)."
    )
    agent_max_rounds: int = Field(
        8, ge=1, le=100, description="Most times an agent may ask the model in one job."
    )
    agent_max_calls: int = Field(
        16, ge=1, le=1000, description="Most tools an agent may call in one job."
    )
    agent_max_s: float = Field(
        300.0, gt=0, le=86_400, description="Seconds an agent may take for one job."
    )
    rag_max_documents: int = Field(
        10_000, ge=1, le=1_000_000, description="Most documents of a namespace."
    )

    @field_validator("model_url", "embed_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("is no URL of a model server; write http://127.0.0.1:8090")
        return value.rstrip("/")
