"""What the routes of workflows need beyond the gateway's core state."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from common.contracts.workflow.keys import WorkflowKeys
from common.features.workflows.catalog import WorkflowCatalog
from common.features.workflows.reader import WorkflowReader
from common.features.workflows.store import WorkflowStore
from common.features.workflows.webhooks.hosts import AllowedHosts
from common.redis.batching import ScriptBatcher
from gateway.state import GatewayState


@dataclass(frozen=True)
class WorkflowServices:
    """Built when the app starts."""

    store: WorkflowStore
    reader: WorkflowReader
    catalog: WorkflowCatalog
    #: Private hosts that webhooks may be sent to.
    webhook_hosts: AllowedHosts

    @classmethod
    def build(cls, state: GatewayState, batcher: ScriptBatcher) -> WorkflowServices:
        """`batcher` runs the workflow script on the home partition."""
        client, keys = state.client, WorkflowKeys(state.store.keys.tag)
        return cls(
            store=WorkflowStore(client, state.store.keys, batcher, keys),
            reader=WorkflowReader(client, keys),
            catalog=WorkflowCatalog(client, keys),
            webhook_hosts=AllowedHosts.parse(state.settings.workflow_webhook_allowed_hosts),
        )


def workflows_of(request: Request) -> WorkflowServices:
    """The workflow services behind a request."""
    services: WorkflowServices = request.app.state.workflows
    return services
