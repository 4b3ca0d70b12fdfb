"""What torch.compile did: breaks, recompiles and counts of programs whose truth is known."""

import importlib
import inspect
import logging
import os
import sys
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import broken_graphs
import pytest
import torch
from builders import PROPERTY
from forks import in_a_fork
from hypothesis import given, settings
from hypothesis import strategies as st

from stepguard.machine.inherited import inherited_now
from stepguard.worker.counters import compiler
from stepguard.worker.counters.compiler import Recompiles, graph_breaks, recompile_limits
from stepguard.worker.counters.locate import qualified
from stepguard.worker.counters.tally import Tally

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "tests/worker/broken_graphs.py"

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")


@pytest.fixture
def clean(monkeypatch):
    """As if nothing had been compiled yet; afterwards too."""
    monkeypatch.chdir(ROOT)
    forget()
    yield
    forget()


def forget():
    import torch._dynamo.utils as utils

    torch._dynamo.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()


def compiled(function):
    return torch.compile(function, backend="eager", dynamic=False)


def scale(x, factor=1):
    return (x * factor).sum()


class Doubler(torch.nn.Module):
    def forward(self, x):
        return x * 2


# Graph breaks


KNOWN = {"whole": (), "printing": ("printing",), "branch_on_item": ("branch_on_item",),
         "branch_on_tensor": ("branch_on_tensor",), "asked_for": ("asked_for",),
         "unsupported_builtin": ("unsupported_builtin",), "three": ("three",) * 3,
         "in_a_loop": ("in_a_loop",), "branch_in_a_loop": ("branch_in_a_loop",),
         "in_a_try": ("in_a_try",), "nested": ("nested.inner",), "deep": ("called",),
         "called_modules": ("Layer.forward",),
         "calls_what_is_kept_out": ("calls_what_is_kept_out",)}  # fmt: skip
GIVEN_UP = ("in_a_loop", "branch_in_a_loop", "in_a_try")


def marked(function):
    """(line, text) of the lines that break a graph in a function."""
    target = broken_graphs
    for name in function.split("."):
        target = getattr(target, name) if hasattr(target, name) else target
    lines, first = inspect.getsourcelines(target)
    return [(first + i, t.strip()) for i, t in enumerate(lines) if t.rstrip().endswith("# BREAK")]


@pytest.mark.parametrize("name", KNOWN)
def test_breaks_of_known_programs(name, clean):
    """Each break is one Site with its file, line, function and text, however often it is run."""
    run = compiled(getattr(broken_graphs, name))
    for size in (4, 5, 5):
        run(torch.ones(size))
    functions = dict.fromkeys(KNOWN[name])
    truth = [(PROGRAMS, line, f, text) for f in functions for line, text in marked(f)]
    found = graph_breaks()
    if name in GIVEN_UP and found[0].text.startswith("def "):  # older torch tells no line
        assert [(s.file, s.function) for s in found] == [(PROGRAMS, name)]
        return
    assert [(s.file, s.line, s.function, s.text) for s in found] == truth
    assert len(found) == len(KNOWN[name])
    assert all(s.what.startswith("graph break: ") and "\n" not in s.what for s in found)
    assert recompile_limits() == []


def test_why_a_graph_broke(clean):
    """The reason is what torch says in one line, in plain words where torch names its internals."""
    for name in ("asked_for", "branch_on_tensor"):
        compiled(getattr(broken_graphs, name))(torch.ones(4))
    asked, branch = (site.what for site in graph_breaks())
    assert asked == "graph break: Call to `torch._dynamo.graph_break()`"
    assert branch == "graph break: branch on a tensor's value"


def test_the_outermost_stack_of_a_break_is_taken(monkeypatch):
    """A break in a library is told by the line that called it, once for each such line."""
    library, mine = "/x/site-packages/lib.py", str(ROOT / PROGRAMS)

    def reason(*stack):
        frames = [SimpleNamespace(filename=f, lineno=n, name="f") for f, n in stack]
        return SimpleNamespace(reason="why\nmore", user_stack=frames)

    reasons = [
        reason((mine, 14), (library, 3)),
        reason((library, 3)),
        reason((mine, 19), (library, 3)),
        reason((library, 9)),
        SimpleNamespace(reason="DDPOptimizer splits", user_stack=[]),
    ]
    utils = SimpleNamespace(graph_break_reasons=reasons, counters={})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    monkeypatch.chdir(ROOT)
    assert [(s.what, s.file, s.line) for s in graph_breaks()] == [
        ("graph break: why", PROGRAMS, 14),
        ("graph break: why", PROGRAMS, 19),
        ("graph break: why", library, 9),
    ]


