"""Which function does which task, and what payload it takes."""

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

from common import codec
from common.contracts.jobs import TASKS, JobKeys, Task
from common.contracts.workflow.fields import StepPayloadField
from common.errors import SettingsError
from common.jobs.options import Backoff
from common.redis.partitions import Partitions
from worker.errors import InvalidPayload, UnknownTask
from worker.execution.context import JobContext
from worker.execution.outcome import NO_HANDLER_OPTIONS, HandlerOptions, Outcome

if TYPE_CHECKING:
    from pydantic import BaseModel

    from common.features.images.store import ImageStore
    from common.features.workflows.store import WorkflowStore
    from common.features.workflows.webhooks.store import WebhookStore
    from common.jobs.store import WorkerIdentity
    from common.redis.pipelined import CommandClient
    from worker.features.tools.toolbox import ToolBox
    from worker.features.workflows.registry import Workflows
    from worker.queue.claim import ClaimedJob
    from worker.queue.limits import TaskLimits

Function = Callable[..., Any]


def is_async(function: Function) -> bool:
    """Whether calling it makes a coroutine; also behind a partial or a callable object."""
    return inspect.iscoroutinefunction(_unwrap(function))


def second_parameter(function: Function, named: str) -> str:
    """The name of the second of its two parameters; ValueError where there are not two."""
    try:
        _, second = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ValueError(f"{function!r} must take {named}") from None
    return second


def parameter_model(function: Function, parameter: str) -> type[BaseModel] | None:
    """The pydantic model that annotates a parameter, if any."""
    try:
        annotation = typing.get_type_hints(_unwrap(function)).get(parameter)
    except (NameError, TypeError):  # names only imported for type checking
        return None
    return annotation if _is_model(annotation) else None


def _is_model(annotation: object) -> bool:
    # Whoever has written one has imported pydantic; a worker without any is spared it.
    # (Somebody else may be importing it just now: then this is none of its models.)
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
    """The worker's own things that a service may use."""

    redis: Redis
    limits: TaskLimits
    #: Where steps of workflows write, and images; keys of core jobs; the worker's own names.
    workflows: WorkflowStore
    images: ImageStore
    keys: JobKeys
    worker: WorkerIdentity
    #: What is due to webhooks; None where nobody delivers.
    webhooks: WebhookStore | None = None
    #: Opens a connection that hands on what is published (`common.redis.pipelined`).
    subscribe: Callable[[Callable[[bytes], None]], CommandClient] | None = None
    #: Of which `keys` are the home's.
    partitions: Partitions = field(default_factory=lambda: Partitions.create(JobKeys()))
    #: What services say of themselves in the worker's heartbeat, by member: asked at each beat.
    heartbeat_fields: dict[str, Callable[[], Any]] = field(default_factory=dict)


class Service:
    """A base with nothing to do; `Registry.add_service` takes any of its kind."""

    async def start(self, services: WorkerServices) -> None:
        """Called once, before the first job is taken. Must not take long."""

    async def run(self) -> None:
        """Called once after that; may run until it is canceled, when the last job has ended."""

    async def close(self) -> None:
        """Called once at the end."""


#: `handler(context, payload)`, async or plain; a plain one runs in a thread of its own.
HandlerFunction = Callable[..., Any]
#: `ended(context, args, outcome, error)` of an internal tool: its job has ended in error (JSON) or
#: was canceled, and nothing will change that.
OnEndFunction = Callable[[JobContext, dict[str, Any], Outcome, bytes], Awaitable[None]]

_TOOL_TASK = Task.TOOL.value
_TOOL, _ARGS = StepPayloadField.TOOL, StepPayloadField.ARGS


@dataclass(frozen=True, slots=True)
class Handler:
    """A task's function, whether it is async, and its payload model if it names one."""

    function: HandlerFunction
    is_async: bool
    model: type[BaseModel] | None
    options: HandlerOptions = NO_HANDLER_OPTIONS
    on_end: OnEndFunction | None = None

    def parse(self, payload: dict[str, Any]) -> Any:
        """The payload as the function wants it; InvalidPayload says what is wrong."""
        if self.model is None:
            return payload
        from pydantic import ValidationError  # there is a model, so it is there

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
        #: What handlers share; see `worker.registry`.
        self.services: list[Service] = []

    @cached_property
    def toolbox(self) -> ToolBox:
        """The tools that handlers may use. A worker without any does without what they bring."""
        from worker.features.tools.toolbox import ToolBox

        return ToolBox()

    @cached_property
    def workflows(self) -> Workflows:
        """The workflows whose steps it does; likewise."""
        from worker.features.workflows.registry import Workflows

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
        """Let `function` do `task`; a later registration replaces an earlier one.

        Its terms hold for requests that name none of their own. With `max_attempts`, every
        failure but a `JobError` is worth another attempt; without, only those that often pass.
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
        """Let `function` do the jobs of that name, whatever it is, that come through BullMQ.

        Attempts and backoff are the job's own there.
        """
        if not name or not isinstance(name, str):
            raise ValueError(f"{name!r} is no name of a job")
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
        """Who does jobs of a name that come through BullMQ: its own handler, or a task's."""
        return self._named.get(name) or self._handlers.get(name)

    def add_internal(
        self,
        name: str,
        function: Callable[[JobContext, dict[str, Any]], Awaitable[Any]],
        on_end: OnEndFunction | None = None,
    ) -> None:
        """Let `function(context, args)` do a tool of Sluice's own, whose name is reserved.

        It is no tool of the toolbox, and done by nobody else, whoever does the task `tool`.
        """

        async def call(context: JobContext, payload: dict[str, Any]) -> Any:
            return await function(context, tool_arguments(payload))

        self._internal[name] = Handler(call, True, None, NO_HANDLER_OPTIONS, on_end)

    @property
    def tasks(self) -> list[str]:
        """Every task that has a handler."""
        return sorted(self._handlers)

    @property
    def limit_keys(self) -> frozenset[str]:
        """The same, and our own tools."""
        return frozenset((*self._handlers, *self._internal))

    def max_attempts_of(self, task: str) -> int | None:
        """The handler's own limit of attempts, if it has one."""
        handler = self._handlers.get(task)
        return None if handler is None else handler.options.max_attempts

    @property
    def max_attempts_by_task(self) -> dict[str, int]:
        """The tasks whose handlers have a limit of their own."""
        limits = ((task, self.max_attempts_of(task)) for task in self._handlers)
        return {task: limit for task, limit in limits if limit is not None}

    def resolve(self, task: str) -> Handler:
        """The handler of a task; raises UnknownTask."""
        try:
            return self._handlers[task]
        except KeyError:
            raise UnknownTask(
                f"no handler for task {task!r}; this worker does "
                f"{', '.join(sorted(self._handlers)) or 'nothing'}"
            ) from None

    def resolve_job(self, job: ClaimedJob) -> tuple[Handler, Any]:
        """An attempt's handler and its payload, not looked at yet; raises UnknownTask."""
        payload = codec.parse_payload(job.payload)
        return self.handler_for(job.task, payload), payload

    def handler_for(self, task: str, payload: dict[str, Any]) -> Handler:
        """The handler of a job: an internal tool's, or its task's; raises UnknownTask."""
        if self._internal and task == _TOOL_TASK:
            tool = payload.get(_TOOL)
            internal = self._internal.get(tool) if isinstance(tool, str) else None
            if internal is not None:
                return internal
        return self.resolve(task)

    def load(self, module_name: str) -> None:
        """Import a module and let it add handlers, tools, workflows, or several of them."""
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
