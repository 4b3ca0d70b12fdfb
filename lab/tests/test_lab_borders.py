"""What the lab imports. Read from the sources."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "stepguard_lab"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports(path):
    """Return the modules that a file imports, function bodies included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_torch_stays_in_a_rank():
    """profilers/ alone imports torch, and nothing outside of it imports profilers/."""
    for module, path in MODULES.items():
        packages = {name.partition(".")[0] for name in imports(path)}
        inside = module.startswith("stepguard_lab.profilers")
        assert inside or "torch" not in packages, module
        assert inside or not {m for m in imports(path) if "stepguard_lab.profilers" in m}, module


def test_no_circles_and_no_name_twice():
    """A module is known by its name alone."""
    TopologicalSorter(
        {module: (imports(path) & MODULES.keys()) - {module} for module, path in MODULES.items()}
    ).prepare()
    names = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_the_lab_does_not_know_what_is_measured():
    """Neither the model, nor what tests either of them."""
    for module, path in MODULES.items():
        packages = {name.partition(".")[0] for name in imports(path)}
        assert not packages & {"model", "perf_tests", "tests", "benchmarks", "pytest"}, module
