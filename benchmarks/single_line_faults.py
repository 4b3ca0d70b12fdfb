"""The single-line faults of Python sources, by AST, in an order that a seed decides.

A condition negated; a check dropped; a boundary moved; a wrong operator or the opposite function;
two arguments or two sides swapped. Messages, annotations and signatures are left out.
"""

import ast
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("negated", "dropped", "boundary", "operand", "swapped")
_BOUNDARIES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OPERANDS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.BitOr: ("|", "&"),
}
_LEAVES = ast.Raise | ast.Return | ast.Continue
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Candidate:
    """One fault that could be planted."""

    kind: str
    file: str
    function: str
    number: int
    line: str
    replacement: str


def candidates(tree: Path, file: str) -> Iterator[Candidate]:
    """Yield every fault of a file, in the order of the source."""
    source = (tree / file).read_text()
    lines = source.splitlines()
    for function, node in _nodes(ast.parse(source)):
        for kind, number, edits in _faults(source, node):
            line = lines[number - 1]
            yield Candidate(kind, file, function, number, line, _edited(line, edits))


Edits = list[tuple[int, int, str]]  # columns of one line, and what stands there instead


def _edited(line: str, edits: Edits) -> str:
    """Return the line with every part replaced; the last one first, so that columns stay right."""
    for start, end, text in sorted(edits, reverse=True):
        line = line[:start] + text + line[end:]
    return line


def _nodes(root: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield what runs and decides, with its function: no messages, annotations or signatures."""
    for field, value in ast.iter_fields(root):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            root, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            if isinstance(child, ast.If) and "__main__" in ast.dump(child.test):
                continue
            name = child.name if isinstance(child, ast.FunctionDef) else function
            yield name, child
            yield from _nodes(child, name)


Fault = tuple[str, int, Edits]  # its kind, its line's number


def _faults(source: str, node: ast.AST) -> Iterator[Fault]:
    yield from _of_conditions(source, node)
    if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
        return
    if isinstance(node, ast.BoolOp):
        yield from _of_and_or(source, node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BOUNDARIES:
        sign = _BOUNDARIES[type(node.ops[0])]
        other = f"{_text(source, node.left)} {sign} {_text(source, node.comparators[0])}"
        yield "boundary", node.lineno, _put(node, other)
    for one in _numbers(node):
        yield "boundary", node.lineno, _put(one, str(one.value + 1))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERANDS:
        yield from _of_arithmetic(source, node)
    if isinstance(node, ast.Call):
        yield from _of_calls(source, node)


def _text(source: str, part: ast.AST) -> str:
    found = ast.get_source_segment(source, part) or ""
    return f"({found})" if isinstance(part, ast.BoolOp | ast.IfExp | ast.NamedExpr) else found


def _put(part: ast.expr, text: str) -> Edits:
    return [(part.col_offset, part.end_col_offset or 0, text)]


def _of_conditions(source: str, node: ast.AST) -> Iterator[Fault]:
    """Negate a condition; drop one that leaves a function or a round of a loop, or that filters."""
    tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
    tests += node.ifs if isinstance(node, ast.comprehension) else []
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Compare | ast.BoolOp):
        tests.append(node.value)
    for test in (test for test in tests if test.lineno == test.end_lineno):
        yield "negated", test.lineno, _put(test, f"not ({_text(source, test)})")
        if isinstance(node, ast.comprehension):
            yield "dropped", test.lineno, _put(test, "True")
        elif isinstance(node, ast.If) and isinstance(node.body[-1], _LEAVES):
            yield "dropped", test.lineno, _put(test, "False")


def _of_and_or(source: str, node: ast.BoolOp) -> Iterator[Fault]:
    """Leave one part out; write ``or`` for ``and``."""
    words = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
    parts = [_text(source, part) for part in node.values]
    for index in range(len(parts)):
        kept = words[0].join(parts[:index] + parts[index + 1 :])
        yield "dropped", node.lineno, _put(node, f"({kept})")
    yield "operand", node.lineno, _put(node, f"({words[1].join(parts)})")


def _of_arithmetic(source: str, node: ast.BinOp) -> Iterator[Fault]:
    """Calculate with another operator; exchange the two sides."""
    sign, other = _OPERANDS[type(node.op)]
    line = source.splitlines()[node.lineno - 1]
    column = line.index(sign, node.left.end_col_offset)
    yield "operand", node.lineno, [(column, column + len(sign), other)]
    if sign in "-/":
        left, right = f"({_text(source, node.left)})", f"({_text(source, node.right)})"
        yield "swapped", node.lineno, _put(node.left, right) + _put(node.right, left)


def _of_calls(source: str, node: ast.Call) -> Iterator[Fault]:
    """Call the opposite function; swap two neighbouring arguments."""
    name = _text(source, node.func)
    if name in _NAMES:
        yield "operand", node.lineno, _put(node.func, _NAMES[name])
    for one, two in itertools.pairwise(node.args):
        left, right = _text(source, one), _text(source, two)
        if left != right:
            yield "swapped", node.lineno, _put(one, right) + _put(two, left)


def _numbers(node: ast.AST) -> list[ast.Constant]:
    """Return the whole numbers that a comparison, a subscript or arithmetic has."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Subscript):
        part = node.slice
        parts = [part.lower, part.upper] if isinstance(part, ast.Slice) else [part]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    return [one for one in parts if isinstance(one, ast.Constant) and type(one.value) is int]


def draw(tree: Path, folder: str, seed: int) -> list[Candidate]:
    """Return a folder's candidates in their seeded order: one of each kind in each round, and no
    function twice.
    """
    files = sorted(str(path.relative_to(tree)) for path in (tree / folder).rglob("*.py"))
    found = [one for file in files for one in candidates(tree, file)]
    by_kind = [[one for one in found if one.kind == kind] for kind in KINDS]
    order = random.Random(seed)
    for each in by_kind:
        order.shuffle(each)
    rounds = [one for each in itertools.zip_longest(*by_kind) for one in each if one is not None]
    return list({(one.file, one.function): one for one in reversed(rounds)}.values())[::-1]
