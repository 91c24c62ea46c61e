"""Sample data of all kinds for the dashboard, ordinary or hostile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.browser.support.live_server import QUEUE, LiveServer
from tests.support.files import photos

#: Executes or changes something if it is inserted as markup instead of text.
HOSTILE = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script><svg onload=alert(3)>'
    "{{constructor.constructor('alert(4)')()}}${alert(5)}<a href=\"javascript:alert(6)\">x</a>"
    "'\"><b id=injected>\u202egnp.exe\u2066\x1b[31m"
)
COMMIT_LOG = """feat(gateway): one event stream per page
fix: keep the output of a canceled job
Add a way to redrive a whole group
perf(worker): finish jobs in batches
remove the old client
security: end sessions with their key
docs: add screenshots of every page"""


@dataclass(frozen=True)
class SampleData:
    """Ids of the records that the pages show."""

    done: str
    failed: str
    running: str
    workflow: str
    image: str

    @property
    def paths(self) -> dict[str, str]:
        return {
            "overview": "/ui",
            "jobs": "/ui/jobs",
            "job": f"/ui/jobs/{self.done}",
            "failed-job": f"/ui/jobs/{self.failed}",
            "running-job": f"/ui/jobs/{self.running}",
            "playground": "/ui/playground",
            "workers": "/ui/workers",
            "queues": "/ui/queues",
            "dead-letters": "/ui/dead",
            "workflows": "/ui/workflows",
            "workflow": f"/ui/workflows/{self.workflow}",
            "images": "/ui/images",
            "image": f"/ui/images/{self.image}",
            "bullmq": f"/ui/bullmq?queue={QUEUE}",
            "webhooks": "/ui/webhooks",
            "doctor": "/ui/doctor",
            "keys": "/ui/keys",
            "audit-log": "/ui/trail",
            "login": "/ui/login",
            "not-found": "/ui/no/such/page",
        }


def create_sample_data(server: LiveServer, text: str, name: str = "harbour.jpg") -> SampleData:
    """Jobs of all statuses, dead letters of two kinds, a review, an image; all contain `text`."""
    payload: dict[str, Any] = {"text": text, text: {"deep": [text, 2**70, None]}}
    done = server.submit("plan", {"text": text, "note": payload})
    chats = [server.submit("chat", payload) for _ in range(6)]
    failed = [server.submit("code", {"fail": text, "number": number}) for number in range(3)]
    other = server.submit("code", {"fail": "the printer at 10.0.0.7 is out of paper"})
    running = server.submit("code", {"wait": "/nowhere", "note": text}, timeout_s=3600)
    server.wait_until_ended(done, *chats, *failed, other)
    log = "\n".join([*COMMIT_LOG.splitlines(), f"fix: {' '.join(text.split())}"])
    workflow = server.start_workflow(log)
    server.submit("embed", {"text": text}, delay_s=3600)
    queued = {"name": "render", "data": payload, "opts": {}}
    status, answer = server.ask("POST", f"/v1/bullmq/{QUEUE}/jobs", queued)
    assert status == 202, answer
    return SampleData(
        done=done,
        failed=failed[0],
        running=running,
        workflow=workflow,
        image=server.upload_image(photos.photograph("jpeg"), filename=name),
    )
