"""Read what torch.compile did in this process: graph breaks, compilations, recompiles, reasons.

Everything comes from the compiler's own records, never from its log. So nothing is printed, no log
level is changed, and nothing must be switched on before the compilation. The records are private to
torch; all their names are in this module. Tried with torch 2.8, 2.13 and 2.15:

* ``torch._dynamo.utils.graph_break_reasons``: every break after which a compiled frame resumed,
  with its user stack. ``counters["graph_break"]`` knows fewer: it lacks branches on a tensor's
  value.
* ``torch._dynamo.utils.get_compilation_metrics()``: one record for each compiled frame, with the
  guard that failed, or with the error of a frame that was given up (a break in a loop, the
  recompile limit). Such a frame runs eagerly, and ``counters["graph_break"]`` does not show it.
  torch 2.8 to 2.10 keep no error of a break in a loop: then the function is known, not the line.
* ``torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER``: compilations of each frame.
  ``counters["frames"]`` misses fullgraph=True, and counts frames that were only looked at.
* ``counters["inductor"]["fxgraph_cache_miss"]``: graphs that the cache on disk did not have.
  ``..._bypass``: graphs that are never kept there, such as those of a user's own pass.

Every process traces anew, so all of this is the same whatever the caches on disk contain. If a
record is missing, there is still a count, or a text without a place: never a zero.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch

from stepguard.core.site import Site, merge
from stepguard.worker.counters.locate import Place, enclosing, locate, qualified, site_at
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally

Stack = list[tuple[str, int, str]]  # (file, line, function), from the innermost frame outwards
RECORDS = 100_000  # torch keeps only the newest 64 compilations by default
_TORCH = f"{Path(torch.__file__).parent}/"
_LIMIT = re.compile(r"(recompile|cache)[ _]?(size[ _]?)?limit", re.IGNORECASE)
_COMPILE_ID = re.compile(r"^\S*\d+/\d+(_\d+)?: ")
_PER_PROCESS = re.compile(r"0x[0-9a-fA-F]{6,}|\b\d{12,}\b")  # addresses and id() of objects
_REWORDED = {  # torch's own words name its internals
    "generic_jump": "branch on a tensor's value",
    "step_unsupported": "instruction that cannot be traced",
}
_GIVEN_UP = "where the function cannot be resumed (in a loop, try or with)"
# Such a reason is not counted: DDP splits the graph by gradient bucket on purpose, at no line of
# the user's.
_DDP_BUCKETS = "DDPOptimizer"


def install() -> None:
    """Make the compiler keep the records of all compilations. It is cheap, and may be called
    repeatedly.

    Does nothing while torch._dynamo is not imported. Nothing here imports it, so a workload that
    does not compile pays nothing. Call it when the workload is built, since ``torch.compile``
    imports it, and once more after the first step.
    """
    widen, records = _utils("set_compilation_metrics_limit"), _utils("_compilation_metrics")
    if widen is not None and getattr(records, "maxlen", 0) != RECORDS:
        widen(RECORDS)


def compilations() -> int:
    """Return how many frames this process has compiled so far; each recompile counts."""
    frames = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", None)
    if frames is not None:
        return int(sum(frames.values()))
    return int(_counters("frames").get("total", 0))


def unique_graphs() -> int:
    """Return how many graphs the backend got so far, with recompiled ones."""
    return int(_counters("stats").get("unique_graphs", 0))


def generated_kernels() -> int:
    """Return how many kernels were generated for this process's graphs, stored ones too."""
    metrics = sys.modules.get("torch._inductor.metrics")
    return int(getattr(metrics, "generated_kernel_count", 0))


def uncached_graphs() -> int:
    """Return how many graphs no cache on disk can keep, so that every process compiles them."""
    bypassed = _counters("inductor").get("fxgraph_cache_bypass", 0)
    if bypassed or missed_graphs() or _found_graphs():
        return bypassed
    # If the cache is switched off, its counters are all zero.
    return unique_graphs() if generated_kernels() else 0


def _found_graphs() -> int:
    found = _counters("inductor").get("fxgraph_cache_hit", 0)
    return found + _counters("aot_autograd").get("autograd_cache_hit", 0)


