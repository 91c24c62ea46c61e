"""Which scope a request needs: the whole table. What is not in it needs `admin`."""

from __future__ import annotations

from typing import NamedTuple

from common.contracts.access import Scope
from gateway.openai import paths


class Permission(NamedTuple):
    """Who may: everybody, or keys with any of these scopes, or all of them (none named: any
    key)."""

    scopes: frozenset[str] = frozenset()
    public: bool = False
    needs_all: bool = False

    def lets(self, scopes: frozenset[str]) -> bool:
        """Whether a key with these scopes may."""
        if self.needs_all:
            return self.scopes <= scopes
        return not self.scopes or not self.scopes.isdisjoint(scopes)


def _any_of(*scopes: Scope) -> Permission:
    return Permission(frozenset(scope.value for scope in scopes))


PUBLIC = Permission(public=True)
ANY_KEY = Permission()
WRITE, READ = _any_of(Scope.JOBS_WRITE), _any_of(Scope.JOBS_READ)
NUMBERS = _any_of(Scope.METRICS, Scope.UI)
#: Submits a job and reads what becomes of it.
ASK = _any_of(Scope.JOBS_WRITE, Scope.JOBS_READ)._replace(needs_all=True)
ADMIN = _any_of(Scope.ADMIN)
STATUS = _any_of(Scope.METRICS, Scope.UI, Scope.JOBS_READ)

#: By method and path, as the routes spell them. HEAD is as GET.
TABLE: dict[tuple[str, str], Permission] = {
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/openapi.json"): ANY_KEY,
    ("GET", "/docs"): ANY_KEY,
    ("GET", "/v1/whoami"): ANY_KEY,
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
    ("GET", "/v1/rag/{ns}/search"): READ,
    ("POST", paths.CHAT): ASK,
    ("POST", paths.EMBEDDINGS): ASK,
    ("GET", paths.MODELS): ANY_KEY,
    ("GET", paths.MODEL): ANY_KEY,
    ("GET", "/metrics"): NUMBERS,
    ("GET", "/v1/status"): STATUS,
    ("GET", "/v1/workers"): NUMBERS,
    ("GET", "/v1/dlq"): ADMIN,
    ("DELETE", "/v1/dlq"): ADMIN,
    ("POST", "/v1/dlq/redrive"): ADMIN,
    ("GET", "/v1/dlq/{letter_id}"): ADMIN,
    ("DELETE", "/v1/dlq/{letter_id}"): ADMIN,
    ("POST", "/v1/dlq/{letter_id}/redrive"): ADMIN,
    ("GET", "/v1/audit"): ADMIN,
    ("POST", "/v1/audit"): ADMIN,
    ("GET", "/v1/keys"): ADMIN,
    ("POST", "/v1/keys"): ADMIN,
    ("GET", "/v1/keys/{key_id}"): ADMIN,
    ("DELETE", "/v1/keys/{key_id}"): ADMIN,
    ("POST", "/v1/keys/{key_id}/rotate"): ADMIN,
    ("GET", "/v1/trail"): ADMIN,
}


def permission_for(method: str, path: str) -> Permission:
    """What a request needs."""
    method = "GET" if method == "HEAD" else method
    exact = TABLE.get((method, path))
    if exact is not None:
        return exact
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
