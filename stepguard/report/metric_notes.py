"""Notes of a report on a metric: parts, ranks and places that moved, what pairs found, and how far
waivers let it be worse.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import structs

from stepguard.core.margins import ALPHA
from stepguard.core.metrics import (
    FP64,
    METRICS,
    NUMBERS,
    OPERATOR_METRICS,
    SETTINGS,
    format_bytes,
    format_value,
    setting_of,
)
from stepguard.core.permission import Effect, Permission, PermissionOutcome
from stepguard.core.profile import summed
from stepguard.core.reason_sentences import OverSteps, SlowSteps, margins_text
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.text import first, listed
from stepguard.core.verdict import (
    Confirmation,
    Confirmed,
    MetricVerdict,
    PairsFinding,
    PartMove,
    Verdict,
)
from stepguard.judge.time_rules import SLOWER_TIMES, decided_on_cpu
from stepguard.judge.waiver_rules import largest_value, uncovered_count
from stepguard.report.next_steps import Commands

NOTE_PARTS = 3  # moved operators that a note names
PLACES_SHOWN = 5  # of operators and of bytes
TYPED_ANYWHERE = Commands()


def note(metric: MetricVerdict) -> str:
    """Return the note on a metric: parts and ranks that moved, what pairs said."""
    slow = metric.figures if isinstance(metric.figures, SlowSteps) else None
    within = f"{slow.text}; " if slow else ""
    if metric.confirmed:
        return within + _confirmation(metric.confirmed)
    if metric.reason is Reason.IDENTICAL_STEP:
        within += "the same kernels, generated code, operands and settings, bound by the GPU; "
    if metric.pairs and metric.reason is Reason.NO_SLOWDOWN:
        # The plan's interval and smallest detectable slowdown did not decide, so they are left out.
        mean = f"{metric.pairs.decision.estimate_pct:+.1f} % on average"
        return f"{within}{metric.reason.phrase}: {mean} {_over(metric.pairs)}"
    if metric.pairs and decided_on_cpu(metric):
        said, times = metric.pairs.decision, SLOWER_TIMES
        return f"{within}{said.interval} over {said.pairs} pairs, each at least {times} times"
    if metric.pairs and metric.reason is Reason.CHANGED_KERNELS:  # nor did these decide here
        by = f"the kernels alone {metric.pairs.decision.interval}"
        return f"{within}{metric.reason.phrase}: {by} {_over(metric.pairs)}"
    if metric.pairs:
        return within + pairs_text(metric.pairs)
    if metric.figures and not isinstance(metric.figures, OverSteps):
        # An optimizer's options come first: they are why numbers moved.
        return "; ".join(filter(None, [parts(metric), metric.figures.sentence]))
    # Beside figures that moved change() says it.
    over = metric.figures.sentence if metric.figures and metric.new == metric.old else ""
    return ", ".join(filter(None, (on_ranks(metric.ranks), parts(metric), over)))


def on_ranks(ranks: tuple[int, ...]) -> str:
    """Return "on rank 1" or "on ranks 0, 2"."""
    if not ranks:
        return ""
    return f"on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def parts(metric: MetricVerdict, most: int = NOTE_PARTS) -> str:
    """Return "aten.mm.default 24 -> 25, aten.t.default 3 -> 4 and 5 more"."""
    if metric.metric in (SETTINGS, NUMBERS):
        # What a workload has not changed is the default. An optimizer may be gone.
        lacking = "default" if metric.metric == SETTINGS else "none"
        return listed(_settings(metric.moved, lacking), most)
    shown = [
        f"{part.name} {format_value(metric.metric, part.old)} -> "
        f"{format_value(metric.metric, part.new)}{' instructions' if metric.metric == FP64 else ''}"
        for part in metric.moved
    ]
    return listed(shown, most)


def _settings(moved: Iterable[PartMove], lacking: str) -> list[str]:
    """Return "get_float32_matmul_precision high -> default" for each setting."""
    sides: dict[str, tuple[str, str]] = {}
    for part in moved:
        name, value = setting_of(part.name)
        old, new = sides.get(name, (lacking, lacking))
        sides[name] = (value, new) if part.new < part.old else (old, value)
    return [f"{name} {old} -> {new}" for name, (old, new) in sides.items()]


def pairs_text(measured: PairsFinding) -> str:
    """Return a decision in words: the interval, the pairs, and the smallest detectable slowdown."""
    by = measured.decision
    return (
        f"{by.interval} {_over(measured)}; smallest detectable slowdown "
        f"{by.smallest_detectable_pct:.2f} %"
    )


def _over(measured: PairsFinding) -> str:
    """Return "over 6 pairs, pair sd 0.21 %; margins 0.2 and 0.5 %", and what was special."""
    by, margins = measured.decision, measured.margins
    how = "" if measured.together else ", one launch after the other"
    most = f" of {measured.most} at most" if measured.most else ""
    all_pct = by.with_replaced_pct
    with_them = "" if all_pct is None else f"; with them {all_pct:+.2f} %"
    more = f"{measured.again} more were disturbed and do not count{with_them}"
    remeasured = f" ({more})" if measured.again else ""
    among_many = measured.alpha < ALPHA
    level = f", level {100 * measured.alpha:.2g} % among the cases of its run" if among_many else ""
    pairs = f"{by.pairs} pairs" if by.pairs > 1 else "one pair"
    if measured.not_enough:
        how += f" (fewer were not enough: {measured.not_enough})"
    noise = f"pair sd {by.sd_pct:.2f} %; {margins_text(margins)}{level}"
    return f"over {pairs}{most}{remeasured}{how}, {noise}"


def _confirmation(how: Confirmed) -> str:
    outcome, beside = how.outcome, ""
    if how.step is not None:
        beside = f"{how.commit} beside it: {pairs_text(how.step)}"
    if outcome is Confirmation.CONFIRMED and how.step:
        hidden = ", not FASTER" if how.hidden else ""
        return f"confirmed, the code is {how.step.decision.status.value}{hidden}: {beside}"
    if outcome is Confirmation.STEP_SAME:
        return f"not the code: as fast as its level's first commit; {beside}"
    if outcome is Confirmation.MACHINE:
        return f"not the code: HEAD is {how.commit}"
    return "unconfirmed: " + ", ".join(filter(None, (_unconfirmed(how), beside or how.commit)))


def _unconfirmed(how: Confirmed) -> str:
    if how.why:
        return how.why.text
    return "the pairs do not decide" if how.outcome is Confirmation.UNDECIDED else ""


def happens(site: Site, unit: str = "") -> str:
    """Return "2 x .item(): loss.item() in step (model/workloads.py:88), forward"; or the bytes."""
    if unit == "B":
        return f"{format_bytes(site.count)} of {site.described()}"
    return (f"{site.count} x " if site.count > 1 else "") + site.described()


def operator_move(metric: MetricVerdict) -> str:
    """Return the operator that moved at the first place, with its count there: "+4 aten.clone". If
    the same function calls another operator as many times less, or if what it calls less is the
    cause: "+4 aten.silu for aten.gelu".
    """
    if metric.sites:
        main, names = metric.place or metric.sites[0], _names(metric.sites)
        place = (main.file, main.function, main.phase)
        here = summed(
            (s.what, s.count) for s in metric.sites if (s.file, s.function, s.phase) == place
        )
        count = here.pop(main.what)
        text = f"{main.count:+,d} {names[main.what]}"
        gone = next(iter(here), "")  # sites come causes first
        if count > 0 and ([*here.values()] == [-count] or metric.sites[0].what == gone):
            return f"{text} for {names[gone]}"
        return text
    part = metric.moved[0]
    return f"{part.new - part.old:+,d} {_bare(part.name)}"


def in_function(operator: str, site: Site) -> str:
    """Return "+4 aten.clone in Block.forward (model/gpt.py:105)"."""
    return f"{operator} in {site.function} ({site.place}){site.reached if site.caller else ''}"


def share_of_place(metric: MetricVerdict) -> str:
    """Return ", 4 at", the first place's share of a move; empty if it is all, or unknown."""
    places = [site for site in metric.sites if site.file]
    if len(places) < 2 or METRICS[metric.metric].kind != "counter":
        return ""
    return f", {format_value(metric.metric, places[0].count)} at"


