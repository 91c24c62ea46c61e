"""Submits a job, reads it, and reads a problem, with a client of openapi-python-client."""

import json
import sys

from generated import Client
from generated.api.jobs import create_job, get_job
from generated.models import CreateJobRequest, CreateJobRequestPayload, ProblemView, Task

with Client(base_url=sys.argv[1]) as client:
    payload = CreateJobRequestPayload.from_dict({"text": "hello"})
    request = CreateJobRequest(task=Task.CHAT, payload=payload)
    submitted = create_job.sync(client=client, body=request, idempotency_key="python")
    job = get_job.sync(submitted.job_id, client=client, prefer="wait=30")
    problem = get_job.sync("missing", client=client)
    assert isinstance(problem, ProblemView)
    print(json.dumps({"job_id": submitted.job_id, "status": job.status, "code": problem.code}))
