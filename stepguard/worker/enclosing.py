"""From a line of source to the function that it stands in: the compiler keeps bare names alone."""

import ast
import linecache
from functools import lru_cache
from typing import NamedTuple


class Definition(NamedTuple):
    """A function or a class in a file; ``first`` is the line of its first decorator, if any."""

    name: str  # dotted: "Block.forward"
    first: int
    line: int  # of "def" or "class"
    last: int
    is_function: bool


def enclosing(file: str, line: int) -> Definition | None:
    """The innermost function around the line; None outside of any, or without readable source."""
    around = [d for d in _definitions(file) if d.is_function and d.first <= line <= d.last]
    return max(around, key=lambda d: d.first, default=None)


@lru_cache(maxsize=256)
def _definitions(file: str) -> tuple[Definition, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found: list[Definition] = []
    _walk(tree, "", found)
    return tuple(found)


def _walk(node: ast.AST, prefix: str, found: list[Definition]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
            last = child.end_lineno or child.lineno
            is_function = not isinstance(child, ast.ClassDef)
            found.append(Definition(name, first, child.lineno, last, is_function))
            _walk(child, f"{name}.", found)
        else:
            _walk(child, prefix, found)
