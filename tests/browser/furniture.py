"""A bit of everything on a site, as it would be after a day, or as an enemy would leave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests import photos
from tests.browser.site import QUEUE, Site

#: Runs, shows or moves something, wherever it is not text.
HOSTILE = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script><svg onload=alert(3)>'
    "{{constructor.constructor('alert(4)')()}}${alert(5)}<a href=\"javascript:alert(6)\">x</a>"
    "'\"><b id=injected>\u202egnp.exe\u2066\x1b[31m"
)
LOG = """feat(gateway): one stream for a whole page
fix: a canceled job keeps what it had said
Add a way to redrive a whole group
perf(worker): ends travel together
remove the old client
security: sessions end with their key
docs: pictures of every page"""


@dataclass(frozen=True)
class Furnished:
    """What pages of one thing are to show."""

    done: str
    failed: str
    running: str
    workflow: str
    image: str

    @property
    def paths(self) -> dict[str, str]:
        """Every page by its name."""
        return {
            "overview": "/ui",
            "jobs": "/ui/jobs",
            "job": f"/ui/jobs/{self.done}",
            "failed-job": f"/ui/jobs/{self.failed}",
            "running-job": f"/ui/jobs/{self.running}",
            "playground": "/ui/playground",
            "workers": "/ui/workers",
            "queues": "/ui/queues",
            "dead": "/ui/dead",
            "workflows": "/ui/workflows",
            "workflow": f"/ui/workflows/{self.workflow}",
            "images": "/ui/images",
            "image": f"/ui/images/{self.image}",
            "bullmq": f"/ui/bullmq?queue={QUEUE}",
            "webhooks": "/ui/webhooks",
            "doctor": "/ui/doctor",
            "keys": "/ui/keys",
            "trail": "/ui/trail",
            "login": "/ui/login",
            "nowhere": "/ui/no/such/page",
        }


def furnish(site: Site, text: str, name: str = "harbour.jpg") -> Furnished:
    """Jobs of every state, dead letters of two kinds, a review, an image; `text` is in all."""
    payload: dict[str, Any] = {"text": text, text: {"deep": [text, 2**70, None]}}
    said = site.submit("plan", {"text": text, "note": payload})
    chats = [site.submit("chat", payload) for _ in range(6)]
    failed = [site.submit("code", {"fail": text, "number": number}) for number in range(3)]
    other = site.submit("code", {"fail": "the printer at 10.0.0.7 is out of paper"})
    running = site.submit("code", {"wait": "/nowhere", "note": text}, timeout_s=3600)
    site.ended(said, *chats, *failed, other)
    log = "\n".join([*LOG.splitlines(), f"fix: {' '.join(text.split())}"])
    workflow = site.workflow(log)
    site.submit("embed", {"text": text}, delay_s=3600)
    queued = {"name": "render", "data": payload, "opts": {}}
    status, answer = site.ask("POST", f"/v1/bullmq/{QUEUE}/jobs", queued)
    assert status == 202, answer
    return Furnished(
        done=said,
        failed=failed[0],
        running=running,
        workflow=workflow,
        image=site.image(photos.photograph("jpeg"), filename=name),
    )
