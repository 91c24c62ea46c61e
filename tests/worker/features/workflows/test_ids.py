"""Core jobs of workflows belong to partition 0 and keep the tenant of the previous job."""

from __future__ import annotations

import pytest

from common.contracts.jobs import JobKeys
from common.redis.partitions import HOME_PARTITION, Partitions
from worker.features.workflows.arguments import CoreJobIds

TENANTS = "0d7cbb1e-1111-4222-8333-444455556666"


@pytest.mark.parametrize("count", [1, 2, 16])
def test_ids_are_in_the_partition_and_keep_the_tail(count: int) -> None:
    partitions = Partitions.create(JobKeys(), count)
    ids = CoreJobIds(partitions)
    drawn = [ids.core_job(TENANTS), ids.for_step(TENANTS).core_job]
    drawn.append(ids.for_tail("444455556666").core_job)
    assert len(set(drawn)) == 3
    for job_id in drawn:
        assert partitions.number(job_id) == HOME_PARTITION
        assert job_id.endswith("444455556666")
    for job_id in (ids.core_job("not a uuid"), ids.for_tail("").core_job):
        assert partitions.number(job_id) == HOME_PARTITION
        assert not job_id.endswith("444455556666")
