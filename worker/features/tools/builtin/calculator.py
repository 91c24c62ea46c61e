"""The `calculator` tool: evaluates arithmetic expressions with bounded effort."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from sluice.worker.features.tools.builtin.arguments import Arguments, ToolInputError
from sluice.worker.features.tools.tool import Call

Number = int | float

MOST_CHARS = 1000
#: Nesting depth of an expression.
MOST_DEPTH = 50
#: Bits of an integer: about 1200 digits.
MOST_BITS = 4096
#: Largest argument of factorial, comb and perm.
MOST_COUNTED = 500
#: Largest number of decimal places to round to, in either direction.
MOST_PLACES = 100
#: Integers from here on are returned as text, because JSON parsers with doubles would round them.
EXACT_BELOW = 2**53

#: Characters of an expression; excludes strings, about which Python's parser would warn.
_ALPHABET = re.compile(r"[0-9A-Za-z_+\-*/%().,\s]*")
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if abs(base) > 1 and (abs(base).bit_length() - 1) * exponent > MOST_BITS:
            raise ToolInputError("the result would be too large")
        whole: int = base**exponent
        return whole
    if base < 0 and isinstance(exponent, float) and not exponent.is_integer():
        raise ToolInputError("a negative number has no such root")
    return float(base) ** exponent


def _counted(function: Callable[..., int]) -> Callable[..., int]:
    def bounded(*numbers: Number) -> int:
        if any(not isinstance(number, int) or abs(number) > MOST_COUNTED for number in numbers):
            raise ToolInputError(f"arguments must be integers up to {MOST_COUNTED}")
        return function(*numbers)

    return bounded


def _round(number: Number, places: Number = 0) -> Number:
    if not isinstance(places, int) or abs(places) > MOST_PLACES:
        raise ToolInputError(f"round needs an integer number of places up to {MOST_PLACES}")
    return round(number, places) if places else round(number)


def _over(function: Callable[[Sequence[Number]], Number]) -> Callable[..., Number]:
    return lambda *numbers: function(numbers)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs, "min": _over(min), "max": _over(max), "sum": _over(sum), "round": _round,
    "pow": _power, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10,
    "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "asin": math.asin, "acos": math.acos, "atan": math.atan, "atan2": math.atan2,
    "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh,
    "degrees": math.degrees, "radians": math.radians, "hypot": math.hypot,
    "gcd": math.gcd, "lcm": math.lcm,
    "factorial": _counted(math.factorial), "comb": _counted(math.comb),
    "perm": _counted(math.perm),
}  # fmt: skip


class CalculatorArguments(Arguments):
    """Arguments of `calculator`."""

    expression: str = Field(
        min_length=1,
        max_length=MOST_CHARS,
        description="Numbers, + - * / // % **, parentheses, pi, e, tau, and "
        + ", ".join(sorted(_FUNCTIONS))
        + ". Angles are in radians.",
        examples=["(2 + 3) * 4 ** 2", "sqrt(2) / 2"],
    )


async def calculator(call: Call, arguments: CalculatorArguments) -> dict[str, Number | str]:
    """Evaluates an arithmetic expression exactly as written, such as (2 + 3) * 4 ** 2."""
    value = evaluate(arguments.expression)
    if isinstance(value, int) and abs(value) >= EXACT_BELOW:
        return {"value": str(value)}
    return {"value": value}


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises ToolInputError if it is invalid."""
    if "^" in expression:
        raise ToolInputError("write ** for powers, not ^")
    if not _ALPHABET.fullmatch(expression):
        raise ToolInputError("not an arithmetic expression")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolInputError("not an arithmetic expression") from None
    try:
        return _value(tree.body, 0)
    except ZeroDivisionError:
        raise ToolInputError("division by zero") from None
    except OverflowError:
        raise ToolInputError("the result would be too large") from None
    except (TypeError, ValueError) as error:
        raise ToolInputError(str(error)) from None


def _value(node: ast.expr, depth: int) -> Number:
    if depth > MOST_DEPTH:
        raise ToolInputError(f"nested more than {MOST_DEPTH} deep")
    if isinstance(node, ast.Constant):
        value: Any = node.value
    elif isinstance(node, ast.Name) and node.id in _CONSTANTS:
        value = _CONSTANTS[node.id]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        value = _SIGNS[type(node.op)](_value(node.operand, depth + 1))
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _chain(node, depth)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is None:
            raise ToolInputError(f"there is no function {node.func.id!r}")
        value = function(*[_value(argument, depth + 1) for argument in node.args])
    else:
        raise ToolInputError("only numbers, + - * / // % **, parentheses and functions are allowed")
    return _checked(value)


def _chain(node: ast.expr, depth: int) -> Number:
    """Evaluate a chain of operators without recursion: 1 + 2 + 3 is nested on the left."""
    links: list[ast.BinOp] = []
    while isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        links.append(node)
        node = node.left
    value = _value(node, depth + 1)
    for link in reversed(links):
        value = _checked(_OPERATORS[type(link.op)](value, _value(link.right, depth + 1)))
    return value


def _checked(value: Any) -> Number:
    """Check that an intermediate value is a number of bounded size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ToolInputError("only numbers are allowed")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ToolInputError("the result would be too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolInputError("the result is not a number")
    return value
