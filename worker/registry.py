"""The registry of handlers: which function runs which task, with which payload model."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.jobs import TASKS, JobKeys, Task
from sluice.common.contracts.workflow.fields import StepPayloadField
from sluice.common.errors import SettingsError
from sluice.common.jobs.options import Backoff
from sluice.common.redis.partitions import Partitions
from sluice.worker.errors import InvalidPayload, UnknownTask
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.outcome import NO_HANDLER_OPTIONS, HandlerOptions, Outcome

if TYPE_CHECKING:
    from pydantic import BaseModel

    from sluice.common.features.images.store import ImageStore
    from sluice.common.features.workflows.store import WorkflowStore
    from sluice.common.features.workflows.webhooks.store import WebhookStore
    from sluice.common.jobs.store import WorkerIdentity
    from sluice.common.redis.pipelined import CommandClient
    from sluice.worker.features.tools.toolbox import ToolBox
    from sluice.worker.features.workflows.registry import Workflows
    from sluice.worker.queue.claim import ClaimedJob
    from sluice.worker.queue.limits import TaskLimits

Function = Callable[..., Any]


def is_async(function: Function) -> bool:
    """True for a coroutine function, also inside a partial or a callable object."""
    return inspect.iscoroutinefunction(_unwrap(function))


def second_parameter(function: Function, named: str) -> str:
    """Name of the second parameter; raises ValueError unless there are exactly two.

    `named` describes the expected parameters in the error message.
    """
    try:
        _, second = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ValueError(f"{function!r} must take {named}") from None
    return second


def parameter_model(function: Function, parameter: str) -> type[BaseModel] | None:
    """The pydantic model that annotates a parameter, or None."""
    try:
        annotation = typing.get_type_hints(_unwrap(function)).get(parameter)
    except (NameError, TypeError):  # names only imported for type checking
        return None
    return annotation if _is_model(annotation) else None


def _is_model(annotation: object) -> bool:
    # A module that defines a model has imported pydantic. A worker without models need not load
    # it. While another thread is importing it, BaseModel may be missing: then this is not a model.
    model = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return model is not None and inspect.isclass(annotation) and issubclass(annotation, model)


def _unwrap(function: Function) -> Function:
    """The function behind a partial or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isfunction(function) or inspect.ismethod(function):
        return function
    definition: Function = type(function).__call__
    return definition


@dataclass(frozen=True)
class WorkerServices:
    """The parts of the worker that a service may use."""

    redis: Redis
    limits: TaskLimits
    #: Stores of workflow steps and of images, the keys of jobs, and the worker's identity.
    workflows: WorkflowStore
    images: ImageStore
    keys: JobKeys
    worker: WorkerIdentity
    #: Deliveries that are due; None if this worker does not deliver webhooks.
    webhooks: WebhookStore | None = None
    #: Opens a connection that passes published messages to a callback
    #: (`sluice.common.redis.pipelined`).
    subscribe: Callable[[Callable[[bytes], None]], CommandClient] | None = None
    #: All partitions; `keys` are those of the home partition.
    partitions: Partitions = field(default_factory=lambda: Partitions.create(JobKeys()))
    #: Members that services add to the worker's heartbeat. The functions are called at each beat.
    heartbeat_fields: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Service:
    """Runs alongside the jobs for as long as the worker does. Override what is needed."""

    async def start(self, services: WorkerServices) -> None:
        """Called once, before the first job is taken. Must return quickly."""

    async def run(self) -> None:
        """Called once after `start`. Canceled after the last job has ended."""

    async def close(self) -> None:
        """Called once, when the worker stops."""


#: `handler(context, payload)`. A function that is not async runs in its own thread.
HandlerFunction = Callable[..., Any]
#: `on_end(context, args, outcome, error)` of an internal tool: its job has ended in error (JSON) or
#: was canceled, finally.
OnEndFunction = Callable[[JobContext, dict[str, Any], Outcome, bytes], Awaitable[None]]

