"""Paths of the features, and how to recognise them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from sluice.common.contracts.workflow.statuses import WORKFLOW_JOB_ID_PATTERN

BULLMQ_QUEUE_PARAM: Final = "queue"
BULLMQ_JOB_PARAM: Final = "id"
BULLMQ_QUEUE_EVENTS: Final = "/v1/bullmq/{queue}/events"
BULLMQ_JOBS: Final = "/v1/bullmq/{queue}/jobs"
BULLMQ_JOB: Final = "/v1/bullmq/{queue}/jobs/{id}"
BULLMQ_JOB_EVENTS: Final = "/v1/bullmq/{queue}/jobs/{id}/events"


def bullmq_job_url(queue: str, job_id: str) -> str:
    return f"/v1/bullmq/{quote(queue, safe='')}/jobs/{quote(job_id, safe='')}"


DASHBOARD: Final = "/ui"
DASHBOARD_PAGE: Final = "/ui/{path:path}"
DASHBOARD_FILE: Final = "/ui/static/{name:path}"
DASHBOARD_SESSION: Final = "/ui/session"


def is_dashboard(path: str) -> bool:
    """True for the dashboard and everything below it."""
    return path == DASHBOARD or path.startswith(DASHBOARD + "/")


IMAGES: Final = "/v1/images"
IMAGES_EVENTS: Final = IMAGES + "/events"
IMAGE: Final = IMAGES + "/{image_id}"
IMAGE_UPLOAD: Final = IMAGE + "/upload"
IMAGE_EVENTS: Final = IMAGE + "/events"
IMAGE_CONTENT: Final = IMAGE + "/content"
IMAGE_RETRY_UPLOAD: Final = IMAGE + "/retry-upload"
#: Prefix of all images, and suffix of an upload.
IMAGES_PREFIX: Final = IMAGES + "/"
_IMAGE_UPLOAD_SUFFIX: Final = IMAGE_UPLOAD.rpartition("}")[2]
IMAGE_UPLOAD_METHODS: Final = ("PUT", "POST")


def is_image_upload(method: str, path: str) -> bool:
    """True for a request that uploads an image."""
    return (
        path.startswith(IMAGES_PREFIX)
        and path.endswith(_IMAGE_UPLOAD_SUFFIX)
        and method in IMAGE_UPLOAD_METHODS
    )


def image_id_in(path: str) -> str:
    """The image id in a path below IMAGES_PREFIX."""
    return path[len(IMAGES_PREFIX) :].partition("/")[0]


def image_url(image_id: str) -> str:
    return IMAGES_PREFIX + image_id


def image_upload_url(image_id: str) -> str:
    return IMAGE_UPLOAD.replace("{image_id}", image_id)


def image_events_url(image_id: str) -> str:
    return IMAGE_EVENTS.replace("{image_id}", image_id)


def image_content_url(image_id: str) -> str:
    """The URL of the processed image."""
    return IMAGE_CONTENT.replace("{image_id}", image_id)


#: Prefix of documents and of searches, and suffix of the documents of a namespace.
RAG_PREFIX: Final = "/v1/rag/"
_DOCUMENTS_SUFFIX: Final = "/documents"

OPENAI_CHAT: Final = "/v1/chat/completions"
OPENAI_EMBEDDINGS: Final = "/v1/embeddings"
OPENAI_MODELS: Final = "/v1/models"
#: A model's name may contain slashes, such as `org/name`.
OPENAI_MODEL: Final = OPENAI_MODELS + "/{model:path}"
_OPENAI_EXACT = frozenset({OPENAI_CHAT, OPENAI_EMBEDDINGS, OPENAI_MODELS})


def is_openai(path: str) -> bool:
    """True for a path of the OpenAI API."""
    return path in _OPENAI_EXACT or path.startswith(OPENAI_MODELS + "/")


WORKFLOW: Final = "/api/workflow"
WORKFLOW_JOBS: Final = WORKFLOW + "/jobs"
WORKFLOW_JOB: Final = WORKFLOW_JOBS + "/{job_id}"
WORKFLOW_STATUS: Final = WORKFLOW_JOB + "/status"
WORKFLOW_RESULTS: Final = WORKFLOW_JOB + "/results"
WORKFLOW_EXECUTE: Final = WORKFLOW_JOB + "/steps/{step_name}/execute"
WORKFLOW_BULK: Final = WORKFLOW_JOB + "/proposals/bulk"
WORKFLOW_ONTOLOGY: Final = WORKFLOW_JOB + "/proposals/{proposal_id}/ontology"
WORKFLOW_UNDO: Final = WORKFLOW_JOB + "/undo"
WORKFLOW_CANCEL: Final = WORKFLOW_JOB + "/cancel"
WORKFLOW_EVENTS: Final = WORKFLOW_JOB + "/events"
WORKFLOW_STREAM: Final = WORKFLOW_EVENTS + "/stream"
WORKFLOW_DEFINITIONS: Final = WORKFLOW + "/definitions"
WORKFLOW_DELIVERIES: Final = WORKFLOW + "/webhooks/deliveries"
WORKFLOW_DEAD_WEBHOOKS: Final = WORKFLOW + "/webhooks/dlq"
WORKFLOW_REDRIVE_WEBHOOKS: Final = WORKFLOW_DEAD_WEBHOOKS + "/redrive"
#: Prefix of the workflow API.
WORKFLOW_PREFIX: Final = WORKFLOW + "/"
_WORKFLOW_JOBS_PREFIX: Final = WORKFLOW_JOBS + "/"


def is_workflow(path: str) -> bool:
    """True for a path of the workflow API."""
    return path.startswith(WORKFLOW_PREFIX) or path == WORKFLOW


def may_have_document(method: str, path: str) -> bool:
    """True for requests whose body may be as long as a document: adding one to a namespace or to a
    new workflow job."""
    return method == "POST" and (
        path == WORKFLOW_JOBS or (path.startswith(RAG_PREFIX) and path.endswith(_DOCUMENTS_SUFFIX))
    )


def workflow_job_id_in(path: str) -> str | None:
    """The job id in a path; None if there is no valid one."""
    if not path.startswith(_WORKFLOW_JOBS_PREFIX):
        return None
    job_id = path[len(_WORKFLOW_JOBS_PREFIX) :].partition("/")[0]
    return job_id if WORKFLOW_JOB_ID_PATTERN.match(job_id) else None


def workflow_status_url(job_id: str) -> str:
    """The URL of a job's status."""
    return WORKFLOW_STATUS.replace("{job_id}", job_id)