def test_a_break_in_torchs_own_code_has_a_place(monkeypatch):
    """Where the whole stack is torch's, the file is told from torch's folder."""
    file = f"{Path(torch.__file__).parent}/optim/optimizer.py"
    frame = SimpleNamespace(filename=file, lineno=7, name="step")
    reason = SimpleNamespace(reason="why", user_stack=[frame])
    utils = SimpleNamespace(graph_break_reasons=[reason], counters={})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    (site,) = graph_breaks()
    assert (site.file, site.line) == ("torch/optim/optimizer.py", 7)


def test_a_function_given_up_without_an_error_is_a_break(monkeypatch):
    """Older torch records a break in a loop as a frame without guards. Empty frames are none, nor
    are backward ones, which have no guards either.
    """
    line = inspect.getsourcelines(broken_graphs.in_a_loop)[1]
    given_up = {"compile_id": "0/0", "co_name": "in_a_loop", "co_filename": str(ROOT / PROGRAMS),
                "co_firstlineno": line, "is_forward": True, "fail_type": None, "guard_count": None,
                "ir_count": None, "recompile_reason": None}  # fmt: skip
    others = ({"ir_count": 3}, {"is_forward": False, "co_name": "backward"})
    records = [SimpleNamespace(**given_up | other) for other in ({}, *others)]
    utils = SimpleNamespace(
        graph_break_reasons=[], counters={}, get_compilation_metrics=lambda: records
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    monkeypatch.chdir(ROOT)
    (site,) = graph_breaks()
    assert (site.file, site.line, site.function) == (PROGRAMS, line, "in_a_loop")
    assert site.text == "def in_a_loop(x):" and "cannot be resumed" in site.what


def test_a_limit_without_a_place_has_that_of_its_own_frame(monkeypatch):
    """torch does not always say whose recompile limit was reached. Another compilation of the same
    frame says it, and one of another frame does not.
    """

    def record(compile_id, name, **changes):
        known = {"compile_id": compile_id, "co_name": name, "co_filename": str(ROOT / PROGRAMS),
                 "co_firstlineno": inspect.getsourcelines(getattr(broken_graphs, name))[1],
                 "is_forward": True, "fail_type": None, "fail_reason": None,
                 "recompile_reason": None}  # fmt: skip
        return SimpleNamespace(**known | changes)

    limit = {"fail_type": "FailOnRecompileLimitHit", "fail_reason": "recompile_limit reached"}
    records = [
        record("0/0", "whole"),
        record("1/0", "printing"),
        record("0/8", "whole", co_filename=None, **limit),
    ]
    utils = SimpleNamespace(get_compilation_metrics=lambda: records)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    monkeypatch.chdir(ROOT)
    (site,) = recompile_limits()
    assert (site.file, site.function) == (PROGRAMS, "whole")


def test_without_records_there_is_still_a_count(monkeypatch):
    """A torch that keeps none of the records leaves texts and counts without a place."""
    counters = {
        "graph_break": {"why <f at 0x7f5e71bbaa20>\n  more": 3, "other": 1},
        "frames": {"total": 5},
        "stats": {"unique_graphs": 4},
    }
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", SimpleNamespace())
    assert [s.what for s in graph_breaks()] == [
        "graph break: why <f at ...>",
        "graph break: other",
    ]
    assert {s.file for s in graph_breaks()} == {""}
    assert (compiler.compilations(), compiler.unique_graphs()) == (5, 4)
    compiler.install()
    with Recompiles() as seen:
        counters["frames"]["total"] = 8
    (site,) = seen.sites
    assert (site.what, site.count) == ("recompile: of unknown reason", 3)


SOURCE = """
def plain():
    return [
        lambda x: x
    ]
class Block:
    @property
    @staticmethod
    def forward():
        def inner():
            pass
top = lambda x: x
"""


@pytest.mark.parametrize(("line", "name", "expected"), [
    (3, "plain", "plain"),
    (3, "torch_dynamo_resume_in_plain_at_3", "plain"),
    (4, "<lambda>", "plain.<lambda>"),
    (7, "forward", "Block.forward"),
    (11, "inner", "Block.forward.inner"),
    (11, "", "Block.forward.inner"),
    (11, "generated", "generated"),
    (12, "<lambda>", "<lambda>"),
    (6, "", ""),
])  # fmt: skip
def test_names_are_qualified_as_python_does(tmp_path, line, name, expected):
    """The bare name that the compiler keeps becomes the one with its class and outer function."""
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    assert qualified(str(path), line, name) == expected
    assert qualified(str(tmp_path / "none.py"), line, "bare") == "bare"


# Recompiles


@settings(PROPERTY, max_examples=10)
@given(st.lists(st.integers(2, 6), min_size=3, max_size=8))
def test_recompiles_of_shapes(sizes):
    """With static shapes each new size is one recompile, told with the sizes; the others none."""
    forget()
    run = compiled(scale)
    run(torch.ones(7))
    newest, truth, known = 7, [], {7}
    with Recompiles() as seen:
        for size in sizes:
            run(torch.ones(size))
            if size not in known:
                truth.append(f"expected {newest}, actual {size}")
                known.add(size)
            newest = size  # torch tries the graph first that was used last
    assert [s.what for s in seen.sites] == [
        f"recompile: tensor 'x' size mismatch at index 0. {text}" for text in truth
    ]
    assert seen.compilations == len(truth)
    assert compiler.compilations() == compiler.unique_graphs() == len(truth) + 1
    forget()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_recompile_names_guard_and_function(clean, fullgraph):
    """A Python int that changes: the guard in the program's names, the place of the function."""
    run = torch.compile(scale, backend="eager", dynamic=False, fullgraph=fullgraph)
    run(torch.ones(4), 2)
    with Recompiles() as seen:
        run(torch.ones(4), 3)
        run(torch.ones(4), 2)
    (site,) = seen.sites
    line = inspect.getsourcelines(scale)[1]
    assert site.what == "recompile: factor == 2"
    assert (site.file, site.line) == ("tests/worker/test_compiler.py", line)
    assert (site.function, site.text) == ("scale", "def scale(x, factor=1):")
    assert seen.compilations == 1


def test_every_half_of_a_broken_function_is_recompiled(clean):
    """Both parts around a break are recompiled, the second at the line of the break."""
    run = compiled(broken_graphs.printing)
    run(torch.ones(4))
    with Recompiles() as seen:
        run(torch.ones(5))
    first, second = seen.sites
    assert (first.function, second.function) == ("printing", "printing")
    assert first.text == "def printing(x):" and second.text == 'print("seen")  # BREAK'
    assert (
        first.what
        == second.what
        == ("recompile: tensor 'x' size mismatch at index 0. expected 4, actual 5")
    )


def test_what_was_not_compiled_before_is_reported(clean):
    """A function compiled for the first time in a steady step: no recompile, a compilation."""
    with Recompiles() as seen:
        compiled(Doubler())(torch.ones(4))
    (site,) = seen.sites
    assert (site.what, site.function) == ("compilation: not seen before", "Doubler.forward")
    assert seen.compilations == 1


def test_a_reset_inside_is_counted_from_zero(clean):
    """torch._dynamo.reset() throws graphs away: what is compiled again is counted."""
    run = compiled(scale)
    for size in (2, 3, 4):
        run(torch.ones(size))
    with Recompiles() as seen:
        torch._dynamo.reset()
        run(torch.ones(2))
    assert seen.compilations == 1
    assert [s.what for s in seen.sites] == ["compilation: not seen before"]


@pytest.mark.parametrize("program", [scale, Doubler()], ids=["function", "module"])
def test_the_recompile_limit_is_reported(clean, program):
    """When torch gives a function up, a Site of its own says so; it is no graph break."""
    run = compiled(program)
    log = logging.getLogger("torch._dynamo.convert_frame")
    log.addFilter(drop := lambda record: False)  # torch warns, as it should
    try:
        with torch._dynamo.config.patch(recompile_limit=3), Recompiles() as seen:
            for size in range(2, 8):
                run(torch.ones(size))
    finally:
        log.removeFilter(drop)
    (limit,) = recompile_limits()
    guard = "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    assert limit.what == f"recompile limit reached: {guard}"
    assert limit.function == ("scale" if program is scale else "Doubler.forward")
    assert limit.file == "tests/worker/test_compiler.py" and limit.text.startswith("def ")
    kinds = [s.what.partition(":")[0] for s in seen.sites]
    assert kinds == ["compilation", "recompile", "recompile", "recompile limit reached"]
    assert seen.sites[-1] == limit
    assert seen.compilations == 4
    assert graph_breaks() == []


def test_more_compilations_than_torch_remembers(clean, monkeypatch):
    """After install() none is forgotten, not even a limit reached so many compilations ago as torch
    remembers: 64, and here 4.
    """
    import torch._dynamo.utils as utils

    monkeypatch.setattr(utils, "_compilation_metrics", deque(maxlen=4))
    compiler.install()
    compiler.install()
    with Recompiles() as seen, torch._dynamo.config.patch(recompile_limit=200):
        run = compiled(scale)
        for size in range(2, 12):
            run(torch.ones(size))
    assert seen.compilations == len(seen.sites) == 10
    assert seen.sites[-1].what.endswith("expected 10, actual 11")


# Processes and caches


def nothing_compiled():
    """The parts of the compiler that are imported where there is nothing to count."""
    parts = ("torch._dynamo", "torch._inductor")
    for name in [*sys.modules]:  # as in a process that has imported torch alone
        if name.startswith(parts):
            del sys.modules[name]
    compiler.install()
    tally = Tally()
    with Recompiles() as seen:
        compiler.COUNTER.count(tally, None)
    names = ("graph_breaks", "unique_graphs", "generated_kernels", "uncached_graphs")
    zeros = dict.fromkeys(names, 0)
    assert tally.values == zeros and not tally.sites and not seen.sites, tally.values
    assert seen.compilations == compiler.compilations() == compiler.unique_graphs() == 0
    return [name for name in sys.modules if name.startswith(parts)]


def test_who_compiles_nothing_pays_nothing():
    """Zeros all over, of graphs too, and the compiler is not imported to find them."""
    assert in_a_fork(nothing_compiled) == {"is": []}


def compile_quickly():
    """Compile no header ahead, which is not worth it for a kernel or two; none for vectors, which
    take the compiler two seconds; and no programs only to see whether it can build for this CPU.
    """
    torch._inductor.config.cpp_cache_precompile_headers = False
    torch._inductor.config.cpp.simdlen = 0
    torch._inductor.cpu_vec_isa.VecISA.check_build = lambda isa, code: True


def counts_of_a_cache(folder):
    """What a process counts whose compiler's cache is in this folder: whether graphs were compiled
    afresh, what there was to count, and how many graphs no cache has.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    compile_quickly()
    torch.compile(broken_graphs.whole, dynamic=False)(torch.ones(4))
    for name in ("in_a_loop", "deep", "calls_what_is_kept_out"):
        compiled(getattr(broken_graphs, name))(torch.ones(4))
    counts = compiler.compilations(), compiler.unique_graphs(), compiler.generated_kernels()
    found = str((counts, graph_breaks(), recompile_limits()))
    afresh, uncached = [compiler.compiled_afresh()], [compiler.uncached_graphs()]
    for setting in UNCACHED:
        forget()
        with torch._inductor.config.patch(setting):
            torch.compile(broken_graphs.whole, dynamic=False)(torch.ones(4))
        afresh.append(compiler.compiled_afresh())
        uncached.append(compiler.uncached_graphs())
    return [afresh, counts, found, uncached]


# As it is; with a pass without an id; with the cache switched off.
UNCACHED = ({}, {"post_grad_custom_post_pass": lambda graph: None}, {"fx_graph_cache": False})


def test_a_warm_cache_changes_no_count(clean, tmp_path):
    """Breaks with their text, compilations and kernels are those of the process before it; only
    that one compiled what no cache had. What no cache keeps is compiled afresh by both: its kernels
    are on disk the second time, and were made and tried the first.
    """
    importlib.import_module("torch._inductor.compile_fx")  # once for both
    cold, warm = (in_a_fork(partial(counts_of_a_cache, str(tmp_path)))["is"] for _ in range(2))
    assert cold[0] == [True, False, True, True]
    assert warm[0] == [False, False, True, True]
    assert cold[1:] == warm[1:]
    *_, kernels = cold[1]
    assert kernels > 0
    assert cold[3] == [0, 0, 1, 1]


def changes_of_compiling(names):
    """What a launch would not inherit once torch has compiled, and which of these names are set."""
    for name in names:
        os.environ.pop(name, None)
    compile_quickly()
    before = inherited_now()
    torch.compile(lambda x: x.sin() + 1)(torch.ones(4))
    return [before.changes(inherited_now()), [name for name in names if name in os.environ]]


def test_torch_in_pytests_own_process_is_no_change():
    """Tests beside the cases may compile: torch then sets variables by itself."""
    importlib.import_module("torch._inductor.compile_fx")
    names = ["TORCHINDUCTOR_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"]
    assert in_a_fork(partial(changes_of_compiling, names)) == {"is": [[], names]}


@pytest.mark.parametrize("counted", ["fxgraph_cache_miss", "fxgraph_cache_bypass", ""])
def test_one_graph_that_no_cache_had_is_compiled_afresh(clean, counted):
    """Also beside graphs that the cache had, as torch counts them."""
    found = torch._dynamo.utils.counters["inductor"]
    found["fxgraph_cache_hit"] = 2
    found[counted] = 1
    assert compiler.compiled_afresh() is bool(counted)


def test_the_counters_take_it_over(clean):
    """Unique breaks are counted, their reasons told, and the Sites handed on."""
    compiled(broken_graphs.three)(torch.ones(4))
    tally = Tally()
    compiler.COUNTER.count(tally, None)
    assert tally.values["graph_breaks"] == 3 == len(tally.sites["graph_breaks"])
    assert sum(tally.detail["graph_breaks"].values()) == 3
    assert tally.values["unique_graphs"] == compiler.unique_graphs() > 0
    assert list(tally.sites["graph_breaks"]) == graph_breaks()
