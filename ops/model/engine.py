"""Runs llama.cpp with its OpenAI-compatible HTTP server in this process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sluice.ops.model import ModelSetupError
from sluice.ops.model.catalogue import ENGINE
from sluice.ops.model.install import require_library

#: Prompt tokens per batch. A cancel takes effect between batches, so batches are small; on a CPU
#: larger batches would not be faster.
BATCH_TOKENS = 64
#: HTTP threads in addition to one per slot, so that health checks are answered under load.
SPARE_HTTP_THREADS = 16
#: Megabytes of cache for earlier conversations; the default of llama.cpp is 8 GB.
CACHE_MB = 256
#: Read and write timeout of a client in seconds.
CLIENT_TIMEOUT_S = 600
#: More threads would only wait for each other.
MAX_THREADS = 8
#: Log levels of llama.cpp: errors only, everything.
_LOG_ERRORS, _LOG_ALL = 1, 3


@dataclass(frozen=True)
class ServeOptions:
    """The model to serve and the options of the server."""

    gguf: Path
    name: str
    host: str = "127.0.0.1"
    #: 0 for any free port.
    port: int = 0
    slots: int = 2
    #: Context size in tokens, per slot.
    context: int = 4096
    threads: int = 1
    api_key: str = ""
    verbose: bool = False


class Engine:
    """Runs one model in native threads, which do not block Python."""

    def __init__(self) -> None:
        try:
            self._llama = import_module(ENGINE)
        except ImportError as error:
            require_library()
            raise ModelSetupError(
                f"{ENGINE} is not installed ({error}); run `sluice model install`"
            ) from error
        self._server: Any = None

    def start(self, options: ServeOptions) -> str:
        """Load the model and listen; returns the server's URL.

        While the model loads, no other Python thread runs and no signal is handled.
        """
        try:
            self._server = self._llama.Server(self._parameters(options))
        except (RuntimeError, ValueError) as error:
            raise ModelSetupError(
                f"llama.cpp cannot serve {options.gguf}; see its error above. Use another file "
                "with --gguf"
            ) from error
        port = urlsplit(self._server.listening_address).port
        return f"http://{_connect_host(options.host)}:{port}"

    def _parameters(self, options: ServeOptions) -> Any:
        parameters = self._llama.CommonParams()
        parameters.model.path = str(options.gguf)
        parameters.model_alias = {options.name}
        parameters.hostnames = [options.host]
        parameters.port = options.port
        parameters.n_parallel = options.slots
        parameters.n_ctx = options.slots * options.context
        parameters.n_batch = parameters.n_ubatch = BATCH_TOKENS
        for processors in (parameters.cpuparams, parameters.cpuparams_batch):
            processors.n_threads = options.threads
        parameters.n_threads_http = options.slots + SPARE_HTTP_THREADS
        parameters.cache_ram_mib = CACHE_MB
        parameters.timeout_read = parameters.timeout_write = CLIENT_TIMEOUT_S
        parameters.use_jinja = True  # needed for tools
        parameters.endpoint_slots = True
        parameters.endpoint_metrics = True
        # Disables only changes over HTTP; GET /props still works.
        parameters.endpoint_props = False
        parameters.ui = False
        # No access from web pages (CORS).
        parameters.cors_origins = ""
        parameters.cors_origins_explicit = True
        parameters.cors_credentials = False
        parameters.offline = True
        parameters.fit_params = False
        parameters.verbosity = _LOG_ALL if options.verbose else _LOG_ERRORS
        if options.api_key:
            parameters.api_keys = [options.api_key]
        return parameters


def default_threads() -> int:
    """All cores but one, which is left to gateway, worker and Redis.

    All threads of llama.cpp wait for the slowest one, so none should share its core.
    """
    return max(1, min(MAX_THREADS, _cores() - 1))


def _cores() -> int:
    """Number of usable physical cores."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # macOS
        return os.cpu_count() or 1
    siblings = set()
    for number in usable:
        path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text().strip())
        except OSError:
            siblings.add(str(number))
    return len(siblings)


def _connect_host(host: str) -> str:
    """The host for a URL of a server that listens on this address."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{near}]" if ":" in near else near