def place_lines(metric: MetricVerdict) -> list[str]:
    """Return where a metric moved, a line each."""
    unit = METRICS[metric.metric].unit
    if metric.metric not in OPERATOR_METRICS:
        lines = [happens(site, unit) for site in _with_count_before(metric)]
        if unit != "B":
            return lines
    else:
        names = _names(metric.sites)
        lines = [in_function(f"{site.count:+,d} {names[site.what]}", site) for site in metric.sites]
    return first(lines, PLACES_SHOWN)


def _with_count_before(metric: MetricVerdict) -> tuple[Site, ...]:
    """Return the places. If there is only one, and its count is larger than the counter's rise, the
    line was edited or replaced others. It then also says how many there were before.
    """
    old, new = metric.old or 0, metric.new or 0
    if METRICS[metric.metric].kind != "counter" or len(metric.sites) != 1 or new <= old:
        return metric.sites
    (site,) = metric.sites
    before = site.count - (new - old)
    if not 0 < before <= old:
        return metric.sites
    what = f"{site.what} ({format_value(metric.metric, before)} before)"
    return (structs.replace(site, what=what),)


def _names(sites: Sequence[Site]) -> dict[str, str]:
    """Return "aten.clone" for "aten.clone.default", unless two differ only in the overload."""
    known = {site.what for site in sites}
    alike = Counter(map(_bare, known))
    return {name: name if alike[_bare(name)] > 1 else _bare(name) for name in known}


