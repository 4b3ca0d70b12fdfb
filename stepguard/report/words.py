"""Verdicts in words: one sentence that fits a terminal, the evidence under it, what to do next."""

import shlex

from stepguard.evidence import Evidence
from stepguard.metrics import METRICS, format_value
from stepguard.report.traceback import users_frames
from stepguard.report.waivers import sentences, waive_commands
from stepguard.site import Site
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict

WIDTH = 79  # pytest cuts its own summary at 80 columns
SYNCS = ("host_syncs_per_step", "sync_candidates_per_step")
OF_RANKS = ("rank_skew_pct", "scaling_efficiency_pct")  # information that explains a slow step
ID_WIDTH = 40  # of a headline; the verdict and what moved need the rest


def headline(verdict: Verdict) -> str:
    """One sentence of at most WIDTH columns: case, metric, old -> new, limit, verdict."""
    worst = verdict.worst
    waived = " (waived)" if verdict.waived_until else ""  # until when stands below, and is long
    front = f"{_cut(verdict.case_id, ID_WIDTH)}: {verdict.status.value}{waived}: "
    if verdict.message or worst is None:
        return _cut((front + (verdict.message or verdict.reason.value)).splitlines()[0])
    moved = change(worst, digits=1)
    if worst.place is None:
        return _cut(front + moved)
    line, bare = f"{worst.place.file}:{worst.place.line}", moved.partition(" (")[0]
    file_name = line.rpartition("/")[2]
    fits = (f"{moved} {line}", f"{bare} {line}", f"{bare} {file_name}", bare)
    return _cut(next((front + text for text in fits if len(front + text) <= WIDTH), front + bare))


def times(verdict: Verdict) -> list[str]:
    """What another revision, measured beside it, says of the times that moved."""
    return [
        f"{metric.metric}: {metric.note}"
        for metric in verdict.metrics
        if metric.gated and metric.note and METRICS[metric.metric].kind == "time"
    ]


def places(verdict: Verdict) -> list[str]:
    """Where the metric that decided moved, a line each: site, phase, what happens there."""
    worst = verdict.worst
    return [f"  {happens(site)}" for site in worst.sites] if worst and not verdict.message else []


def _short(name: str, value: float) -> str:
    """A value in few characters, for the headline: 2.62 G; the evidence lines have it whole."""
    if METRICS[name].unit == "B" or abs(value) < 1e6:
        return format_value(name, value)
    scale, letter = (1e9, "G") if abs(value) >= 1e9 else (1e6, "M")
    return f"{value / scale:,.3g} {letter}" if abs(value) < 1000 * scale else f"{value:.3g}"


def change(found: MetricVerdict, digits: int = 2) -> str:
    """A metric's move: "step_ms 252.500 -> 263.100 (+4.20 %, limit 4.00 %)".

    ``digits`` are those of the percentages; a move too small for them is given in units.
    """
    name, unit = found.metric, METRICS[found.metric].unit
    if found.old is None or found.new is None:
        return f"{name} {format_value(name, found.new)}"
    show = _short if digits < 2 else format_value
    old, new = show(name, found.old), show(name, found.new)
    if old == new and found.old != found.new and unit == "B":  # the move is under the last digit
        old, new = f"{found.old:,.0f}", f"{found.new:,.0f} B"
    text = f"{name} {old} -> {new}"
    if found.limit_pct is not None and found.change_pct is not None:
        limit = f"limit {found.limit_pct:.{digits}f} %"
        return f"{text} ({found.change_pct:+.{digits}f} %, {limit})"
    if found.new == found.old:
        return text
    if found.change_pct is None or abs(found.change_pct) < 10**-digits or abs(found.new) < 1000:
        return f"{text} ({found.new - found.old:+,.0f} {unit})"
    return f"{text} ({found.change_pct:+.{digits}f} %)"


def evidence_lines(verdict: Verdict) -> list[str]:
    """What the verdict rests on, a line each, of any width."""
    lines = []
    for metric in _moved(verdict):
        unit = METRICS[metric.metric].unit
        line = f"  {metric.metric} [{unit}]: {change(metric)[len(metric.metric) + 1 :]}"
        line += f": {metric.status.value}, {metric.reason.value}"
        line += f" (waived until {metric.waived_until})" if metric.waived_until else ""
        lines.append(line)
        lines += [f"    {happens(site)}" for site in metric.sites]
        told = METRICS[metric.metric].kind == "time" or metric.status is Status.INCONCLUSIVE
        if metric.note and told:
            lines.append(f"    {metric.note}")
        elif metric.note and not metric.sites:
            lines.append(f"    moved: {metric.note}")
        if metric.noise_pct is not None and not verdict.against:
            difference = METRICS[metric.metric].kind == "difference"
            noise = "95 % interval over pairs +-" if difference else "standard error over launches"
            lines.append(f"    {noise} {metric.noise_pct:.2f} %")
    for shown in (m for m in verdict.metrics if m.metric in OF_RANKS and m.note):
        lines.append(f"  {shown.metric} {format_value(shown.metric, shown.new)}: {shown.note}")
    lines += [f"  waiver: {text}" for text in sentences(verdict)]
    if verdict.against and not verdict.message:
        lines.append(f"  compared with {verdict.against}, measured beside it")
    if verdict.recordings:
        count = verdict.recordings
        lines.append(f"  compared with {count} recording{'s' if count > 1 else ''}")
    return lines + [f"  | {line}" for line in _detail(verdict).rstrip().splitlines()]


