"""Who audits the queues of a worker; imported by the first audit, which most workers never do."""

from __future__ import annotations

from typing import Final

from common.audit import Auditor, Pace
from common.audit_partitions import PartitionedAuditor
from worker.crews import Crews

#: An audit beside the jobs takes a twentieth of the loop's time, however many jobs there are.
AUDIT_PACE: Final = Pace(pause_s=0.1)


def auditor_of(crews: Crews) -> Auditor | PartitionedAuditor:
    """One for all partitions."""
    auditors = [
        Auditor(crew.lines.client, crew.keys, crews.worker.group, AUDIT_PACE)
        for crew in crews
        if not crew.keys.lane  # the normal one's looks at all lanes
    ]
    return PartitionedAuditor(auditors) if len(auditors) > 1 else auditors[0]
