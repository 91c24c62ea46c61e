"""Only on real servers: fakeredis has no `cmsgpack`."""

from __future__ import annotations

import pytest

from tests.support.gateway.bullmq import QUEUES, QueueApi
from tests.support.gateway.harness import Make


@pytest.fixture
async def api(make: Make) -> QueueApi:
    return QueueApi(make(bullmq_add_queues=",".join(QUEUES), sse_heartbeat_s=60))
