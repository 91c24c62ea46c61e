"""A worker of the template unit runs custom handlers."""

from __future__ import annotations

from tests.system.machine import Machine
from tests.system.sluice import WORKER, job, post, wait_until

HANDLERS = """
def register(registry):
    @registry.handler("chat")
    async def chat(context, payload):
        return {"shouted": payload["text"].upper()}
"""


def test_the_template_unit_runs_custom_handlers(machine: Machine) -> None:
    machine.write("/opt/redis-worker/handlers/shouting.py", HANDLERS)
    machine.write("/etc/sluice/worker-loud.env", "WORKER_HANDLERS=shouting\n")
    machine.run(f"systemctl disable --now {WORKER} && systemctl enable --now redis-worker@loud")
    job_id = post(machine, "hello")["job_id"]
    wait_until(machine, job_id, "done")
    assert job(machine, job_id)["result"] == {"shouted": "HELLO"}
    assert machine.prop("redis-worker@loud.service", "StatusText")


def test_handlers_that_cannot_be_loaded_stop_it_permanently(machine: Machine) -> None:
    machine.write("/etc/sluice/worker-lost.env", "WORKER_HANDLERS=no_such_module\n")
    machine.run("systemctl start redis-worker@lost", code=None)
    state = machine.unit("redis-worker@lost.service", "ActiveState", "ExecMainStatus", "NRestarts")
    assert state == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
    assert "no_such_module" in machine.run("systemctl status redis-worker@lost", code=None).stdout
