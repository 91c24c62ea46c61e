"""Which scope a request needs: the whole table. What is not in it needs `admin`."""

from __future__ import annotations

from typing import NamedTuple

from common.contracts.access import Scope
from gateway.bullmq import paths as bullmq
from gateway.dashboard import paths as dashboard
from gateway.images import paths as images
from gateway.openai import paths
from gateway.workflow import paths as workflow


class Permission(NamedTuple):
    """Who may: everybody, or keys with any of these scopes, or all of them (none named: any
    key)."""

    scopes: frozenset[str] = frozenset()
    public: bool = False
    needs_all: bool = False
    #: It is of no tenant, so that `ui` is enough only for a key that is of none.
    of_all: bool = False

    def lets(self, scopes: frozenset[str], *, sees_all: bool = True) -> bool:
        """Whether a key with these scopes may; `sees_all`: it is no single tenant's."""
        if self.of_all and not sees_all:
            return Scope.ADMIN.value in scopes
        if self.needs_all:
            return self.scopes <= scopes
        return not self.scopes or not self.scopes.isdisjoint(scopes)


def _any_of(*scopes: Scope) -> Permission:
    return Permission(frozenset(scope.value for scope in scopes))


PUBLIC = Permission(public=True)
ANY_KEY = Permission()
WRITE = _any_of(Scope.JOBS_WRITE)
#: What the dashboard shows of jobs, `ui` may read as well.
READ = _any_of(Scope.JOBS_READ, Scope.UI)
#: Reads, but by a job.
SEARCH = _any_of(Scope.JOBS_READ)
NUMBERS = _any_of(Scope.METRICS, Scope.UI)
#: Submits a job and reads what becomes of it.
ASK = _any_of(Scope.JOBS_WRITE, Scope.JOBS_READ)._replace(needs_all=True)
ADMIN = _any_of(Scope.ADMIN)
#: What administrators change, and the dashboard shows to whoever sees all tenants.
LOOK = _any_of(Scope.ADMIN, Scope.UI)._replace(of_all=True)
STATUS = _any_of(Scope.METRICS, Scope.UI, Scope.JOBS_READ)