def missed_graphs() -> int:
    """Return how many graphs were compiled since the cache on disk did not have them."""
    return _counters("inductor").get("fxgraph_cache_miss", 0)


def compiled_afresh() -> bool:
    """Tell whether a graph was compiled that the cache did not have, or cannot have."""
    if missed_graphs() or _counters("inductor").get("fxgraph_cache_bypass", 0):
        return True
    # If the cache is switched off, its counters are all zero.
    return generated_kernels() > 0 and not _found_graphs()


def graph_breaks() -> list[Site]:
    """Return the graph breaks of this process so far: one Site for each line and reason.

    A break deep in a call occurs once more when the compiler goes on with the callee alone; it
    counts once. Frames that were given up because of a break count. The recompile limit does not.
    """
    reasons = _utils("graph_break_reasons")
    if reasons is None:
        breaks = [_break(text, []) for text in _counters("graph_break")]
    else:
        breaks = [_break(text, stack) for text, stack in _longest(reasons)]
    for record in _records():
        if record.fail_type is not None and not _is_limit(record):
            breaks.append(_break(str(record.fail_reason or record.fail_type), _failed(record)))
        elif _is_given_up(record):
            breaks.append(_break(_GIVEN_UP, _compiled(record)))
    return list(dict.fromkeys(breaks))


def recompile_limits() -> list[Site]:
    """Return the functions that torch now runs eagerly because it compiled them too often."""
    records = _records()
    return [_compilation(r, records) for r in records if _is_limit(r)]


class Recompiles:
    """Collects every compilation inside a block. In steady steps there should be none.

    When the block is left, ``compilations`` is their number and ``sites`` has one Site for each:
    ``recompile: <guard that failed>``, ``recompile limit reached: <guard>`` when torch gives the
    function up, ``compilation: ...`` for what had not been compiled before.

        with Recompiles() as seen:
            workload.step()
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.compilations = 0

    def __enter__(self) -> Self:
        install()
        self._records, self._before = _records(), compilations()
        return self

    def __exit__(self, *error: object) -> None:
        now = compilations()
        # torch._dynamo.reset() sets the count to zero: all that is counted then came after it.
        self.compilations = now - self._before if now >= self._before else now
        # self._records keeps the old records alive, so that no id is reused.
        records, old = _records(), {id(record) for record in self._records}
        new = [record for record in records if id(record) not in old]
        forward = [record for record in new if record.is_forward is not False]
        ids = {str(record.compile_id) for record in forward}
        # A backward that is compiled with its forward is part of that compilation.
        deferred = [r for r in new if r.is_forward is False and str(r.compile_id) not in ids]
        self.sites = [_compilation(record, records) for record in forward + deferred]
        # A compilation without a record counts, too.
        if (unexplained := self.compilations - len(forward)) > 0:
            self.sites.append(Site("recompile: of unknown reason", count=unexplained))


def _utils(name: str) -> Any:
    """Return one of the compiler's records; None if it is missing, or nothing is compiled."""
    return getattr(sys.modules.get("torch._dynamo.utils"), name, None)


def _counters(category: str) -> dict[str, int]:
    return dict((_utils("counters") or {}).get(category, {}))


def _records() -> list[Any]:
    """Return a record for each compilation, oldest first, without those that only ran."""
    read = _utils("get_compilation_metrics") or list
    return [record for record in read() if not getattr(record, "is_runtime", False)]


def _longest(reasons: Iterable[Any]) -> list[tuple[str, Stack]]:
    """Return (reason, stack) of each break, without stacks that a longer one begins with."""
    stacks: dict[tuple[str, tuple[tuple[str, int], ...]], Stack] = {}
    for reason in reasons:
        text = str(reason.reason)
        if not text.startswith(_DDP_BUCKETS):
            stack = [(f.filename, f.lineno or 0, f.name) for f in reversed(reason.user_stack)]
            stacks.setdefault((text, tuple((f, n) for f, n, _ in stack)), stack)
    inner = {(text, lines[:n]) for text, lines in stacks for n in range(1, len(lines))}
    return [(key[0], stack) for key, stack in stacks.items() if key not in inner]


