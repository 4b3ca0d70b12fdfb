"""Next steps after a verdict: commands, as the reader of a report types them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from stepguard.core.evidence import Evidence
from stepguard.core.permission import Permission
from stepguard.core.reason_sentences import STEPS_DIFFER, Undecided, Unstable
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.text import listed
from stepguard.core.verdict import NoComparison, Verdict
from stepguard.judge.pair_statistics import MIN_PAIRS, MOST_PAIRS, deciding_margins
from stepguard.judge.time_rules import decided_on_cpu
from stepguard.judge.waiver_rules import staying_undecided, suggested_sizes
from stepguard.machine.interpreter import called

ENDED = (
    "measure again; if a job's time limit ended the run: a longer limit, or a smaller --perf-budget"
)
NEW_LEVEL = " --reason '...'"
_ALARMS = (Reason.UNCONFIRMED, Reason.KERNELS_MOVED)  # without an answer
_ACCEPTED = (
    Status.SLOWER,
    Status.CHANGED,
    Status.NOT_COMPARABLE,
    Status.FASTER,
    Status.NO_BASELINE,
)


@dataclass(frozen=True)
class Commands:
    """Commands of a project, as the reader of its report types them."""

    folder: Path = Path()  # the folder where they are typed
    python: str = "python"  # how to call this interpreter from there
    baselines: str = ""  # the folder of baselines, unless it is the usual one

    def relative(self, path: Path) -> str:
        """Return a path as it is typed in the folder."""
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)

    def in_folder(self, option: str = "--baselines ") -> str:
        """Return the option for a folder of baselines; empty if it is the usual one."""
        return f" {option}{shlex.quote(self.baselines)}" if self.baselines else ""

    def called(self, words: str) -> str:
        """Return the command that runs a module with this project's interpreter."""
        return called(self.python, words)

    @property
    def measure(self) -> str:
        """Return the command that measures the suite."""
        return self.called(f"pytest perf_tests{self.in_folder('--perf-baselines=')}")

    def accept(self, case_id: str) -> str:
        """Return the command that records a case's evidence. A new level also needs a reason."""
        return self.called(f"stepguard accept {shlex.quote(case_id)}{self.in_folder()}")

    def waive(self, verdict: Verdict) -> str:
        """Return the command that waives all that fails, as it is; empty if one cannot be."""
        if not suggested_sizes(verdict):
            return ""
        case = shlex.quote(verdict.case_id)
        return self.called(f"stepguard waive {case}{self.in_folder()}{NEW_LEVEL} --days N")

    def unwaive(self, waiver: Permission) -> str:
        """Return the command that removes a waiver."""
        named = f"{shlex.quote(waiver.case)} {waiver.metric}{self.in_folder()}"
        return self.called(f"stepguard waive {named} --remove")

    @property
    def doctor(self) -> str:
        """Return the next step that checks the machine."""
        return "see if the machine is fit: " + self.called("stepguard doctor")


def next_steps(
    verdict: Verdict, evidence_path: str, commands: Commands, commit: str = ""
) -> list[str]:
    """Return what to do, the likeliest first. ``commit`` comes before the command that accepts."""
    # A comparison with a revision has no baseline into which evidence could be accepted.
    if verdict.whole and verdict.reason is Reason.UNDECIDED:
        steps = [ENDED]
    elif verdict.against and verdict.status is not Status.SAME:
        steps = _after_comparison(verdict, commands)
    elif verdict.status is Status.SAME:
        return []
    else:
        steps = _after_screen(verdict, commands, commit)
    if _lacks(verdict):
        ignored = 'write data=("PATH",) into the case'
        steps.append(f"if the other revision lacks files that git ignores, such as data: {ignored}")
    if verdict.outcome == "error" and verdict.status is not Status.NO_BASELINE:
        explain = commands.called(f"stepguard explain-code {verdict.reason}")
        steps.append(f"what that is: {explain}")
    return [*steps, f"look closer: {evidence_path}"]


def commit_first(evidence: Evidence) -> str:
    """Return what comes before the command that accepts the evidence; empty if nothing does.
    Evidence of a tree with uncommitted changes, or of a run that was ended, cannot be accepted.
    """
    if not evidence.of_no_commit:
        return "measure again, then " if evidence.faults else ""  # the run was ended
    named = f" {listed(evidence.dirty, 2)}" if evidence.dirty else ""
    # A script may have written them: each run of it would change them again.
    or_ignore = ", or add it to .gitignore" if named and evidence.tree_changed else ""
    return f"commit{named}{or_ignore}, measure again, then "


def _lacks(verdict: Verdict) -> bool:
    why = verdict.worst and verdict.worst.confirmed and verdict.worst.confirmed.why
    unconfirmed = isinstance(why, NoComparison) and why.reason is Reason.BASE_LACKS
    return verdict.reason is Reason.BASE_LACKS or unconfirmed


