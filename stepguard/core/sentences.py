"""Sentences: the one place where reasons and figures become words. Reports lay them out, and errors
quote them.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepguard.core.margins import Margins
from stepguard.core.metrics import JUDGED_TIME, SETTINGS, format_value, setting_of
from stepguard.core.text import counted, listed
from stepguard.core.verdict import (
    Confirmation,
    Confirmed,
    Decision,
    Facts,
    MetricVerdict,
    PairsFinding,
    PartMove,
    Reason,
    Verdict,
)

TREE_CHANGED = "files changed while it was measured: its launches may be of different code"
NOTE_PARTS = 3  # how many moved operators a note names


def uncommitted(files: Sequence[str]) -> str:
    """Return what differs from a tree's commit, and what mends it; empty for no file."""
    text = f"uncommitted changes ({listed(files, 3)})"
    return f"{text}: commit them, or let git ignore what is no source" if files else ""


def message(verdict: Verdict) -> str:
    """Return the sentence of a case that was judged as a whole; empty where a metric decided."""
    if verdict.facts is None:
        return ""
    text = sentence(verdict.reason, verdict.facts)
    was = verdict.facts.get("but")
    return f"{was}, but at other work: {text}" if was else text


def sentence(reason: Reason, facts: Facts) -> str:
    """Return what a reason says with these figures."""
    if "fault" in facts:
        text = _after(facts.get("launch"), facts["fault"])
    else:
        say = _SENTENCES.get(reason)
        text = say(facts) if say else reason.value
    # Those name the revision within the sentence.
    return text if reason in _NAMES_REVISION else _after(facts.get("revision"), text)


def _after(label: Any, text: str) -> str:
    return f"{label}: {text}" if label else text


def _nothing_measured(facts: Facts) -> str:
    if "difference" in facts:
        name = facts["difference"]
        return (
            f"{name} has a time of {facts['ms']!r} ms"
            if "ms" in facts
            else f"{name} has no pair of blocks"
        )
    if "launch" not in facts:
        return "no launch was measured"
    if "ms" in facts:
        return f"{facts['launch']}: a block has a time of {facts['ms']!r} ms"
    if "steps" not in facts:
        return f"{facts['launch']} has no block"
    has = f"the times of {facts['times']}" if facts["times"] else "no times"
    return f"{facts['launch']}: a block of {facts['steps']} steps has {has}"


def _too_few_launches(facts: Facts) -> str:
    if "planned" in facts:
        return f"{facts['launches']} of {facts['planned']} launches"
    head, base, other = facts["head"], facts["base"], facts["other"]
    return f"{head} launches of HEAD, {base} of {other}: they are not in pairs"


def _clocks_disagree(facts: Facts) -> str:
    if "events_ms" in facts:
        times = f"wall clock {facts['wall_ms']:.2f} ms, events {facts['events_ms']:.2f} ms"
        gap = f"rank {facts['rank']}: {times}"
    else:
        wall, outside = facts["wall_ms"], facts["outside_ms"]
        gap = f"the ranks' clock {wall:.0f} ms, the host's {outside:.0f} ms"
    if "blocks" in facts:
        return f"{facts['blocks']} blocks in {facts['launches']} launches, {gap}"
    return _after(facts.get("launch"), gap)


def _contradiction(facts: Facts) -> str:
    size = f"{facts['mean_pct']:.2f} +- {facts['half_width_pct']:.2f} % of a step"
    return (
        f"{facts['difference']} is {size}: the step without it takes longer, so it does other work"
    )


def _metric_missing(facts: Facts) -> str:
    if "metric" not in facts:
        return "the case gates no metric"
    if "whose" not in facts:
        return f"{facts['metric']} was not measured"
    why = f": {facts['text']}" if facts["text"] else ""
    return f"{facts['metric']} of {facts['whose']} is not known{why}"


