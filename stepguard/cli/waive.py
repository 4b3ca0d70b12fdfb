"""The command waive: a known regression passes for some days, as large as it was measured last."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from stepguard.cli.baselines import verdict_today
from stepguard.cli.usage import UsageError
from stepguard.comparison import JUDGED_TIME
from stepguard.git.revision import user_name
from stepguard.judge.ab import judge_ab
from stepguard.judge.waivers import MAX_DAYS, MAX_PCT, Waiver, needed, problem_of, waive
from stepguard.metrics import METRICS
from stepguard.storage import baselines as baseline
from stepguard.storage.runs import Measured, Store, measured_below, read_measured
from stepguard.storage.waivers import BadWaiver, add_waivers, load_waivers, today
from stepguard.verdict import MetricVerdict, Status, Verdict

GIVE = "give its size: --limit-pct X or --value N"
Sizes = dict[str, dict[str, Any]]  # by metric: its limit_pct or its value


def add_command(commands: Any, root: Path) -> None:
    """Its parser; ``commands`` is what argparse's add_subparsers() gave."""
    waived = commands.add_parser("waive", help="let a known regression pass for some days")
    waived.add_argument("case", metavar="CASE")
    waived.add_argument(
        "metric", nargs="?", metavar="METRIC", help="default: every one that failed last"
    )
    waived.add_argument("--reason", required=True, help="why it is borne, and until what happens")
    waived.add_argument("--days", type=int, required=True, metavar="N", help=f"at most {MAX_DAYS}")
    waived.add_argument("--who", help="who answers for it (git's user.name)")
    size = waived.add_mutually_exclusive_group()
    size.add_argument("--limit-pct", type=float, metavar="X", help="a time: most percent")
    size.add_argument("--value", type=int, metavar="N", help="a counter: the most it may be")
    waived.add_argument("--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run")
    folder = baseline.usual(root)
    waived.add_argument("--baselines", type=Path, default=folder, metavar="DIR")
    waived.set_defaults(root=root, call=_waive)


def _waive(options: argparse.Namespace) -> int:
    """Write waivers, by default as large as what was measured last makes necessary."""
    if not 1 <= options.days <= MAX_DAYS:
        raise UsageError(f"--days {options.days}: 1 to {MAX_DAYS}; what lasts longer is accepted")
    if _sized(options) and not options.metric:
        raise UsageError("a size is that of one metric: waive CASE METRIC")
    kept = _kept(options)
    mine = [one for one in kept if one.evidence.case_id == options.case]
    waivers = _waivers(options, _sizes(options, mine[-1] if mine else None))
    try:
        measured = {one.evidence.case_id for one in kept}
        path = add_waivers(options.baselines, waivers, today(), measured)
    except BadWaiver as error:
        raise UsageError(str(error)) from None
    for waiver in waivers:
        print(f"{waiver.case}: {waiver.told()}")
    print(f"written to {path}; commit it, so that it holds for everybody")
    return 0


def _waivers(options: argparse.Namespace, sizes: Sizes) -> list[Waiver]:
    shared: dict[str, Any] = {
        "case": options.case,
        "reason": options.reason,
        "expires": today() + timedelta(days=options.days),
        "who": options.who or user_name(options.root),
    }
    return [Waiver(metric=name, **size, **shared) for name, size in sizes.items()]


def _sized(options: argparse.Namespace) -> bool:
    return options.limit_pct is not None or options.value is not None


def _sizes(options: argparse.Namespace, last: Measured | None) -> Sizes:
    """What is to be waived, and how far: as it is said, else as what was measured last of the case
    needs it, be it against a baseline or against a revision.

    Raises ValueError where nothing needs to be, or a waiver would not cover it.
    """
    _refuse_ungated(options, last)
    metric = METRICS.get(options.metric or "")
    if _sized(options) or options.metric and not (metric and metric.gateable):
        # What is no metric is refused when it is added.
        return {options.metric: {"limit_pct": options.limit_pct, "value": options.value}}
    if last is None:
        where = options.evidence or Store(options.root).runs
        raise ValueError(
            f"{where}: no run measured {options.case!r}; measure it, or name a METRIC and {GIVE}"
        )
    other, verdict = last.comparison, _verdict(last, options)
    held = other.waived_pct if other else {}
    before = load_waivers(options.baselines, today())
    found = waive(verdict, last.evidence, before, today(), other)
    sizes: Sizes = {
        one.metric: needed(one, held.get(one.metric, 0.0)) for one in _to_waive(options, found)
    }
    fresh = _waivers(options, sizes)
    for waiver in fresh:
        if (waiver.limit_pct or 0) > MAX_PCT:
            raise ValueError(f"{options.case}: not waived, {problem_of(waiver, today())}")
    after = waive(verdict, last.evidence, fresh, today(), other)
    uncovered = {one.metric for one in after.metrics if not one.waived_until}
    for waiver, said in zip(fresh, after.waivers, strict=True):
        if waiver.metric in uncovered:
            raise ValueError(f"{options.case}: no waiver of {waiver.metric} covers it: {said}")
    return sizes


def _refuse_ungated(options: argparse.Namespace, last: Measured | None) -> None:
    """Raise UsageError for a metric that the case does not gate, as it was measured last."""
    metric = METRICS.get(options.metric or "")
    if last is None or metric is None or not metric.gateable:
        return
    name = metric.name
    if last.comparison is not None and metric.kind in ("time", "difference"):
        name = JUDGED_TIME  # in whose place it was judged
    if name not in last.evidence.gates:
        gates = ", ".join(last.evidence.gates)
        raise UsageError(
            f"{options.case}: not waived, it does not gate {metric.name}; it gates: {gates}"
        )


def _kept(options: argparse.Namespace) -> list[Measured]:
    """What runs left, oldest first: those below the path that was given, else all kept here."""
    if not options.evidence:
        return Store(options.root).measured()
    path = Path(options.evidence)
    try:
        return [read_measured(one) for one in (measured_below(path) if path.is_dir() else [path])]
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None


def _verdict(last: Measured, options: argparse.Namespace) -> Verdict:
    if last.comparison is not None:
        return judge_ab(last.comparison)
    return verdict_today(last.evidence, options.baselines)


def _to_waive(options: argparse.Namespace, verdict: Verdict) -> list[MetricVerdict]:
    """The metric that was named, or all that fail and are not waived yet. Raises ValueError."""
    failing = {
        found.metric: found
        for found in verdict.metrics
        if found.gated and found.status in (Status.SLOWER, Status.CHANGED) and not verdict.message
    }
    where = f" against {verdict.against}" if verdict.against else ""
    nothing = f"{options.case}: nothing to waive,"
    if options.metric:
        if options.metric in failing:
            return [failing[options.metric]]
        named = [m.status.value for m in verdict.metrics if m.metric == options.metric]
        now = named[0] if named and not verdict.message else verdict.status.value
        raise ValueError(
            f"{nothing} {options.metric} is {now} in what was measured last{where}; {GIVE}"
        )
    if not failing:
        now = verdict.status.value
        raise ValueError(f"{nothing} it is {now} in what was measured last{where}")
    fresh = [found for found in failing.values() if not found.waived_until]
    if not fresh:
        raise ValueError(f"{nothing} what fails is waived; to renew a waiver name its METRIC")
    return fresh
