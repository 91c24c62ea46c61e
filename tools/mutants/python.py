"""Mutations of Python modules: operators of Cosmic Ray, and dropped calls and assignments.

Not mutated are annotations, logging calls, `TYPE_CHECKING` blocks and other code without effect
on what tests can observe.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache, partial

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tools.mutants.mutant import Change

#: Replacements that seldom give an equivalent program.
_PAIRS = {
    "Comparison": "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt "
    "Is_IsNot IsNot_Is",
    "Binary": "Add_Sub Sub_Add Mul_Add Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul LShift_RShift "
    "RShift_LShift BitAnd_BitOr BitOr_BitAnd",
    "Unary": "Delete_Not USub_UAdd",
}
OPERATORS = (
    *("AddNot", "NumberReplacer", "ReplaceOrWithAnd", "ReplaceAndWithOr", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "RemoveDecorator", "ZeroIterationForLoop", "ExceptionReplacer"),
    *("ReplaceContinueWithBreak", "ReplaceBreakWithContinue"),
    *(f"Replace{kind}Operator_{pair}" for kind, pairs in _PAIRS.items() for pair in pairs.split()),
)
#: Larger numbers are sizes and durations, where one more makes no difference.
SMALL = 100
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
#: Decorators whose change gives an equivalent program, or one that cannot be imported.
_IDLE_DECORATORS = {"overload", "override", "abstractmethod", "dataclass", "runtime_checkable"}
Position = tuple[int, int]
Span = tuple[Position, Position]


def changes(source: str) -> Iterator[Change]:
    """Every mutation, in a fixed order."""
    tree = ast.parse(source)
    excluded = list(_excluded(tree))
    nodes = list(ast_nodes(get_ast(source)))
    binary = [
        (_span(node.left)[1], _span(node.right)[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
    ]
    # `not name := value` is invalid.
    unnegatable = {
        _span(node.test)[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.NamedExpr)
    }
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        positions = [
            (node, start) for node in nodes for start, _ in operator.mutation_positions(node)
        ]
        for occurrence, (node, start) in enumerate(positions):
            if any(first <= start < last for first, last in excluded):
                continue
            # Of the two changes of a number, only the increment, and of small numbers.
            if name == "NumberReplacer" and (occurrence % 2 or not _is_small(node.value)):
                continue
            if name == "AddNot" and start in unnegatable:
                continue
            # Not the asterisks of parameters and arguments.
            if "Binary" in name and not any(first <= start < last for first, last in binary):
                continue
            apply = partial(mutate_code, source, operator, occurrence)
            if name == "ExceptionReplacer":
                try:
                    apply()
                except AttributeError:
                    continue  # it replaces names only
            yield Change(name, start[0], apply)
    yield from _drops(source, tree, excluded)


def _is_small(number: str) -> bool:
    return number.isdigit() and int(number) < SMALL


def _drops(source: str, tree: ast.Module, excluded: list[Span]) -> Iterator[Change]:
    """Replaces a call or an assignment to an attribute or an item by `pass`."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if function.name == "__init__":
            continue
        for node in ast.walk(function):
            call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
            write = isinstance(node, ast.Assign | ast.AugAssign) and isinstance(
                node.targets[0] if isinstance(node, ast.Assign) else node.target,
                ast.Attribute | ast.Subscript,
            )
            if not (call or write):
                continue
            start, end = _span(node)
            if not any(first <= start < last for first, last in excluded):
                name = "DropCall" if call else "DropAssignment"
                yield Change(name, start[0], _pass_instead(source, start, end))


def _pass_instead(source: str, start: Position, end: Position) -> Callable[[], str]:
    def apply() -> str:
        lines = source.splitlines(keepends=True)
        # Columns of the ast module count bytes.
        before = lines[start[0] - 1].encode()[: start[1]].decode()
        after = lines[end[0] - 1].encode()[end[1] :].decode()
        return "".join(lines[: start[0] - 1]) + before + "pass" + after + "".join(lines[end[0] :])

    return apply


def _span(node: ast.AST) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def _excluded(tree: ast.Module) -> Iterator[Span]:
    """Parts without mutants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield _span(node.returns)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if ast.unparse(decorator).split("(")[0].split(".")[-1] in _IDLE_DECORATORS:
                    start, end = _span(decorator)
                    yield (start[0], 0), end
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield _span(node.annotation)
        elif _is_idle(node):
            yield _span(node)


def _is_idle(node: ast.AST) -> bool:
    """True for imports, assertions, type aliases, logging calls and the like."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Assign):
        target = ast.unparse(node.targets[0])
        is_alias = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
        return target in {"__all__", "__slots__"} or (is_alias and target[:1].isupper())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value).split(".")[-1].strip("_")
        return node.func.attr in _LOG_METHODS and owner in {"log", "logger"}
    return False


@cache
def functions(source: str) -> tuple[tuple[int, int, int], ...]:
    """First line (of the first decorator), first and last line of every function."""
    return tuple(
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.lineno, end)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (end := node.end_lineno) is not None
    )


def function_at(source: str, line: int) -> int | None:
    """First line of the innermost function around a line; None outside of functions."""
    around = [found for found in functions(source) if found[1] <= line <= found[2]]
    return max(around)[0] if around else None