def acceptable(verdict: Verdict) -> bool:
    """Tell whether what was measured is offered to be accepted; in pairs after the merge."""
    possible = verdict.status in _ACCEPTED or verdict.reason in _ALARMS
    return possible and not (verdict.accepted or staying_undecided(verdict))


def _after_screen(verdict: Verdict, commands: Commands, commit: str) -> list[str]:
    if verdict.accepted:
        return ["this tree's baseline accepts it: review that diff, it judges once it is merged"]
    if verdict.status in (Status.SLOWER, Status.CHANGED) and (first := _decide_first(verdict)):
        return first
    if acceptable(verdict):
        # A case with recordings gets a new level, which accept() takes only with a reason.
        first_level = verdict.status is Status.NO_BASELINE and verdict.whole
        how = "keep the gain" if verdict.status is Status.FASTER else "accept"
        waive = commands.waive(verdict)
        return [
            *([commands.doctor] if verdict.reason in _ALARMS else []),
            f"{how}: {commit}{commands.accept(verdict.case_id)}{'' if first_level else NEW_LEVEL}",
            *([f"or for some days: {waive}"] if waive else []),
        ]
    if verdict.reason is Reason.COUNT_UNSTABLE:
        return _what_makes_launches_alike(verdict.figures)
    if verdict.status is Status.BROKEN:
        return []  # a workload that raises is no reason to check the machine
    return [commands.doctor]


def _after_comparison(verdict: Verdict, commands: Commands) -> list[str]:
    """Return what to do after an A/B comparison. There is no baseline to accept into."""
    if verdict.status in (Status.SLOWER, Status.CHANGED, Status.FASTER):
        if verdict.waived_until:
            return []
        if first := _decide_first(verdict):
            return first
        if any(map(decided_on_cpu, verdict.moved)):
            return [
                "no recording judges this time and no waiver passes it: if it is meant, an owner "
                "merges it as it is"
            ]
        waive = commands.waive(verdict)
        measure = commands.measure
        accept = commands.accept(verdict.case_id) + NEW_LEVEL
        then = "; then remove the waiver" if waive else ""
        alone = "if it is meant: no waiver passes other work; " if verdict.whole else ""
        return [
            *([f"if it is meant, in this change: {waive}"] if waive else []),
            f"{alone}after the merge, on main: {measure}, then {accept}{then}",
        ]
    if verdict.reason is Reason.UNDECIDED:
        return _what_decides(verdict, commands)
    if verdict.status is Status.NOT_COMPARABLE:
        return [
            "choose a revision or an interpreter that can, or leave out --perf-against: then the "
            "baseline judges, if it has the case; a new one is recorded on main, after the merge"
        ]
    return [commands.doctor] if verdict.status is Status.UNFIT else []


def _decide_first(verdict: Verdict) -> list[str]:
    """Return what to do about metrics that stay undecided; empty if there are none."""
    left = staying_undecided(verdict)
    if not left:
        return []
    names = listed([metric.metric for metric in left], 2)
    return [
        *_what_makes_launches_alike(*(metric.figures for metric in left)),
        f"while this is undecided, nothing is recorded and no waiver passes it: {names}",
    ]


def _what_makes_launches_alike(*figures: object) -> list[str]:
    """Return how to make the steps of launches alike; empty if no launches disagree."""
    known = (one.why for one in figures if isinstance(one, Unstable | Undecided))
    if not any(why.startswith(STEPS_DIFFER) for why in known):
        return []
    return ["let the same steps do the same in each launch: fix seeds, let no clock decide"]


def _what_decides(verdict: Verdict, commands: Commands) -> list[str]:
    pairs = verdict.worst.pairs if verdict.worst else None
    if pairs is None or (pairs.most and pairs.decision.pairs < MOST_PAIRS):
        few = pairs is not None and pairs.decision.pairs < MIN_PAIRS
        slower = pairs is not None and pairs.decision.estimate_pct > pairs.margins.matter_pct
        least = f" (a slower mean is SLOWER after {MIN_PAIRS} pairs at the earliest)"
        return [f"give it more time: --perf-budget=MIN{least if few and slower else ''}"]
    smallest = pairs.decision.smallest_detectable_pct
    finds = f"{MOST_PAIRS} pairs of this noise find {smallest:.2f} %"
    if smallest <= pairs.margins.matter_pct:
        return [f"measure again: {finds} in 95 of 100 runs"]
    wider = deciding_margins(pairs.decision.sd_pct, pairs.margins, pairs.alpha)
    margins = f"margins_pct=({wider.ignore_pct:g}, {wider.matter_pct:g})"
    return [f"no further pair decides, {finds}: set {margins} in the case", commands.doctor]
