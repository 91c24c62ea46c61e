"""Child process of the checker: checks schemas, values and programs, one line of JSON each.

A pattern or a set of references that does not terminate, or source text that crashes the parser,
can only be stopped from outside: `re` holds the GIL, and a thread cannot be killed.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sluice.common.codec import json_pointer
from sluice.worker.execution.process_pool.confine import limit_resources

#: CPU time of one check; the process ends when it is used up.
CPU_S = 2.0
MEMORY_BYTES = 512 * 1024 * 1024
#: Most problems reported, and characters of each.
MOST_FAULTS = 5
FAULT_CHARS = 300

SCHEMA, VALUE, PYTHON = "schema", "value", "python"
#: Enough for a value of 64 levels under a recursive schema.
_RECURSION = 3000


def main() -> None:
    """Answer every line of standard input with one line on standard output."""
    limit_resources(MEMORY_BYTES)
    sys.setrecursionlimit(_RECURSION)
    warnings.simplefilter("ignore")
    for line in sys.stdin.buffer:
        # The default action of the signal ends the process, even during a pattern match.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        check, *arguments = json.loads(line)
        try:
            faults = [fault[:FAULT_CHARS] for fault in CHECKS[check](*arguments)]
        except MemoryError:
            faults = ["the check needs too much memory"]
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sys.stdout.buffer.write(json.dumps(faults).encode() + b"\n")
        sys.stdout.buffer.flush()


def schema_faults(schema: Any) -> list[str]:
    """Problems that keep `schema` from being used."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
        # A reference cycle shows up as soon as any value is validated.
        return _dangling_refs(schema) or _describe_errors(
            _validator(schema), None, only_trouble=True
        )
    except SchemaError as error:
        return [_describe(error)]
    except RecursionError:
        return ["it has references that form an endless cycle"]


def value_faults(schema: Any, value: Any) -> list[str]:
    """Where `value` does not match `schema`. An endless schema is not reported here."""
    return _describe_errors(_validator(schema), value)


def python_faults(source: str) -> list[str]:
    """Syntax errors of `source`. It is compiled, never run."""
    try:
        compile(source, "program", "exec", dont_inherit=True)
    except SyntaxError as error:
        return [f"line {error.lineno or 1}: {error.msg}"]
    except (ValueError, RecursionError) as error:  # null bytes, deep nesting
        return [str(error) or "nested too deeply"]
    return []


CHECKS: dict[str, Callable[..., list[str]]] = {
    SCHEMA: schema_faults,
    VALUE: value_faults,
    PYTHON: python_faults,
}


def _validator(schema: Any) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry knows no other documents and never fetches any.
    registry: Registry[Any] = Registry()
    return Draft202012Validator(schema, registry=registry)


def _describe_errors(validator: Any, value: Any, *, only_trouble: bool = False) -> list[str]:
    import re

    from referencing.exceptions import Unresolvable

    messages = []
    try:
        for error in validator.iter_errors(value):
            if not only_trouble:
                messages.append(_describe(error))
            if len(messages) == MOST_FAULTS:
                break
    except Unresolvable as error:
        messages.append(f"cannot resolve a $ref: {error}")
    except re.error as error:
        messages.append(f"invalid pattern: {error}")
    return messages


def _describe(error: Any) -> str:
    """Message with the location as a JSON Pointer (RFC 6901)."""
    return f'at "{json_pointer(error.absolute_path)}": {error.message}'


def _dangling_refs(schema: Any) -> list[str]:
    """References that point outside of `schema` or to nothing within it."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root = DRAFT202012.create_resource(schema)
    registry: Registry[Any] = Registry()
    base = root.id() or ""
    resolver = registry.with_resource(base, root).crawl().resolver(base)

    def walk(part: Any, resolver: Any) -> Iterator[str]:
        contents = part.contents
        for name in ("$ref", "$dynamicRef"):
            reference = contents.get(name) if isinstance(contents, dict) else None
            if isinstance(reference, str):
                try:
                    resolver.lookup(reference)
                except Unresolvable:
                    yield f"{name} {reference!r} has no target within the schema; add it there"
        for below in part.subresources():
            yield from walk(below, resolver.in_subresource(below))

    return [fault for fault, _ in zip(walk(root, resolver), range(MOST_FAULTS))]
