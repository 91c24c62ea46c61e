"""Settings of the worker for model, tool, agent and document tasks."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from sluice.common.settings.base import SettingsPart


class ModelSettings(SettingsPart):
    """Model server, timeouts, embeddings, and limits of tools and agents."""

    model_url: str | None = Field(
        None,
        description="`http://` or `https://` URL of an OpenAI-compatible server (llama-server, "
        "Ollama, vLLM), with or without `/v1`. Unset: the server announced by `sluice model serve` "
        "under SLUICE_DATA_DIR.",
    )
    model_name: str = Field(
        "", description="Name of the model. Empty: the first model that the server lists."
    )
    model_api_key: SecretStr = Field(
        SecretStr(""),
        description="API key of the model server; prefer a systemd credential `model_api_key`.",
    )
    model_slots: int = Field(
        0,
        ge=0,
        le=1024,
        description="Maximum number of requests that this process sends to the model server at "
        "once. 0: ask the server, or 1 if it does not report a number.",
    )
    model_connect_timeout_s: float = Field(
        2.0, gt=0, le=60, description="Seconds to wait for a connection to the model server."
    )
    model_first_token_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="Seconds to wait for the first token of a response."
    )
    model_idle_timeout_s: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="Seconds to wait for each further token; keep-alive pings do not count.",
    )
    model_total_timeout_s: float = Field(
        900.0, gt=0, le=86_400, description="Seconds that a whole response may take."
    )
    embedder: Literal["auto", "server", "minilm", "off"] = Field(
        "auto",
        description="Source of embeddings: `server` (the model server), `minilm` (the offline "
        "model of `sluice model install`), `off`, or `auto`: `minilm` if installed, else the "
        "server at EMBED_URL, else the one at MODEL_URL if it computes embeddings.",
    )
    embed_url: str | None = Field(
        None, description="OpenAI-compatible server for embeddings. Unset: MODEL_URL."
    )
    embed_name: str = Field("", description="Name of the embedding model on that server.")
    embed_api_key: SecretStr = Field(
        SecretStr(""),
        description="API key of EMBED_URL, which never receives MODEL_API_KEY; prefer a systemd "
        "credential `embed_api_key`.",
    )
    tools: str = Field(
        "all",
        description="Tools that jobs may use, comma-separated; `all` registered tools, or `none`.",
    )
    tool_timeout_s: float = Field(
        10.0, gt=0, le=3600, description="Seconds a tool may take, unless it sets its own timeout."
    )
    tool_output_bytes: int = Field(
        8192,
        ge=64,
        le=200_000,
        description="Largest output of a tool, in bytes; the rest is cut off.",
    )
    mcp_servers: str = Field(
        "",
        description="JSON file that lists MCP servers whose tools are added (needs the extra "
        "`tools`).",
    )
    agent_max_rounds: int = Field(
        8, ge=1, le=100, description="Maximum number of model requests of an agent per job."
    )
    agent_max_calls: int = Field(
        16, ge=1, le=1000, description="Maximum number of tool calls of an agent per job."
    )
    agent_max_s: float = Field(
        300.0, gt=0, le=86_400, description="Seconds an agent may take per job."
    )
    rag_max_documents: int = Field(
        10_000, ge=1, le=1_000_000, description="Maximum number of documents per namespace."
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
            raise ValueError("is not a URL of a model server; write http://127.0.0.1:8090")
        return value.rstrip("/")
