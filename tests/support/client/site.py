"""A Redis, a gateway and a worker for the clients and the command line."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.support.processes.commands import TIMEOUT_S, CommandResult, run_here
from tests.support.processes.gateway import PYTHON_M, ROOT, GatewayProcess
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import BUNDLED, RealServer, require_binary

#: Signs the webhooks.
SECRET = "a secret of the receiver's"
#: `chat` emits the words of its payload and can wait for a file; some texts make it fail or wait.
#: `code` fails, and `tool` runs until it is canceled.
HANDLERS = """
import asyncio
from pathlib import Path

from sluice.worker import JobError


class Wrong(JobError):
    kind = "wrong"


async def chat(context, payload):
    text = payload.get("text", "")
    if text == "fail":
        raise JobError("no \\x1b[31mspace")
    if text == "forever":
        await context.emit("message", {"delta": "well … ", "n": 1, "attempt": context.attempt})
        await asyncio.sleep(3600)
    if text == "hostile":
        text = "a\\x1b[2Jb\\x07c\\u202ed"
    words = payload["words"] if "words" in payload else [f"{word} " for word in text.split(" ")]
    for n, word in enumerate(words, 1):
        await context.emit("message", {"delta": word, "n": n, "attempt": context.attempt})
        while n == payload.get("stop_after") and not Path(payload["gate"]).exists():
            await asyncio.sleep(0.02)
    answer = {} if "words" in payload else {"text": text}
    return {**answer, "words": len(words)}


async def code(context, payload):
    raise Wrong("it went wrong")


async def tool(context, payload):
    await asyncio.sleep(600)


def register(registry):
    for function in (chat, code, tool):
        registry.add(function.__name__, function)
"""


class Site:
    """A Redis, a gateway and a worker with these handlers and the workflow of the examples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "site_handlers.py").write_text(HANDLERS)
        self.redis = RealServer(require_binary(BUNDLED))
        self._settings = {
            "REDIS_URL": self.redis.url,
            "SLUICE_DATA_DIR": str(folder / "data"),
            "WORKFLOW_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
        }
        self._gateways: list[GatewayProcess] = []
        self.start_gateway()
        self._worker = Process(
            "worker",
            folder / "worker.log",
            consumer="w0",
            block_ms=50,
            heartbeat_s=0.5,
            cancel_grace_s=0.1,
            workflow_webhook_secret=SECRET,
            embedder="off",
            image_detector="none",
            worker_handlers="site_handlers,release_notes",
            pythonpath=f"{folder}:{ROOT / 'examples' / 'workflow'}",
            **self._settings,
        )
        self.gateway.wait_until_listening()
        self._worker.wait_for_line("takes jobs")

    @property
    def gateway(self) -> GatewayProcess:
        return self._gateways[-1]

    @property
    def url(self) -> str:
        return self.gateway.url

    def start_gateway(self, port: int = 0) -> None:
        log = self.folder / f"gateway{len(self._gateways)}.log"
        self._gateways.append(GatewayProcess(PYTHON_M, log, PORT=str(port), **self._settings))

    def restart_gateway(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Start a new gateway process on the same port."""
        port = self.gateway.port
        self.gateway.stop(number)
        self.start_gateway(port)
        self.gateway.wait_until_listening()

    def run(self, *words: str, stdin: bytes = b"", **settings: str) -> CommandResult:
        """Run a command in this process, which is faster; on terminals it is a real process."""
        return run_here(*words, stdin=stdin, SLUICE_URL=self.url, **settings)

    def run_json(self, *words: str) -> Any:
        ran = self.run(*words, "-o", "json")
        assert ran.code == 0, ran
        return json.loads(ran.out)

    def submit(self, text: str) -> str:
        ran = self.run("submit", "chat", text)
        assert ran.code == 0, ran
        return ran.out.strip()

    def wait_for(self, job_id: str, status: str) -> None:
        wait_until(
            lambda: self.run("get", job_id, "--field", "status").out.strip() == status, TIMEOUT_S
        )

    def cancel(self, job_id: str) -> None:
        """Cancel a running job and wait for its end, so that it is not counted by later tests."""
        self.run("cancel", job_id)
        self.wait_for(job_id, "canceled")

    def close(self) -> None:
        self._worker.kill()
        for gateway in self._gateways:
            gateway.close()
        self.redis.close()