#: By method and path, as the routes spell them. HEAD is as GET.
TABLE: dict[tuple[str, str], Permission] = {
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/"): PUBLIC,
    ("GET", dashboard.PAGES): PUBLIC,
    ("GET", dashboard.FILE): PUBLIC,
    ("GET", dashboard.PAGE): PUBLIC,
    ("GET", dashboard.SESSION): PUBLIC,
    ("POST", dashboard.SESSION): PUBLIC,
    ("DELETE", dashboard.SESSION): PUBLIC,
    ("GET", "/openapi.json"): ANY_KEY,
    ("GET", "/docs"): ANY_KEY,
    ("GET", "/v1/whoami"): ANY_KEY,
    ("GET", "/v1/jobs"): READ,
    ("POST", "/v1/jobs"): WRITE,
    ("GET", "/v1/jobs/{job_id}"): READ,
    ("DELETE", "/v1/jobs/{job_id}"): WRITE,
    ("POST", "/v1/jobs/{job_id}/cancel"): WRITE,
    ("GET", "/v1/jobs/{job_id}/events"): READ,
    ("GET", "/v1/rag"): READ,
    ("GET", "/v1/rag/{ns}/documents"): READ,
    ("POST", "/v1/rag/{ns}/documents"): WRITE,
    ("GET", "/v1/rag/{ns}/documents/{document_id}"): READ,
    ("GET", "/v1/rag/{ns}/documents/{document_id}/text"): READ,
    ("DELETE", "/v1/rag/{ns}/documents/{document_id}"): WRITE,
    ("GET", "/v1/rag/{ns}/search"): SEARCH,
    ("GET", "/v1/rag/{ns}/ontology"): READ,
    ("POST", paths.CHAT): ASK,
    ("POST", paths.EMBEDDINGS): ASK,
    ("GET", paths.MODELS): ANY_KEY,
    ("GET", paths.MODEL): ANY_KEY,
    ("GET", "/metrics"): NUMBERS,
    ("GET", "/v1/status"): STATUS,
    ("GET", "/v1/workers"): NUMBERS,
    ("GET", "/v1/stats"): NUMBERS,
    ("GET", "/v1/stream"): STATUS,
    ("GET", "/v1/queues"): NUMBERS,
    ("POST", "/v1/queues/{name}/pause"): ADMIN,
    ("POST", "/v1/queues/{name}/resume"): ADMIN,
    ("GET", "/v1/dlq"): LOOK,
    ("DELETE", "/v1/dlq"): ADMIN,
    ("GET", "/v1/dlq/groups"): LOOK,
    ("POST", "/v1/dlq/redrive"): ADMIN,
    ("GET", "/v1/dlq/{letter_id}"): LOOK,
    ("DELETE", "/v1/dlq/{letter_id}"): ADMIN,
    ("POST", "/v1/dlq/{letter_id}/redrive"): ADMIN,
    ("GET", "/v1/audit"): LOOK,
    ("POST", "/v1/audit"): ADMIN,
    ("GET", "/v1/keys"): ADMIN,
    ("POST", "/v1/keys"): ADMIN,
    ("GET", "/v1/keys/{key_id}"): ADMIN,
    ("DELETE", "/v1/keys/{key_id}"): ADMIN,
    ("POST", "/v1/keys/{key_id}/rotate"): ADMIN,
    ("GET", "/v1/trail"): LOOK,
    ("GET", workflow.DEFINITIONS): READ,
    ("GET", workflow.JOBS): READ,
    ("POST", workflow.JOBS): WRITE,
    ("GET", workflow.STATUS): READ,
    ("GET", workflow.RESULTS): READ,
    ("GET", workflow.EVENTS): READ,
    ("GET", workflow.STREAM): READ,
    ("POST", workflow.EXECUTE): WRITE,
    ("POST", workflow.BULK): ASK,
    ("PATCH", workflow.ONTOLOGY): ASK,
    ("POST", workflow.UNDO): ASK,
    ("POST", workflow.CANCEL): WRITE,
    ("GET", images.IMAGES): READ,
    ("POST", images.IMAGES): WRITE,
    ("GET", images.MANY_EVENTS): READ,
    ("GET", images.IMAGE): READ,
    ("DELETE", images.IMAGE): WRITE,
    ("PUT", images.UPLOAD): WRITE,
    ("POST", images.UPLOAD): WRITE,
    ("GET", images.EVENTS): READ,
    ("GET", images.CONTENT): READ,
    ("POST", images.RETRY): WRITE,
    ("POST", bullmq.JOBS): WRITE,
    ("GET", bullmq.ONE): READ,
    ("DELETE", bullmq.ONE): WRITE,
    ("GET", bullmq.EVENTS): READ,
    ("GET", bullmq.QUEUE_EVENTS): READ,
    ("GET", workflow.DELIVERIES): ADMIN,
    ("GET", workflow.DEAD_WEBHOOKS): LOOK,
    ("POST", workflow.REDRIVE_WEBHOOKS): ADMIN,
}


def permission_for(method: str, path: str) -> Permission:
    """What a request needs."""
    method = "GET" if method == "HEAD" else method
    exact = TABLE.get((method, path))
    if exact is not None:
        return exact
    if method == "GET" and dashboard.is_page(path):  # no data in any of it
        return PUBLIC
    if path.startswith(_MODELS) and len(path) > len(_MODELS):
        return TABLE.get((method, paths.MODEL), ADMIN)
    parts = path.split("/")
    for template, permission in _TEMPLATES.get((method, len(parts)), ()):
        if all(wanted in ("", part) and part for wanted, part in zip(template, parts[1:])):
            return permission
    return ADMIN


def _templates() -> dict[tuple[str, int], list[tuple[list[str], Permission]]]:
    """Rows with parameters, by method and number of parts; '' stands for any part."""
    found: dict[tuple[str, int], list[tuple[list[str], Permission]]] = {}
    for (method, path), permission in TABLE.items():
        if "{" in path:
            parts = path.split("/")
            template = ["" if part.startswith("{") else part for part in parts[1:]]
            found.setdefault((method, len(parts)), []).append((template, permission))
    return found


#: A model's name may have any number of parts.
_MODELS = paths.MODELS + "/"
_TEMPLATES = _templates()
