"""Sections of a report about time: single steps, the change beside its margins, the machine."""

import math
from collections.abc import Iterator
from itertools import zip_longest
from statistics import mean, median

from stepguard.core.evidence import Block, Evidence, Launch
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reasons import Reason
from stepguard.core.verdict import MetricVerdict, PairsFinding
from stepguard_lab.charts import Chart, Interval, Slot, change_chart, slots_chart
from stepguard_lab.report_input import MeasuredCase
from stepguard_lab.report_model import Section, charts, signed, table

SIDES = ("now", "before")
_LAUNCH = ("side", "mean [ms]", "change [%]", "median [ms]", "least", "greatest", "drift [%]",
           "compile [s]")  # fmt: skip
# Of a block: what the machine did meanwhile.
_TELEMETRY = (
    ("clock", "MHz", "sm_clock_mhz", 0),
    ("temp.", "C", "temperature_c", 0),
    ("power", "W", "power_w", 0),
)


def sections(case: MeasuredCase) -> Iterator[Section]:
    """Yield the sections of a case's times, those without content too."""
    yield _steps(case)
    yield _change(case)
    yield _telemetry(case)


def sides_of(case: MeasuredCase) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Return the launches with times: those of this revision, and those of the revision that it was
    paired with.
    """
    if case.pairs:
        return _timed(case.pairs.head.launches), _timed(case.pairs.base.launches)
    return _timed(case.evidence.launches if case.evidence else ()), ()


def _timed(launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    return tuple(launch for launch in launches if launch.has_times())


def _steps(case: MeasuredCase) -> Section:
    head, base = sides_of(case)
    what = "pair" if base else "launch"
    slots = [
        Slot(
            str((new or old or head[0]).index),
            _single_steps(new) if new else (),
            _single_steps(old) if old else (),
        )
        for new, old in zip_longest(head, base)
    ]
    chart = slots_chart(f"Single steps, by {what}", "ms", what, slots)
    rows = [
        _launch_row(launch, side if base else "", pair[1] if side == SIDES[0] else None)
        for pair in zip_longest(head, base)
        for launch, side in zip(pair, SIDES, strict=True)
        if launch is not None
    ]
    if not rows and case.result:  # without evidence the document has means
        rows = [
            [
                str(number),
                "",
                f"{launch.step_ms:,.3f}",
                "",
                f"{launch.step_ms_median:,.3f}",
                *[""] * 4,
            ]
            for number, launch in enumerate(case.result.launches, start=1)
        ]
    unsteady = [
        f"launch {launch.index}: {launch.steady}" for launch in (*head, *base) if launch.steady
    ]
    tables = table(f"Step time by {what}", (what, *_LAUNCH), rows, 2)
    return Section("Step time", charts(chart), tables, tuple(unsteady))


def _single_steps(launch: Launch) -> tuple[float, ...]:
    return tuple(ms for block in launch.blocks for ms in block.step_ms)


def _launch_row(launch: Launch, side: str, other: Launch | None) -> list[str]:
    """Return the cells of a launch; ``other`` is the launch that it is compared with."""
    steps = _single_steps(launch)
    blocks = [block.mean_ms for block in launch.blocks]
    drift = 100 * (blocks[-1] / blocks[0] - 1) if len(blocks) > 1 else None
    return [
        str(launch.index),
        side,
        f"{launch.step_ms:,.3f}",
        signed(100 * (launch.step_ms / other.step_ms - 1), 3) if other else "",
        f"{median(steps):,.3f}",
        f"{min(steps):,.3f}",
        f"{max(steps):,.3f}",
        "" if drift is None else signed(drift),
        f"{launch.compile_s:.1f}",
    ]


def _change(case: MeasuredCase) -> Section:
    time = next((metric for metric in case.verdict.metrics if metric.metric == JUDGED_TIME), None)
    if time is None or time.old is None and not time.pairs:  # compared with nothing
        return Section("Change of the step time")
    pairs = time.pairs or (time.confirmed.step if time.confirmed else None)
    drawn = _of_pairs(case, pairs) if pairs else _of_recordings(time)
    rows = [*_decision_rows(pairs)] if pairs else [*_screen_rows(time)]
    tables = table("The decision", ("figure", "value"), rows, 2)
    return Section("Change of the step time", charts(drawn), tables)


def _changes_pct(case: MeasuredCase) -> list[float]:
    """Return the change of each complete pair; none where a launch has no times."""
    if case.pairs is None:
        return []
    both = case.pairs.paired_launches()
    sound = all(head.has_times() and base.has_times() for head, base in both)
    return [100 * math.expm1(ratio) for ratio in case.pairs.log_ratios()] if sound else []


def _of_pairs(case: MeasuredCase, pairs: PairsFinding) -> Chart:
    decision, margins = pairs.decision, pairs.margins
    # The points are steps, also if kernels decided.
    by = "kernels" if decision.reason is Reason.CHANGED_KERNELS else "interval"
    interval = Interval(by, decision.estimate_pct, decision.low_pct, decision.high_pct)
    bands = ((margins.ignore_pct, "ignored"), (margins.matter_pct, "matters from"))
    return change_chart("Step time beside the margins", _changes_pct(case), interval, bands)


def _of_recordings(time: MetricVerdict) -> Chart | None:
    if time.change_pct is None or time.limit_pct is None:
        return None
    noise = time.noise_pct or 0.0
    change = time.change_pct
    interval = Interval("std. err.", change, change - noise, change + noise)
    return change_chart("Step time beside the limit", (), interval, ((time.limit_pct, "limit"),))


def _decision_rows(pairs: PairsFinding) -> Iterator[tuple[str, str]]:
    decision = pairs.decision
    yield "change", f"{decision.estimate_pct:+.3f} %"
    yield "interval", f"{decision.low_pct:+.3f} to {decision.high_pct:+.3f} %"
    yield "margins", f"{pairs.margins.ignore_pct:g} % and {pairs.margins.matter_pct:g} %"
    yield "pairs", f"{decision.pairs}" + (f", {pairs.again} measured again" if pairs.again else "")
    yield "standard deviation of a pair", f"{decision.sd_pct:.3f} %"
    yield "p-value of no slowdown", f"{decision.p_value:.3g}"
    yield "smallest slowdown that the plan finds", f"{decision.smallest_detectable_pct:.2f} %"
    yield "reason", decision.reason.phrase


def _screen_rows(time: MetricVerdict) -> Iterator[tuple[str, str]]:
    figures = {
        "recorded [ms]": time.old,
        "measured [ms]": time.new,
        "change [%]": time.change_pct,
        "limit [%]": time.limit_pct,
        "standard error over launches [%]": time.noise_pct,
    }
    yield from ((name, f"{value:,.3f}") for name, value in figures.items() if value is not None)
    yield "gated", "yes" if time.gated else "no"


def _telemetry(case: MeasuredCase) -> Section:
    head, base = sides_of(case)
    drawn = [
        slots_chart(
            title[0].upper() + title[1:],
            unit,
            "pair" if base else "launch",
            [
                Slot(str((new or old or head[0]).index), _of(new, field), _of(old, field))
                for new, old in zip_longest(head, base)
            ],
        )
        for title, unit, field, _ in _TELEMETRY
    ]
    names = ("launch", "side", *(f"{title} [{unit}]" for title, unit, _, _ in _TELEMETRY),
             "energy [J]", "enqueue [ms]")  # fmt: skip
    rows = [
        [str(launch.index), side if base else "", *_machine_row(launch.blocks)]
        for launches, side in zip((head, base), SIDES, strict=True)
        for launch in launches
        if any(_machine_row(launch.blocks))
    ]
    evidences = [side for side in (case.counted, case.base) if side]
    disturbed = [f"A block was measured again: {text}" for text in _disturbances(*evidences)]
    tables = table("The machine, mean of each launch; energy of a step", names, rows, 2)
    return Section("Telemetry", charts(*drawn), tables, tuple(disturbed))


def _disturbances(*evidences: Evidence) -> Iterator[str]:
    for evidence in evidences:
        yield from evidence.disturbances[:10]


def _of(launch: Launch | None, field: str) -> tuple[float, ...]:
    values = [getattr(block, field) for block in launch.blocks] if launch else []
    return tuple(value for value in values if value is not None)


def _machine_row(blocks: tuple[Block, ...]) -> list[str]:
    energy = [block.energy_j / block.steps for block in blocks if block.energy_j is not None]
    host = [block.enqueue_ms for block in blocks if block.enqueue_ms is not None]
    known = [
        ([v for block in blocks if (v := getattr(block, field)) is not None], digits)
        for _, _, field, digits in _TELEMETRY
    ]
    return [
        f"{mean(values):,.{digits}f}" if values else ""
        for values, digits in (*known, (energy, 2), (host, 3))
    ]
