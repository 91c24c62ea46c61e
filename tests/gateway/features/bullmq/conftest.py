"""Only on real servers: fakeredis has no `cmsgpack`."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Make
from tests.gateway.features.bullmq.kit import QUEUES, QueueApi


@pytest.fixture
async def api(real_make: Make) -> QueueApi:
    return QueueApi(real_make(bullmq_add_queues=",".join(QUEUES), sse_heartbeat_s=60))
