"""The page of a trace of a CPU: phases and operators of the host."""

from collections.abc import Iterator, Sequence

from stepguard.core.profile import mean
from stepguard.core.text import cut, end_of
from stepguard.lab.host_breakdown import HostSummary
from stepguard.lab.trace_page import WIDTH
from stepguard.report.table import aligned, fitted


def host_page(ranks: Sequence[HostSummary], top: int, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines: the steps of all ranks, then phases and operators of the first one."""
    yield "No kernel of a GPU: these times are the host's. A profiled step is slower."
    yield ""
    header = ("rank", "step [ms]", "each step [ms]", "file")
    body = [
        (
            f"{rank.rank} of {rank.ranks}",
            _ms(mean(rank.step_us)),
            " ".join(map(_ms, rank.step_us[:4])) + (" ..." if len(rank.step_us) > 4 else ""),
            rank.source,
        )
        for rank in ranks
    ]
    yield from aligned([header, *body], left=(0, 2, 3))
    first, step = ranks[0], mean(ranks[0].step_us)
    if first.phases:
        yield ""
        phases = [(row.path, _ms(row.us), _pct(row.us, step)) for row in first.phases]
        yield from fitted([("phase", "[ms]", "[% of the step]"), *phases], width, end_of)
    yield ""
    titles = ("operator", "phase", "calls", "own [ms]", "[%]", "total [ms]")
    operators = [
        (
            row.name,
            end_of(row.phase, 22),
            f"{row.calls:g}",
            _ms(row.us),
            _pct(row.us, step),
            _ms(row.total_us),
        )
        for row in first.operators[:top]
    ]
    yield from fitted([titles, *operators], width, cut, left=(0, 1))


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f}"


def _pct(us: float, step: float) -> str:
    return f"{100 * us / step:.1f}" if step else ""
