"""A worker of the template unit runs custom handlers."""

from __future__ import annotations

from tests.system.machine import Machine
from tests.system.sluice import assert_failed_permanently, job, replace_worker, run_job

HANDLERS = """
def register(registry):
    @registry.handler("chat")
    async def chat(context, payload):
        return {"shouted": payload["text"].upper()}
"""


def test_the_template_unit_runs_custom_handlers(machine: Machine) -> None:
    machine.write("/opt/redis-worker/handlers/shouting.py", HANDLERS)
    machine.write("/etc/sluice/worker-loud.env", "WORKER_HANDLERS=shouting\n")
    replace_worker(machine, "redis-worker@loud")
    assert job(machine, run_job(machine))["result"] == {"shouted": "HELLO"}
    assert machine.prop("redis-worker@loud.service", "StatusText")


def test_handlers_that_cannot_be_loaded_stop_it_permanently(machine: Machine) -> None:
    machine.write("/etc/sluice/worker-lost.env", "WORKER_HANDLERS=no_such_module\n")
    machine.run("systemctl start redis-worker@lost", code=None)
    assert_failed_permanently(machine, "redis-worker@lost.service", "no_such_module")
