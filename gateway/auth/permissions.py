"""Scopes required by each endpoint. An endpoint missing from the table needs `admin`."""

from __future__ import annotations

from typing import NamedTuple

from sluice.common.contracts.access import Scope
from sluice.gateway.http import paths


class Permission(NamedTuple):
    """Requirement of an endpoint: public, or a key with one or all of the scopes.

    Without scopes any valid key is sufficient.
    """

    scopes: frozenset[str] = frozenset()
    public: bool = False
    needs_all: bool = False
    #: The data belongs to no tenant: a key of a tenant needs `admin`.
    all_tenants: bool = False

    def allows(self, scopes: frozenset[str], *, sees_all: bool = True) -> bool:
        """True if a key with these scopes is permitted; `sees_all`: it is not bound to a tenant."""
        if self.all_tenants and not sees_all:
            return Scope.ADMIN.value in scopes
        if self.needs_all:
            return self.scopes <= scopes
        return not self.scopes or not self.scopes.isdisjoint(scopes)


def _any_of(*scopes: Scope) -> Permission:
    return Permission(frozenset(scope.value for scope in scopes))


PUBLIC = Permission(public=True)
ANY_KEY = Permission()
WRITE = _any_of(Scope.JOBS_WRITE)
#: Data that the dashboard shows: `ui` may read it, too.
READ = _any_of(Scope.JOBS_READ, Scope.UI)
#: A read that runs as a job; `ui` is not sufficient.
SEARCH = _any_of(Scope.JOBS_READ)
#: What a read token permits; `ui` is not sufficient to create one.
TOKENS = SEARCH
METRICS = _any_of(Scope.METRICS, Scope.UI)
#: Submits a job and returns its outcome.
SUBMIT_AND_READ = _any_of(Scope.JOBS_WRITE, Scope.JOBS_READ)._replace(needs_all=True)
ADMIN = _any_of(Scope.ADMIN)
#: Data of administrators that the dashboard shows to keys that are not bound to a tenant.
ADMIN_READ = _any_of(Scope.ADMIN, Scope.UI)._replace(all_tenants=True)
STATUS = _any_of(Scope.METRICS, Scope.UI, Scope.JOBS_READ)