def _detail(verdict: Verdict) -> str:
    """What a worker left behind. A traceback shows the user's frames; the evidence has them all."""
    if verdict.reason is Reason.BAD_WORKLOAD:  # the engine raised it, and the message says it all
        return users_frames(verdict.detail)
    if verdict.reason in (Reason.RAISED, Reason.OUT_OF_MEMORY):
        return users_frames(verdict.detail) or verdict.detail
    return verdict.detail


def happens(site: Site) -> str:
    """ "2 x .item(): loss.item() in step (model/workloads.py:88), forward, each micro-step"."""
    times = f"{site.count} x " if site.count > 1 else ""
    return times + site.described()


def _moved(verdict: Verdict) -> list[MetricVerdict]:
    if verdict.message:
        return []
    moved_machine = verdict.reason is Reason.MACHINE_MOVED
    gated = [
        m
        for m in verdict.metrics
        if m.gated and (m.status is not Status.SAME or moved_machine and m.note)
    ]
    return sorted(gated, key=lambda m: (m.rank, m.place is None))


def in_folder(baselines: str, option: str = "--baselines ") -> str:
    """How a command is told of a folder of baselines that is not the usual one; empty for that."""
    return f" {option}{shlex.quote(baselines)}" if baselines else ""


def next_steps(
    verdict: Verdict,
    evidence_path: str,
    python: str = "python",
    dirty: bool = False,
    baselines: str = "",
) -> list[str]:
    """Commands: accept it, or look closer. ``python`` is how this interpreter is called,
    ``baselines`` their folder where it is not the usual one.

    Evidence of a ``dirty`` tree cannot be accepted, and says what has to come first.
    """
    case = shlex.quote(verdict.case_id)
    first = "commit, measure again, then " if dirty else ""
    accept = f"{first}{python} -m stepguard accept {case}{in_folder(baselines)}"
    if verdict.against and verdict.status is not Status.SAME:
        steps = _against(verdict, case, python, baselines)
    elif verdict.status in (Status.SLOWER, Status.CHANGED, Status.NOT_COMPARABLE):
        steps = [f"accept: {accept} --reason '...'"]
    elif verdict.status is Status.FASTER:
        steps = [f"keep the gain: {accept} --reason '...'"]
    elif verdict.status is Status.NO_BASELINE:
        lacks_metric = verdict.reason is Reason.METRIC_NOT_RECORDED
        steps = [f"accept: {accept}" + (" --reason '...'" if lacks_metric else "")]
    elif verdict.status is Status.SAME:
        return []
    elif verdict.status is Status.BROKEN or verdict.reason is Reason.COUNT_UNSTABLE:
        steps = []  # a workload that raises is no matter of the machine
    else:
        steps = [f"see if the machine is fit: {python} -m stepguard doctor"]
    if verdict.worst is not None and verdict.worst.metric in SYNCS and verdict.worst.sites:
        steps.append("if it is meant: `# stepguard: allow sync: why`, see docs/host-syncs.md")
    return [*steps, f"look closer: {evidence_path}"]


def _against(verdict: Verdict, case: str, python: str, baselines: str) -> list[str]:
    """Nothing is there to accept: another revision is no baseline."""
    if verdict.status in (Status.SLOWER, Status.CHANGED, Status.FASTER):
        if verdict.waived_until:
            return []
        if verdict.status is Status.FASTER:
            return ["if it is meant: after the merge record with --perf-update, to keep the gain"]
        words = f"{case}{in_folder(baselines)} --reason '...'"
        again = f"pytest perf_tests{in_folder(baselines, '--perf-baselines=')}"
        accept = f"{python} -m stepguard accept {words}"
        waive = waive_commands(verdict, python, in_folder(baselines))
        return [
            *(f"if it is meant: {command}" for command in waive),
            f"after the merge, on main: {again}, then {accept}"
            + ("; then remove the waiver" if waive else ""),
        ]
    if verdict.reason is Reason.UNDECIDED:
        return ["give it more time: --perf-budget=MIN, or see docs/judge.md"]
    if verdict.reason is Reason.UNPROVEN:
        return ["judge it again, alone: name this one test"]
    if verdict.status is Status.NOT_COMPARABLE:
        return ["choose a revision that can, or leave out --perf-against: the baseline judges then"]
    if verdict.status is Status.UNFIT:
        return [f"see if the machine is fit: {python} -m stepguard doctor"]
    return []


def remarks(evidence: Evidence) -> list[str]:
    """What a verdict does not show of how it was measured, a sentence each."""
    lost = [block.tainted for launch in evidence.launches for block in launch.discarded]
    said = (
        [f"blocks that were disturbed and measured again: {len(lost)} ({lost[-1]})"] if lost else []
    )
    if Reason.TREE_CHANGED.value in evidence.dirty:
        said.append("files changed while it was measured: its launches may be of different code")
    return [f"{evidence.case_id}: {one}" for one in said]


def block(
    verdict: Verdict,
    evidence_path: str,
    python: str = "python",
    dirty: bool = False,
    baselines: str = "",
) -> str:
    """Everything about one failure, as pytest prints it under FAILURES or ERRORS."""
    told = next_steps(verdict, evidence_path, python, dirty, baselines)
    steps = [f"  {step}" for step in told]
    head = headline(verdict)
    full = [] if head.endswith(verdict.message) else [f"  {verdict.message}"]
    return "\n".join([head, *full, *evidence_lines(verdict), *steps])


def _cut(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."
