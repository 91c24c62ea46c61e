"""llama.cpp with its own OpenAI-compatible HTTP server, in this process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ops.model.catalogue import ENGINE
from ops.model.errors import Unusable
from ops.model.install import refuse_missing_library

#: Tokens of a prompt that are worked on at a time. A cancel is heard of in between, so few; on a
#: CPU fewer calls would not be faster.
BATCH_TOKENS = 64
#: Threads for HTTP beside one for each slot, so that health can be asked while requests wait.
SPARE_HTTP_THREADS = 16
#: Megabytes for the state of earlier conversations; llama.cpp itself would take eight gigabytes.
CACHE_MB = 256
#: Seconds a client may take to send, or not read what it is sent.
CLIENT_TIMEOUT_S = 600
#: More threads than that only wait for each other.
MOST_THREADS = 8
#: llama.cpp's own lines: its errors; everything.
_TELL_ERRORS, _TELL_ALL = 1, 3


@dataclass(frozen=True)
class Serving:
    """What is served, and how."""

    gguf: Path
    name: str
    host: str = "127.0.0.1"
    #: 0 for any free one.
    port: int = 0
    slots: int = 2
    #: Tokens of one conversation, question and answer together.
    context: int = 4096
    threads: int = 1
    api_key: str = ""
    chatty: bool = False


class Engine:
    """Runs one model. It has threads of its own, and does not hold up Python's."""

    def __init__(self) -> None:
        try:
            self._llama = import_module(ENGINE)
        except ImportError as error:
            refuse_missing_library()
            raise Unusable(
                f"{ENGINE} is not installed ({error}); run `sluice model install`"
            ) from error
        self._server: Any = None

    def start(self, serving: Serving) -> str:
        """Load the model and listen; the server's URL. Until it returns, no other thread of ours
        runs and no signal is handled in Python."""
        try:
            self._server = self._llama.Server(self._parameters(serving))
        except (RuntimeError, ValueError) as error:
            raise Unusable(
                f"llama.cpp cannot serve {serving.gguf}; its reason is above. Try another file "
                "with --gguf"
            ) from error
        port = urlsplit(self._server.listening_address).port
        return f"http://{_reachable(serving.host)}:{port}"

    def _parameters(self, serving: Serving) -> Any:
        parameters = self._llama.CommonParams()
        parameters.model.path = str(serving.gguf)
        parameters.model_alias = {serving.name}
        parameters.hostnames = [serving.host]
        parameters.port = serving.port
        parameters.n_parallel = serving.slots
        parameters.n_ctx = serving.slots * serving.context
        parameters.n_batch = parameters.n_ubatch = BATCH_TOKENS
        for processors in (parameters.cpuparams, parameters.cpuparams_batch):
            processors.n_threads = serving.threads
        parameters.n_threads_http = serving.slots + SPARE_HTTP_THREADS
        parameters.cache_ram_mib = CACHE_MB
        parameters.timeout_read = parameters.timeout_write = CLIENT_TIMEOUT_S
        parameters.use_jinja = True  # for tools
        parameters.endpoint_slots = True
        parameters.endpoint_metrics = True
        # Only its change over HTTP is switched off by this; GET /props tells all the same.
        parameters.endpoint_props = False
        parameters.ui = False
        # Web pages have no business here.
        parameters.cors_origins = ""
        parameters.cors_origins_explicit = True
        parameters.cors_credentials = False
        parameters.offline = True
        parameters.fit_params = False
        parameters.verbosity = _TELL_ALL if serving.chatty else _TELL_ERRORS
        if serving.api_key:
            parameters.api_keys = [serving.api_key]
        return parameters


def usual_threads() -> int:
    """All cores but one, which gateway, worker and Redis need: threads that have to share a core
    make the others wait for them, which costs more than they bring."""
    return max(1, min(MOST_THREADS, _cores() - 1))


def _cores() -> int:
    """Cores that we may use; two threads of one core count once."""
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


def _reachable(host: str) -> str:
    """The host part of a URL that leads to whoever listens on this address."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{near}]" if ":" in near else near