def _is_limit(record: Any) -> bool:
    first = _first_line(str(record.fail_reason or ""))
    return record.fail_type is not None and bool(_LIMIT.search(f"{record.fail_type} {first}"))


def _is_given_up(record: Any) -> bool:
    """Return whether an older torch gave the frame up, without an error or guards. One with nothing
    to compile has an ir_count.
    """
    seen = (getattr(record, name, 0) for name in ("fail_type", "guard_count", "ir_count"))
    return record.is_forward is True and all(value is None for value in seen)


def _compilation(record: Any, records: list[Any]) -> Site:
    """Return the Site of a record. Other ``records`` may say whose frame it is."""
    guard = _guard(record.recompile_reason)
    if _is_limit(record):
        what = f"recompile limit reached: {guard}"
    elif record.is_forward is False:
        what = "compilation: deferred backward"
    else:
        what = f"recompile: {guard}" if record.recompile_reason else "compilation: not seen before"
    if not record.co_filename:  # another compilation of the same frame may say it
        named = [r for r in reversed(records) if r.co_filename and _frame(r) == _frame(record)]
        record = named[0] if named else record
    return _site(what, _compiled(record))


def _frame(record: Any) -> str:
    return str(record.compile_id).rpartition("/")[0]


def _compiled(record: Any) -> Stack:
    """Return the function of a record, then its callers if torch keeps them."""
    file, line = str(record.co_filename or ""), int(record.co_firstlineno or 0)
    function = enclosing(file, line)
    if function is not None and function.first == line:
        line = function.line  # a decorator's line says less than "def ..."
    stack = [(file, line, str(record.co_name or ""))]
    for text in reversed(getattr(record, "stack_trace", None) or ()):
        if match := re.match(r"Line: (\d+), Name: (.*), Filename: (.*)$", str(text)):
            stack.append((match[3], int(match[1]), match[2]))
    return stack


def _failed(record: Any) -> Stack:
    file, line = record.fail_user_frame_filename, record.fail_user_frame_lineno
    return ([(str(file), int(line or 0), "")] if file else []) + _compiled(record)


def _site(what: str, stack: Stack) -> Site:
    """Return the Site of a stack; torch's innermost line if the whole stack is torch's."""
    stack = [(file, line, qualified(file, line, name)) for file, line, name in stack if file]
    place = locate(stack)
    if not place.file and stack and stack[0][0].startswith(_TORCH):
        file, line, function = stack[0]
        place = Place(f"torch/{file.removeprefix(_TORCH)}", line, function)
    return site_at(what, place)


def _break(reason: str, stack: Stack) -> Site:
    text = _first_line(reason)
    return _site(f"graph break: {_REWORDED.get(text.split(' ')[0], text)}", stack)


def _guard(reason: str | None) -> str:
    """Return ``n == 4`` of ``0/0: L['n'] == 4      # return x * n  # file:3 in f``."""
    text = _COMPILE_ID.sub("", _first_line(reason or "unknown reason"))
    return re.sub(r"\bL\['(\w+)'\]", r"\1", re.split(r"\s+# ", text)[0].strip())


def _first_line(text: str) -> str:
    """Return the first line that is not empty, without what differs between processes."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "unknown reason")
    return _PER_PROCESS.sub("...", line)


def count_graphs(tally: Tally, counted: RankStep) -> None:
    """Count this process's graphs, those not cached, graph breaks and generated kernels."""
    breaks = graph_breaks()
    reasons = Counter(site.what.removeprefix("graph break: ") for site in breaks)
    tally.add("graph_breaks", [len(breaks)], reasons, [breaks])
    tally.add("unique_graphs", [unique_graphs()])
    tally.add("generated_kernels", [generated_kernels()])
    tally.add("uncached_graphs", [uncached_graphs()])


def count_recompiles(tally: Tally, seen: Recompiles) -> None:
    """Count compilations while ``seen`` was active, and functions that torch gave up."""
    given_up = [site for site in recompile_limits() if site not in seen.sites]
    sites = merge([*seen.sites, *given_up])
    tally.add("recompiles", [seen.compilations + len(given_up)], sites=[sites])


COUNTER = StepCounter(
    "compiler",
    ("graph_breaks", "unique_graphs", "generated_kernels", "uncached_graphs"),
    count_graphs,
)
