"""The tags of the OpenAPI document: one plain noun for each group of operations."""

from __future__ import annotations

from typing import Final

#: Descriptions, by tag.
TAGS: Final = {
    "jobs": "Submit, list, read and cancel jobs.",
    "events": "Watch a job live.",
    "openai": "Chat completions and embeddings for OpenAI SDKs.",
    "dead-letters": "Inspect, redrive and purge messages of jobs that failed for good.",
    "tools": "Tools that live workers offer.",
    "documents": "Add and search documents.",
    "images": "Upload, watch and download images.",
    "bullmq": "Jobs in BullMQ queues that are shared with Node.",
    "integrity": "Check that no job was lost or ended twice.",
    "keys": "Create, rotate and revoke API keys.",
    "tokens": "Let a web page read one job without an API key.",
    "audit-log": "Administrative actions, with the key that performed them.",
    "health": "Probes and checks.",
    "statistics": "Metrics, history and live activity.",
    "queues": "List, pause and resume queues.",
    "workers": "Live workers and the jobs that they run.",
    "workflows": "Multi-step work with review by a person.",
    "webhooks": "Deliveries of workflow events.",
    "dashboard": "Sessions of the dashboard.",
}
#: Headings that differ from the tag.
_TITLES: Final = {
    "openai": "OpenAI",
    "bullmq": "BullMQ",
    "keys": "API keys",
    "tokens": "Read tokens",
    "integrity": "Integrity checks",
}


def title_of(tag: str) -> str:
    """The heading of a group of operations."""
    return _TITLES.get(tag, tag.replace("-", " ").capitalize())
