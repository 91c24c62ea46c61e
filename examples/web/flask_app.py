"""The application of fastapi_app.py with Flask: `flask --app flask_app run --port 8000`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from flask import Flask, Response, request, url_for
from flask.typing import ResponseReturnValue

from sluice import Event, Refused, Sluice, Unreachable

app = Flask(__name__)
#: May be shared by the threads of a server. Creating it sends no request.
sluice = Sluice(retries=0)


@app.post("/answers")
def submit() -> ResponseReturnValue:
    """Submit a job. A repeated request with the same Idempotency-Key gets the same job."""
    body = request.get_json()
    if not isinstance(body, dict) or not isinstance(body.get("text"), str):
        return {"error": "text is missing"}, 400
    key = request.headers.get("Idempotency-Key")
    job = sluice.submit("chat", {"text": body["text"]}, idempotency_key=key)
    return {"job_id": job.id}, 202, {"Location": url_for("read", job_id=job.id)}


@app.get("/answers/<job_id>")
def read(job_id: str) -> ResponseReturnValue:
    job = sluice.job(job_id).get()
    return {"status": job.status, "result": job.result, "error": job.error}


@app.get("/answers/<job_id>/events")
def watch(job_id: str) -> ResponseReturnValue:
    """Pass the events on. Each open stream occupies a thread of the server."""
    handle = sluice.job(job_id)
    handle.get()  # an unknown job is a 404, before the stream begins
    after = request.headers.get("Last-Event-ID")

    def lines() -> Iterator[str]:
        for event in handle.stream(after=after):
            yield frame(event)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Response(lines(), mimetype="text/event-stream", headers=headers)


def frame(event: Event) -> str:
    """The event in the format of SSE. Notices of the gateway itself have no id."""
    position = f"id: {event.id}\n" if event.id else ""
    return f"{position}event: {event.type}\ndata: {json.dumps(event.data)}\n\n"


@app.errorhandler(Refused)
def refused(error: Refused) -> ResponseReturnValue:
    """404 and 429 are passed on; other refusals are a fault of this application."""
    status = error.status if error.status in (404, 429, 503) else 500
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return {"error": error.code}, status, headers


@app.errorhandler(Unreachable)
def unreachable(error: Unreachable) -> ResponseReturnValue:
    return {"error": "queue_unreachable"}, 503, {"Retry-After": "2"}