def changed(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """Return "batch 32 -> 64, seq 512 -> 1024"."""
    return ", ".join(f"{key} {old} -> {new}" for key, old, new in changes)


def _changes(facts: Facts) -> str:
    return changed(facts["changes"])


def _other_work(facts: Facts) -> str:
    if "metric" not in facts:
        return f"recorded with {facts['old']} tokens a step, now {facts['new']}"
    name, revision = facts["metric"], facts["revision"]
    if "old" in facts:
        old, new = facts["old"], facts["new"]
        change = f" ({100 * (new / old - 1):+.2f} %)" if old else ""
        return f"{name} {old:,} in {revision}, now {new:,}{change}"
    olds, news = (
        ", ".join(f"{count:,}" for count in facts[key]) or "alike"
        for key in ("old_by_rank", "new_by_rank")
    )
    return f"{name} by rank {olds} in {revision}, now {news}"


def _not_recorded(facts: Facts) -> str:
    where = f" in {facts['path']}" if "path" in facts else ""
    return Reason.NOT_RECORDED.value + where


def _unstable(facts: Facts) -> str:
    where = "".join(f": {one.count:+,d} {one.described()}" for one in facts["sites"][:1])
    return _after(facts["metric"], facts["text"] + where)


_NAMES_REVISION = (Reason.OTHER_FLOPS, Reason.OTHER_TOKENS)
_SENTENCES: Mapping[Reason, Callable[[Facts], str]] = {
    Reason.NOTHING_MEASURED: _nothing_measured,
    Reason.TOO_FEW_LAUNCHES: _too_few_launches,
    Reason.CLOCKS_DISAGREE: _clocks_disagree,
    Reason.CONTRADICTION: _contradiction,
    Reason.FASTER_THAN_PHYSICS: lambda f: (
        f"{f['step_ms']:.3f} ms a step, but the GPU's peak allows no less than "
        f"{f['floor_ms']:.3f} ms"
    ),
    Reason.NOT_STEADY: lambda f: _after(f["launch"], f["text"]),
    Reason.METRIC_MISSING: _metric_missing,
    Reason.COUNT_UNSTABLE: _unstable,
    Reason.NOT_RECORDED: _not_recorded,
    Reason.OTHER_PARAMETERS: _changes,
    Reason.OTHER_SOFTWARE: _changes,
    Reason.OTHER_TOKENS: _other_work,
    Reason.OTHER_FLOPS: _other_work,
}


def note(found: MetricVerdict) -> str:
    """Return what else is to be said of a metric: parts and ranks that moved, what pairs said."""
    within = f"{pattern_text(found.facts)}; " if "pattern" in found.facts else ""
    if found.confirmed:
        return within + _confirmation(found.confirmed)
    if found.reason is Reason.IDENTICAL_STEP:
        within += "the same kernels, generated code, operands and settings, bound by the GPU; "
    if found.pairs and found.reason in (Reason.NO_SLOWDOWN, Reason.MAYBE_SLOWER):
        # Few pairs outside the plan: neither its interval nor what it could find is what decided.
        mean = f"{found.pairs.decision.estimate_pct:+.1f} % on average"
        return f"{within}{found.reason.value}: {mean} {_over(found.pairs)}"
    if found.pairs:
        return within + pairs_text(found.pairs)
    if "text" in found.facts:
        return str(found.facts["text"])
    if found.metric in _FIGURES and found.facts:
        return _FIGURES[found.metric](found.facts)
    return ", ".join(filter(None, (on_ranks(found.ranks), parts(found))))


def _straggler(facts: Facts) -> str:
    slow, fast = facts["slowest_ms"], facts["fastest_ms"]
    return (
        f"rank {facts['slowest']} takes {slow:.2f} ms alone, rank {facts['fastest']} {fast:.2f} ms"
    )


def _alone(facts: Facts) -> str:
    unsteady = f", {facts['steady']}" if facts["steady"] else ""
    return f"one rank alone takes {facts['one_rank_ms']:.2f} ms{unsteady}"


def pattern_text(facts: Facts) -> str:
    """Return what steps do within launches: "from step 150 on +12.0 % (+5.2 ms)"."""
    size = f"{facts['slower_pct']:+.1f} % ({facts['slower_ms']:+.3g} ms)"
    if facts["pattern"] == "late":
        after, begin = facts["after"], facts["begin"]
        between = f" (or one since {after}, not timed)" if begin - after > 1 else ""
        return f"from step {begin}{between} on {size}"
    if not facts["period"]:
        return f"at step {facts['begin']} of each launch {size}"
    return f"every {facts['period']} steps, first at step {facts['begin']}, {size}"


def _cards(facts: Facts) -> str:
    within = f"{pattern_text(facts)}, in each launch; " if "pattern" in facts else ""
    own = facts["own_card"]
    of = counted(facts["compared"], "recording" if own else "other card")
    return f"{within}the limit is that of {of}{' of this card' if own else ''}"


_FIGURES = {
    JUDGED_TIME: _cards,
    "rank_skew_pct": _straggler,
    "scaling_efficiency_pct": _alone,
}


def on_ranks(ranks: tuple[int, ...]) -> str:
    """Return "on rank 1" or "on ranks 0, 2"."""
    if not ranks:
        return ""
    return f"on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def parts(found: MetricVerdict, most: int = NOTE_PARTS) -> str:
    """Return "aten.mm.default 24 -> 25, aten.t.default 3 -> 4 and 5 more"."""
    if found.metric == SETTINGS:
        return listed(_settings(found.moved), most)
    shown = [
        f"{part.name} {format_value(found.metric, part.old)} -> "
        f"{format_value(found.metric, part.new)}"
        for part in found.moved
    ]
    return listed(shown, most)


def _settings(moved: Iterable[PartMove]) -> list[str]:
    """Return "get_float32_matmul_precision high -> default": what a side lacks is as it was before
    the workload.
    """
    sides: dict[str, tuple[str, str]] = {}
    for part in moved:
        name, value = setting_of(part.name)
        old, new = sides.get(name, ("default", "default"))
        sides[name] = (value, new) if part.new < part.old else (old, value)
    return [f"{name} {old} -> {new}" for name, (old, new) in sides.items()]


def pairs_text(found: PairsFinding) -> str:
    """Return a decision in words: interval, pairs, and what could have been found."""
    by = found.decision
    return (
        f"{interval(by)} {_over(found)}; smallest detectable slowdown "
        f"{by.smallest_detectable_pct:.2f} %"
    )


def _over(found: PairsFinding) -> str:
    """Return "over 6 pairs, pair sd 0.21 %; margins 0.2 and 0.5 %", with what else is to know."""
    by, margins = found.decision, found.margins
    how = "" if found.together else ", one launch after the other"
    rule = f" ({found.rule})" if found.rule else ""
    most = f" of {found.most} at most" if found.most else ""
    all_pct = by.with_replaced_pct
    with_them = "" if all_pct is None else f"; with them {all_pct:+.2f} %"
    more = f"{found.again} more were disturbed and do not count{with_them}"
    again = f" ({more})" if found.again else ""
    pairs = f"{by.pairs} pairs" if by.pairs > 1 else "one pair"
    earlier = f", {found.earlier} of them of an earlier run of this code" if found.earlier else ""
    if found.check_pct is not None:
        earlier += f", with which a fresh one agrees ({found.check_pct:+.2f} %)"
    # Of a file that cannot be read nobody knows whether it is of this code.
    if found.not_pooled:
        earlier += f" (pairs of another run do not count: {found.not_pooled})"
    if found.not_enough:
        how += f" (fewer were not enough: {found.not_enough})"
    return (
        f"over {pairs}{most}{earlier}{again}{how}, pair sd {by.sd_pct:.2f} %; "
        f"{margins_text(margins)}{rule}"
    )


def interval(found: Decision) -> str:
    """Return "[-0.12, +0.20] %"."""
    return f"[{found.low_pct:+.2f}, {found.high_pct:+.2f}] %"


def margins_text(margins: Margins) -> str:
    """Return "margins 0.2 and 0.5 %"."""
    return f"margins {both_pct(margins)}"


def both_pct(margins: Margins) -> str:
    """Return "0.2 and 0.5 %"."""
    return f"{margins.ignore_pct:g} and {margins.matter_pct:g} %"


def no_folder(path: str) -> str:
    """Return what is wrong with a folder of baselines that is not there, and what makes it."""
    return f"no such folder; to record into a new one: mkdir -p {shlex.quote(path)}"


def wider_margins(own: Margins, recorded: Margins, whose: str) -> str:
    """Return what is wrong with the margins of a case, both named, and what mends it but for the
    command. ``whose`` is the recording.
    """
    return (
        f"has {margins_text(own)}, wider than the {both_pct(recorded)} of {whose}; "
        "narrow them again, or record the case with them"
    )


_SETTLED = (
    Confirmation.CONFIRMED,
    Confirmation.REVERSED,
    Confirmation.STEP_SAME,
    Confirmation.MACHINE,
    Confirmation.SAME_CODE,
)


def _confirmation(how: Confirmed) -> str:
    """Return what pairs beside the recording's commit said of the screen's alarm."""
    outcome, facts, beside = how.outcome, dict(how.facts), ""
    if how.step is not None:
        beside = f"{how.commit} beside it: {pairs_text(how.step)}"
        facts["verdict"] = how.step.decision.status.value
    if outcome is Confirmation.BASE_FAILED:
        facts["text"] = sentence(facts["reason"], facts["facts"] or {})
    text = outcome.value.format(commit=how.commit, beside=beside, **facts)
    if outcome in _SETTLED:
        return text
    return "unconfirmed: " + ", ".join(filter(None, (text, beside or how.commit)))
