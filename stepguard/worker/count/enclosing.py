"""From a line of source to the function that it stands in: the compiler keeps bare names alone."""

import ast
import linecache
import re
from functools import lru_cache
from typing import NamedTuple

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")  # the rest of a broken function


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


def qualified(file: str, line: int, name: str) -> str:
    """``Block.forward`` for ``forward`` or ``torch_dynamo_resume_in_forward_at_7``.

    The bare name where the source is unreadable; without a name, that of the function around it.
    """
    resumed = _RESUMED.match(name)
    name = resumed[1] if resumed else name
    function = enclosing(file, line)
    if function is None:
        return name
    if not name or function.name.rpartition(".")[2] == name:
        return function.name
    return f"{function.name}.{name}" if name.startswith("<") else name


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