_TOOL_TASK = Task.TOOL.value
_TOOL, _ARGS = StepPayloadField.TOOL, StepPayloadField.ARGS


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function with its payload model and its options."""

    function: HandlerFunction
    is_async: bool
    model: type[BaseModel] | None
    options: HandlerOptions = NO_HANDLER_OPTIONS
    on_end: OnEndFunction | None = None

    def parse(self, payload: dict[str, Any]) -> Any:
        """Validate the payload with the model, if there is one; raises InvalidPayload."""
        if self.model is None:
            return payload
        from pydantic import ValidationError  # already loaded, because there is a model

        try:
            return self.model.model_validate(payload)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'payload'}: {fault['msg']}"
                for fault in error.errors()
            )
            raise InvalidPayload(faults) from None


class Registry:
    """Handlers by task name."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._internal: dict[str, Handler] = {}
        self._named: dict[str, Handler] = {}
        #: In the order in which the worker starts them.
        self.services: list[Service] = []

    @cached_property
    def toolbox(self) -> ToolBox:
        """The tools that handlers may call. Created on first use, to save the import."""
        from sluice.worker.features.tools.toolbox import ToolBox

        return ToolBox()

    @cached_property
    def workflows(self) -> Workflows:
        """The workflows whose steps this worker runs. Created on first use."""
        from sluice.worker.features.workflows.registry import Workflows

        return Workflows()

    def add_service(self, service: Service) -> None:
        """Start, run and close `service` together with the worker."""
        self.services.append(service)

    def add(
        self,
        task: str,
        function: HandlerFunction,
        *,
        timeout_s: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Register `function` for `task`; a later registration replaces an earlier one.

        The options apply to requests that do not set their own. With `max_attempts`, every failure
        except a `JobError` is retried; without, only transient failures are.
        """
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}; the contract knows {', '.join(TASKS)}")
        self._handlers[task] = _build_handler(
            function, HandlerOptions(timeout_s, max_attempts, backoff)
        )

    def handler(
        self,
        *tasks: str,
        timeout_s: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Decorator form of `add`, for one task or several."""

        def register(function: HandlerFunction) -> HandlerFunction:
            for task in tasks:
                self.add(
                    task,
                    function,
                    timeout_s=timeout_s,
                    max_attempts=max_attempts,
                    backoff=backoff,
                )
            return function

        return register

    def add_named(
        self, name: str, function: HandlerFunction, *, timeout_s: float | None = None
    ) -> None:
        """Register `function` for BullMQ jobs with this name, which may be any string.

        Attempts and backoff come from the job's options.
        """
        if not name or not isinstance(name, str):
            raise ValueError(f"{name!r} is not a job name; use a non-empty string")
        self._named[name] = _build_handler(function, HandlerOptions(timeout_s))

    def named(
        self, *names: str, timeout_s: float | None = None
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Decorator form of `add_named`, for one name or several."""

        def register(function: HandlerFunction) -> HandlerFunction:
            for name in names:
                self.add_named(name, function, timeout_s=timeout_s)
            return function

        return register

    def by_name(self, name: str) -> Handler | None:
        """The handler of a BullMQ job name: one added for the name, or else the task's."""
        return self._named.get(name) or self._handlers.get(name)

    def add_internal(
        self,
        name: str,
        function: Callable[[JobContext, dict[str, Any]], Awaitable[Any]],
        on_end: OnEndFunction | None = None,
    ) -> None:
        """Register `function(context, args)` for an internal tool, whose name is reserved.

        It is not part of the toolbox. A user's handler for the task `tool` does not receive it.
        """

        async def call(context: JobContext, payload: dict[str, Any]) -> Any:
            return await function(context, tool_arguments(payload))

        self._internal[name] = Handler(call, True, None, NO_HANDLER_OPTIONS, on_end)

    @property
    def tasks(self) -> list[str]:
        """The tasks that have a handler, sorted."""
        return sorted(self._handlers)

    @property
    def limit_keys(self) -> frozenset[str]:
        """What limits can be counted by: the tasks with a handler, and the internal tools."""
        return frozenset((*self._handlers, *self._internal))

    def max_attempts_of(self, task: str) -> int | None:
        """`max_attempts` of the task's handler; None if the handler does not set it."""
        handler = self._handlers.get(task)
        return None if handler is None else handler.options.max_attempts

    @property
    def max_attempts_by_task(self) -> dict[str, int]:
        """`max_attempts` of the handlers that set it."""
        limits = ((task, self.max_attempts_of(task)) for task in self._handlers)
        return {task: limit for task, limit in limits if limit is not None}

    def resolve(self, task: str) -> Handler:
        """The handler of a task; raises UnknownTask."""
        try:
            return self._handlers[task]
        except KeyError:
            raise UnknownTask(
                f"no handler for task {task!r}; this worker handles "
                f"{', '.join(sorted(self._handlers)) or 'no task'}"
            ) from None

    def resolve_job(self, job: ClaimedJob) -> tuple[Handler, Any]:
        """The handler of an attempt, and its payload before validation; raises UnknownTask."""
        payload = codec.parse_payload(job.payload)
        return self.handler_for(job.task, payload), payload

    def handler_for(self, task: str, payload: dict[str, Any]) -> Handler:
        """The handler of the internal tool that the payload names, or else of the task; raises
        UnknownTask."""
        if self._internal and task == _TOOL_TASK:
            tool = payload.get(_TOOL)
            internal = self._internal.get(tool) if isinstance(tool, str) else None
            if internal is not None:
                return internal
        return self.resolve(task)

    def load(self, module_name: str) -> None:
        """Import a module and let it register handlers, tools and workflows; raises
        SettingsError."""
        try:
            module = importlib.import_module(module_name)
            register_tools = getattr(module, "register_tools", None)
            register_workflows = getattr(module, "register_workflows", None)
            if register_tools is not None:
                register_tools(self.toolbox)
            if register_workflows is not None:
                register_workflows(self.workflows)
            if hasattr(module, "register") or not (register_tools or register_workflows):
                module.register(self)
        except Exception as error:
            raise SettingsError(
                f"WORKER_HANDLERS names {module_name!r}: {type(error).__name__}: {error}; it must "
                "be an importable module with a function register(registry) that adds handlers, "
                "register_tools(toolbox) that adds tools, or register_workflows(workflows) that "
                "adds workflows"
            ) from error


def _build_handler(function: HandlerFunction, options: HandlerOptions) -> Handler:
    model = parameter_model(function, second_parameter(function, "(context, payload)"))
    return Handler(function, is_async(function), model, options)


def tool_arguments(payload: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an internal tool."""
    args = payload.get(_ARGS)
    return args if isinstance(args, dict) else {}
