"""`sluice model serve` as a process, with the real engine or a fake one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from sluice.common.settings.models_dir import CHAT_FILE, MODELS_DIR_VARIABLE, models_dir
from tests.support.processes.worker import ROOT, wait_until
from tests.support.servers import missing

#: A real model loads in a second or two on an idle machine, and much slower on a busy one.
LOADING_S = 90.0
ENGINE = "xllamacpp"

#: A fake engine with the HTTP endpoints of llama.cpp that `serve` uses.
FAKE_ENGINE = """
import json, os, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class _Any:
    pass

class CommonParams:
    def __init__(self):
        self.model, self.cpuparams, self.cpuparams_batch = _Any(), _Any(), _Any()

class Server:
    def __init__(self, params):
        if "refused" in params.model.path:
            raise RuntimeError("Failed to init server, please check the input params.")
        answers = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": name} for name in params.model_alias]},
            "/slots": [{"id": slot, "is_processing": False} for slot in range(params.n_parallel)],
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                while os.path.exists(params.model.path + ".hangs"):
                    time.sleep(0.1)
                body = json.dumps(answers.get(self.path, {})).encode()
                self.send_response(200 if self.path in answers else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        server = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        self.listening_address = "http://%s:%d" % server.server_address[:2]
        # As llama.cpp's threads, they do not ask whether Python wants to end.
        threading.Thread(target=server.serve_forever).start()
"""


class Served:
    """One process and its data directory, which contains its announcement."""

    def __init__(self, directory: Path, *words: str, data: Path | None = None, **env: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.data = data or directory / "data"
        self._output = directory / "output"
        environment = {
            "PATH": os.environ["PATH"],
            "SLUICE_DATA_DIR": str(self.data),
            **{name: os.environ[name] for name in (MODELS_DIR_VARIABLE,) if name in os.environ},
            **env,
        }
        path = os.pathsep.join(filter(None, [env.get("PYTHONPATH", ""), str(ROOT), _engine_path()]))
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sluice", "model", "serve", "--port", "0", *words],
                env={**environment, "PYTHONPATH": path},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def announcement(self) -> dict[str, Any]:
        """The announcement."""
        announced: dict[str, Any] = json.loads((self.data / "model.json").read_text())
        return announced

    def ready(self, timeout_s: float = LOADING_S) -> Served:
        """Waits until the server is announced."""
        wait_until(
            lambda: "is served at" in self.output or self.process.poll() is not None, timeout_s
        )
        assert self.process.poll() is None, self.output
        return self

    @property
    def url(self) -> str:
        url: str = self.announcement["url"]
        return url

    def ask(self, path: str) -> Any:
        with urlopen(f"{self.url}{path}", timeout=20) as answer:
            return json.load(answer)

    @property
    def busy(self) -> int:
        """Number of busy slots."""
        return sum(slot["is_processing"] for slot in self.ask("/slots"))

    def end(self, number: int = signal.SIGTERM) -> float:
        """Stops the server; returns the seconds it took."""
        started = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(30)
        return time.monotonic() - started

    def wait(self, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(20)


def _engine_path() -> str:
    """Path of the engine if it is not in this environment."""
    spec = find_spec(ENGINE)
    home = Path(spec.origin).parent.parent if spec is not None and spec.origin else None
    return str(home) if home is not None and sys.prefix not in str(home) else ""


def require_model() -> None:
    """Skips the test if the real model is not installed; fails in CI."""
    if find_spec(ENGINE) is None or not (models_dir() / CHAT_FILE).is_file():
        missing("the model is not installed: make model-install")
