"""Requests about images and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from client.core.calls import Answer, Call, call, new_key, query_text, segment
from client.core.pages import Page
from client.core.paging import reading_page
from client.core.reading import member, model, models, nothing, raw_object, reading, text_member
from client.core.store_models import Document, Found, Hit, Image, ImagePlace, Ingested
from client.errors import BadAnswer

_IMAGES = "/v1/images"
OCTETS = "application/octet-stream"
ALREADY_UPLOADED = "already_uploaded"
#: How long a document is waited for before its job is followed instead.
INGEST_WAIT_S = 20.0


# -- images --------------------------------------------------------------------------------


def image_path(image_id: str) -> str:
    """Where an image is."""
    return f"{_IMAGES}/{segment(image_id)}"


def create_image(
    *,
    content_type: str | None = None,
    filename: str | None = None,
    max_bytes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    detect: str | None = None,
    idempotency_key: str | None = None,
) -> Call[ImagePlace]:
    """A place for an image."""
    wishes = {
        "content_type": content_type,
        "filename": filename,
        "max_bytes": max_bytes,
        "metadata": metadata,
        "detect": detect,
    }
    body = {name: value for name, value in wishes.items() if value is not None}
    key = new_key() if idempotency_key is None else idempotency_key
    return call("POST", _IMAGES, reading(ImagePlace), body=body, key=key)


def send_image(image_id: str, data: bytes, content_type: str, token: str | None) -> Call[str]:
    """Its bytes; the answer is the job that processes them."""
    headers = {"Content-Type": content_type}
    if token is not None:
        headers["X-Upload-Token"] = token
    path = f"{image_path(image_id)}/upload"
    return Call("PUT", path, lambda answer: text_member(answer.json(), "job_id"), data, headers)


def get_image(image_id: str) -> Call[Image]:
    """An image as it stands."""
    return call("GET", image_path(image_id), reading(Image))


def list_images(limit: int | None, before: str | None) -> Call[Page[Image]]:
    """Images, newest first."""
    query = {"limit": limit, "before": before}
    return call("GET", _IMAGES, reading_page(Image), query=query)


def image_events_path(image_ids: Sequence[str]) -> str:
    """Where some of them are followed."""
    if len(image_ids) == 1:
        return f"{image_path(image_ids[0])}/events"
    return f"{_IMAGES}/events" + query_text({"image_ids": ",".join(image_ids)})


def image_content(image_id: str) -> Call[bytes]:
    """The processed image, from wherever it is kept."""
    asked = call(
        "GET",
        f"{image_path(image_id)}/content",
        lambda answer: answer.body,
        headers={"Accept": "*/*"},
    )
    return replace(asked, redirects=True)


def retry_image(image_id: str) -> Call[ImagePlace]:
    """A failed one may be sent again."""
    path = f"{image_path(image_id)}/retry-upload"
    return call("POST", path, reading(ImagePlace), repeatable=True)


def delete_image(image_id: str) -> Call[None]:
    """It is gone, also a second time."""
    return call("DELETE", image_path(image_id), nothing)


# -- documents -----------------------------------------------------------------------------


def _documents(namespace: str) -> str:
    return f"/v1/rag/{segment(namespace)}/documents"


def namespaces() -> Call[list[str]]:
    """Those that hold anything."""
    return call("GET", "/v1/rag", _names)


def _names(answer: Answer) -> list[str]:
    items = member(answer.json(), "items")
    if not isinstance(items, list):
        raise BadAnswer("the gateway's answer has no list of names; check the URL")
    return [str(item) for item in items]


def add_document(
    namespace: str,
    content: str | bytes,
    *,
    document_id: str | None = None,
    title: str | None = None,
    media_type: str | None = None,
) -> Call[dict[str, Any]]:
    """A document: text, or a file's bytes under its media type."""
    key = new_key()
    path = _documents(namespace)
    if isinstance(content, str):
        wishes = {"text": content, "id": document_id, "title": title, "media_type": media_type}
        body = {name: value for name, value in wishes.items() if value is not None}
        return call("POST", path, raw_object, body=body, key=key, wait_s=INGEST_WAIT_S)
    query = {"id": document_id, "title": title}
    headers = {"Content-Type": media_type or "text/plain"}
    asked = call(
        "POST", path, raw_object, query=query, headers=headers, key=key, wait_s=INGEST_WAIT_S
    )
    return replace(asked, body=content)


def ingested(told: Any) -> Ingested:
    """Of the answer to it, or of its job's result."""
    return model(Ingested, told)


def list_documents(namespace: str, limit: int | None, before: str | None) -> Call[Page[Document]]:
    """The last changed first."""
    query = {"limit": limit, "before": before}
    return call("GET", _documents(namespace), reading_page(Document), query=query)


def get_document(namespace: str, document_id: str) -> Call[Document]:
    """What is known of it."""
    return call("GET", f"{_documents(namespace)}/{segment(document_id)}", reading(Document))


def document_text(namespace: str, document_id: str, start: int, end: int | None) -> Call[str]:
    """What it says."""
    path = f"{_documents(namespace)}/{segment(document_id)}/text"
    query = {"start": start or None, "end": end}
    return call("GET", path, lambda answer: answer.body.decode("utf-8", "replace"), query=query)


def delete_document(namespace: str, document_id: str) -> Call[str | None]:
    """It is gone; the answer is the job that still has to do it, if it takes longer."""
    return call("DELETE", f"{_documents(namespace)}/{segment(document_id)}", _job_if_any)


def _job_if_any(answer: Answer) -> str | None:
    return text_member(answer.json(), "job_id") if answer.status == 202 else None


def search(
    namespace: str, q: str, top_k: int | None, mode: str | None, answer: bool
) -> Call[dict[str, Any]]:
    """Passages that fit."""
    query = {"q": q, "top_k": top_k, "mode": mode, "answer": answer or None}
    return call("GET", f"/v1/rag/{segment(namespace)}/search", raw_object, query=query)


def found(told: Any) -> Found:
    """Of the answer to it, or of its job's result."""
    hits = models(Hit, member(told, "hits"))
    text, mode = told.get("text"), told.get("mode")
    return Found(
        hits,
        text if isinstance(text, str) else None,
        mode if isinstance(mode, str) else "",
        told,
    )
