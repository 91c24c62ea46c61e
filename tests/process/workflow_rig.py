"""Real gateways, real workers and a restartable Redis, for workflows with failures."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.worker.processes import Process, wait_until

#: Steps that record when they run and wait for a file before they end.
FLOW = """
import asyncio, os, time
from pathlib import Path

from common.contracts.workflow.statuses import StepKind
from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from worker.features.workflows.output import StepItem, StepOutput
from worker.features.workflows.split_steps import SplitStep

HERE = Path(__file__).parent

def note(words):
    with (HERE / "notes").open("a") as notes:
        notes.write(words + "\\n")

async def opened(gate):
    while not (HERE / gate).exists():
        await asyncio.sleep(0.01)

def grind(gate):
    note(f"pid {os.getpid()}")
    while not (HERE / gate).exists():
        time.sleep(0.01)
    return "ground"

async def slow(context):
    await context.progress(1, 2)
    note(f"slow {context.attempt}")
    await opened("gate")
    await context.progress(2, 2)
    return StepOutput("slow", [StepItem({"attempt": context.attempt})])

async def hard(context):
    note(f"hard {context.attempt}")
    return StepOutput(await context.compute(grind, "gate"))

class Parts(SplitStep):
    async def split(self, context):
        return list(range(6))

    async def run_part(self, context, part):
        note(f"part {part} {context.attempt}")
        if part % 2:
            await opened("gate")
        return part

    async def join(self, context, results):
        return StepOutput("parts", [StepItem({"part": part}) for part in results])

async def suggest(context):
    return StepOutput("two", [StepItem({"to": str(n)}, "proposed", 0.5) for n in (1, 2)])

async def last(context):
    found = [item.status.value for item in await context.items("suggest")]
    return StepOutput(" ".join(found))

def flow(name, **steps):
    names = list(steps)
    declared = []
    for at, step in enumerate(names):
        kind = {"kind": StepKind.REVIEW, "reviews": names[at - 1]} if step == "review" else {}
        weight = 1 - (len(names) - 1) * 0.1 if at == 0 else 0.1
        kind |= {"proposes": True} if step == "suggest" else {}
        declared.append(StepDefinition(step, step[:3], step, weight, **kind))
    work = {step: function for step, function in steps.items() if function}
    return WorkflowDefinition(name, tuple(declared)), work

def register_workflows(workflows):
    workflows.add(*flow("slow_v1", slow=slow, suggest=suggest, review=None, last=last))
    workflows.add(*flow("hard_v1", hard=hard))
    workflows.add(*flow("parts_v1", parts=Parts()))
"""


class AofRedis:
    """A redis-server that persists every write; can be killed and restarted."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self.dir = Path(tempfile.mkdtemp(prefix="sluice-aof-"))
        self.url = f"unix://{self.dir}/s"
        self.client = redis.Redis(unix_socket_path=f"{self.dir}/s", retry=Retry(NoBackoff(), 0))
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(self._binary, "--port", "0", "--unixsocket", f"{self.dir}/s"),
                *("--dir", str(self.dir), "--save", ""),
                *("--appendonly", "yes", "--appendfsync", "always"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)

    def close(self) -> None:
        self.client.close()
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


class Stage:
    """A gateway and any number of workers."""

    def __init__(self, redis_url: str, spawn: Callable[..., Process], folder: Path) -> None:
        self._redis_url = redis_url
        self._spawn = spawn
        self._folder = folder
        (folder / "crash_flow.py").write_text(FLOW)
        self.gateways: list[GatewayProcess] = []
        self.open_gateway()

    def open_gateway(self) -> GatewayProcess:
        log = self._folder / f"gateway{len(self.gateways)}.log"
        gateway = GatewayProcess(PYTHON_M, log, REDIS_URL=self._redis_url, PORT="0")
        self.gateways.append(gateway)
        return gateway.wait_until_listening()

    def worker(self, name: str, module: str = "worker", **settings: object) -> Process:
        worker = self._spawn(
            module,
            **{
                "redis_url": self._redis_url,
                "consumer": name,
                "lease_ms": 900,
                "block_ms": 50,
                "embedder": "off",
                "worker_handlers": "crash_flow",
                "pythonpath": str(self._folder),
                "workflow_reconcile_s": 0.3,
                "log_level": "debug",
                **settings,
            },
        )
        worker.wait_for_line(f"worker {name} takes jobs")
        return worker

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()

    # -- over HTTP -------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.gateways[-1].port}/api/workflow/jobs{path}"
        raw = None if body is None else json.dumps(body).encode()
        headers = {} if raw is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(url, raw, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def create(self, workflow: str, **more: Any) -> str:
        """Creates a job that advances automatically, once the gateway knows its workflow."""
        body = {"workflow": workflow, "auto_advance": True, **more}

        def made() -> str | None:
            status, answer = self.ask("POST", "", body)
            assert status in (200, 422, 503), answer
            return str(answer["job"]["job_id"]) if status == 200 else None

        return str(wait_until(made))

    def status(self, job_id: str) -> dict[str, Any]:
        status, answer = self.ask("GET", f"/{job_id}/status")
        assert status == 200, answer
        job: dict[str, Any] = answer["job"]
        return job

    def wait_for_status(self, job_id: str, *statuses: str, timeout_s: float = 30) -> dict[str, Any]:
        """Waits until the job has one of these statuses; returns it."""
        deadline = time.monotonic() + timeout_s
        while (job := self.status(job_id))["status"] not in statuses:
            assert time.monotonic() < deadline, job
            time.sleep(0.02)
        return job

    def event_log(self, job_id: str) -> list[str]:
        """Its events except progress, each as `type step`; their numbers must have no gap."""
        status, answer = self.ask("GET", f"/{job_id}/events?limit=500")
        assert status == 200, answer
        events = answer["events"]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        return [
            f"{event['type']} {event['step'] or ''}".strip()
            for event in events
            if event["type"] != "step.progress"
        ]

    # -- output of the steps -------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        path = self._folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_note(self, words: str) -> None:
        """Waits until a step has recorded this."""
        wait_until(lambda: words in self.notes)

    def open_gate(self) -> None:
        """Lets the steps end."""
        (self._folder / "gate").touch()
