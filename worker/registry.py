"""Which function does which task, and what payload it takes."""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from common.contracts.jobs import TASKS
from common.errors import SettingsError
from common.options import Backoff
from worker.errors import InvalidPayload, UnknownTask
from worker.services import Service
from worker.terms import NO_HANDLER_TERMS, HandlerTerms
from worker.tools.toolbox import ToolBox

#: `handler(context, payload)`, async or plain; a plain one runs in a thread of its own.
HandlerFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """A task's function, whether it is async, and its payload model if it names one."""

    function: HandlerFunction
    is_async: bool
    model: type[BaseModel] | None
    terms: HandlerTerms = NO_HANDLER_TERMS

    def parse(self, payload: dict[str, Any]) -> Any:
        """The payload as the function wants it; InvalidPayload says what is wrong."""
        if self.model is None:
            return payload
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
        #: What handlers share; see `worker.services`.
        self.services: list[Service] = []
        #: The tools that handlers may use.
        self.toolbox = ToolBox()

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
        is_async = inspect.iscoroutinefunction(_definition(function))
        terms = HandlerTerms(timeout_s, max_attempts, backoff)
        if terms == NO_HANDLER_TERMS:
            terms = NO_HANDLER_TERMS
        self._handlers[task] = Handler(function, is_async, _payload_model(function), terms)

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

    @property
    def tasks(self) -> list[str]:
        """Every task that has a handler."""
        return sorted(self._handlers)

    def most_attempts(self, task: str) -> int | None:
        """The handler's own limit of attempts, if it has one."""
        handler = self._handlers.get(task)
        return None if handler is None else handler.terms.max_attempts

    def resolve(self, task: str) -> Handler:
        """The handler of a task; raises UnknownTask."""
        try:
            return self._handlers[task]
        except KeyError:
            raise UnknownTask(
                f"no handler for task {task!r}; this worker does "
                f"{', '.join(sorted(self._handlers)) or 'nothing'}"
            ) from None

    def load(self, module_name: str) -> None:
        """Import a module and let it add handlers, tools, or both."""
        try:
            module = importlib.import_module(module_name)
            register_tools = getattr(module, "register_tools", None)
            if register_tools is not None:
                register_tools(self.toolbox)
            if register_tools is None or hasattr(module, "register"):
                module.register(self)
        except Exception as error:
            raise SettingsError(
                f"WORKER_HANDLERS names {module_name!r}: {type(error).__name__}: {error}; it must "
                "be an importable module with a function register(registry) that adds handlers, "
                "or register_tools(toolbox) that adds tools"
            ) from error


def _payload_model(function: HandlerFunction) -> type[BaseModel] | None:
    """The pydantic model that annotates the second parameter, if any."""
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 2:
        raise ValueError(f"{function!r} must take (context, payload)")
    try:
        annotation = typing.get_type_hints(_definition(function)).get(parameters[1])
    except NameError:  # names only imported for type checking
        return None
    is_model = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _definition(function: HandlerFunction) -> HandlerFunction:
    """The function behind a partial or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isfunction(function) or inspect.ismethod(function):
        return function
    definition: HandlerFunction = type(function).__call__
    return definition