#: By method and path, as declared by the routes. HEAD is treated as GET.
PERMISSIONS: dict[tuple[str, str], Permission] = {
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/"): PUBLIC,
    ("GET", paths.DASHBOARD): PUBLIC,
    ("GET", paths.DASHBOARD_FILE): PUBLIC,
    ("GET", paths.DASHBOARD_PAGE): PUBLIC,
    ("GET", paths.DASHBOARD_SESSION): PUBLIC,
    ("POST", paths.DASHBOARD_SESSION): PUBLIC,
    ("DELETE", paths.DASHBOARD_SESSION): PUBLIC,
    ("GET", "/openapi.json"): ANY_KEY,
    ("GET", "/docs"): ANY_KEY,
    ("GET", "/v1/whoami"): ANY_KEY,
    ("POST", "/v1/tokens"): TOKENS,
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
    ("POST", paths.OPENAI_CHAT): SUBMIT_AND_READ,
    ("POST", paths.OPENAI_EMBEDDINGS): SUBMIT_AND_READ,
    ("GET", paths.OPENAI_MODELS): ANY_KEY,
    ("GET", paths.OPENAI_MODEL): ANY_KEY,
    ("GET", paths.TOOLS): ANY_KEY,
    ("GET", "/metrics"): METRICS,
    ("GET", "/v1/status"): STATUS,
    ("GET", "/v1/workers"): METRICS,
    ("GET", "/v1/stats"): METRICS,
    ("GET", "/v1/stream"): STATUS,
    ("GET", "/v1/queues"): METRICS,
    ("POST", "/v1/queues/{name}/pause"): ADMIN,
    ("POST", "/v1/queues/{name}/resume"): ADMIN,
    ("GET", "/v1/dlq"): ADMIN_READ,
    ("DELETE", "/v1/dlq"): ADMIN,
    ("GET", "/v1/dlq/groups"): ADMIN_READ,
    ("POST", "/v1/dlq/redrive"): ADMIN,
    ("GET", "/v1/dlq/{letter_id}"): ADMIN_READ,
    ("DELETE", "/v1/dlq/{letter_id}"): ADMIN,
    ("POST", "/v1/dlq/{letter_id}/redrive"): ADMIN,
    ("GET", "/v1/audit"): ADMIN_READ,
    ("POST", "/v1/audit"): ADMIN,
    ("GET", "/v1/keys"): ADMIN,
    ("POST", "/v1/keys"): ADMIN,
    ("GET", "/v1/keys/{key_id}"): ADMIN,
    ("DELETE", "/v1/keys/{key_id}"): ADMIN,
    ("POST", "/v1/keys/{key_id}/rotate"): ADMIN,
    ("GET", "/v1/trail"): ADMIN_READ,
    ("GET", paths.WORKFLOW_DEFINITIONS): READ,
    ("GET", paths.WORKFLOW_JOBS): READ,
    ("POST", paths.WORKFLOW_JOBS): WRITE,
    ("GET", paths.WORKFLOW_STATUS): READ,
    ("GET", paths.WORKFLOW_RESULTS): READ,
    ("GET", paths.WORKFLOW_EVENTS): READ,
    ("GET", paths.WORKFLOW_STREAM): READ,
    ("POST", paths.WORKFLOW_EXECUTE): WRITE,
    ("POST", paths.WORKFLOW_BULK): SUBMIT_AND_READ,
    ("PATCH", paths.WORKFLOW_ONTOLOGY): SUBMIT_AND_READ,
    ("POST", paths.WORKFLOW_UNDO): SUBMIT_AND_READ,
    ("POST", paths.WORKFLOW_CANCEL): WRITE,
    ("GET", paths.IMAGES): READ,
    ("POST", paths.IMAGES): WRITE,
    ("GET", paths.IMAGES_EVENTS): READ,
    ("GET", paths.IMAGE): READ,
    ("DELETE", paths.IMAGE): WRITE,
    ("PUT", paths.IMAGE_UPLOAD): WRITE,
    ("POST", paths.IMAGE_UPLOAD): WRITE,
    ("GET", paths.IMAGE_EVENTS): READ,
    ("GET", paths.IMAGE_CONTENT): READ,
    ("POST", paths.IMAGE_RETRY_UPLOAD): WRITE,
    ("POST", paths.BULLMQ_JOBS): WRITE,
    ("GET", paths.BULLMQ_JOB): READ,
    ("DELETE", paths.BULLMQ_JOB): WRITE,
    ("GET", paths.BULLMQ_JOB_EVENTS): READ,
    ("GET", paths.BULLMQ_QUEUE_EVENTS): READ,
    ("GET", paths.WORKFLOW_DELIVERIES): ADMIN,
    ("GET", paths.WORKFLOW_DEAD_WEBHOOKS): ADMIN_READ,
    ("POST", paths.WORKFLOW_REDRIVE_WEBHOOKS): ADMIN,
}


def permission_for(method: str, path: str) -> Permission:
    method = "GET" if method == "HEAD" else method
    exact = PERMISSIONS.get((method, path))
    if exact is not None:
        return exact
    if method == "GET" and paths.is_dashboard(path):  # static files without data
        return PUBLIC
    if path.startswith(_MODELS) and len(path) > len(_MODELS):
        return PERMISSIONS.get((method, paths.OPENAI_MODEL), ADMIN)
    parts = path.split("/")
    for template, permission in _TEMPLATES.get((method, len(parts)), ()):
        if all(expected in ("", part) and part for expected, part in zip(template, parts[1:])):
            return permission
    return ADMIN


def _templates() -> dict[tuple[str, int], list[tuple[list[str], Permission]]]:
    """Paths with parameters, by method and number of parts; '' matches any part."""
    found: dict[tuple[str, int], list[tuple[list[str], Permission]]] = {}
    for (method, path), permission in PERMISSIONS.items():
        if "{" in path:
            parts = path.split("/")
            template = ["" if part.startswith("{") else part for part in parts[1:]]
            found.setdefault((method, len(parts)), []).append((template, permission))
    return found


#: A model name may contain any number of slashes.
_MODELS = paths.OPENAI_MODELS + "/"
_TEMPLATES = _templates()