def _bare(name: str) -> str:
    return name.rpartition(".")[0] or name


def described(permission: Permission) -> str:
    """Return "step_ms up to +6.00 % until 2026-12-31, by A. Author: waits for torch 2.14"."""
    if permission.limit_pct is not None:
        size = f"up to +{permission.limit_pct:.2f} %"
    else:
        exact = METRICS[permission.metric].exact
        size = f"{'at' if exact else 'up to'} {format_value(permission.metric, permission.value)}"
    until = f"until {permission.expires}, by {permission.who}: {permission.reason}"
    return f"{permission.metric} {size} {until}"


def of_waivers(verdict: Verdict, commands: Commands = TYPED_ANYWHERE) -> list[str]:
    """Return the effect of each waiver of the case, a sentence each."""
    metrics, texts = {metric.metric: metric for metric in verdict.metrics}, []
    for outcome in verdict.permissions:
        effect = _effect(outcome, metrics.get(outcome.permission.metric), verdict, commands)
        word = effect if outcome.effect is Effect.ALLOWED else f"waiver {effect}"
        here = "declared here, " if outcome.permission.commit else ""
        texts.append(f"{here}{word}: {described(outcome.permission)}")
    return texts


def _effect(
    outcome: PermissionOutcome,
    metric: MetricVerdict | None,
    verdict: Verdict,
    commands: Commands,
) -> str:
    waiver, effect = outcome.permission, outcome.effect
    against = f" against {verdict.against}" if verdict.against else ""
    # A comparison with a revision does not say to remove it: recordings may still need the waiver.
    remove = "" if against else f" (remove it: {commands.unwaive(waiver)})"
    if effect is Effect.ALLOWED:
        return "waived"
    if effect is Effect.EXPIRED:
        return "EXPIRED"
    if effect is Effect.NOT_APPLIED:
        if metric is None or verdict.whole:
            return f"not applied, the case is {verdict.status.value}"
        return f"not applied, {waiver.metric} is {metric.status.value}"
    if metric is None or effect is Effect.NOT_GATED:
        return f"not judged{against}" if against else f"stale, the case does not gate it{remove}"
    if effect is Effect.NOT_NEEDED:
        if metric.confirmed and metric.has_notice:
            return "not needed, not the code moved it"
        word = f"not needed{against}" if against else "stale"
        return f"{word}, {waiver.metric} is {metric.status.value}{remove}"
    if effect is Effect.TOO_WIDE:
        most = format_value(waiver.metric, largest_value(metric))
        return f"TOO WIDE, at most {most}, so it does not apply"
    return _uncovered(waiver, metric)


def _uncovered(waiver: Permission, metric: MetricVerdict) -> str:
    missed = None if waiver.value is None else uncovered_count(waiver, metric)
    old, new = missed or (metric.old, metric.new)
    now = format_value(waiver.metric, new)
    if waiver.limit_pct is not None and metric.change_pct is not None:
        now = f"{metric.change_pct:+.2f} %"
    if METRICS[waiver.metric].exact and missed:
        return "of other work, " + (
            f"it is {now} now" if new != old else "its total did not change"
        )
    return f"EXCEEDED, it is {now} now"
