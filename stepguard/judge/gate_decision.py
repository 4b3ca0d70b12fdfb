"""The gate: it passes or fails a run by the run's document and the base branch's recordings. Pure.

The document was written where the change's own code ran. So the gate takes from the base what the
base knows: which cases exist, what each gates, what it was compared with, what is waived. A case
that is not shown to pass fails.
"""

from stepguard.core.baseline import Entry
from stepguard.core.device import GPU, is_gpu
from stepguard.core.margins import margins_of
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.run_document import Problem, ResultDocument, RunDocument
from stepguard.judge.guard import guard
from stepguard.judge.guarded_run import Base, CaseResult, Door, Ending, Run, RunCase, Tree


def expected(document: RunDocument, base: Base) -> dict[str, Entry]:
    """Return the baselines, by case, of the cases that the run must have measured: those that the
    base recorded on such a machine, for at most as many GPUs as it has. On a new kind of GPU they
    are the cases of all recorded GPUs. Extended cases and cases of several nodes are left out.
    """
    gpus = max(base.gpus, len(document.gpus))
    known = dict(base.recorded.get(document.machine, {}))
    if not known and document.gpus:
        others = base.recorded.values()
        known = {
            name: entry
            for cases in others
            for name, entry in cases.items()
            if is_gpu(entry.case["device"])
        }
    return {
        name: entry
        for name, entry in known.items()
        if not entry.extended
        and entry.case.get("nodes", 1) == 1
        and (not is_gpu(entry.case["device"]) or entry.case["world_size"] <= gpus)
    }


def gate(document: RunDocument, base: Base) -> list[Problem]:
    """Return why the run does not pass; empty if it does."""
    return guard(run_of(document, base))


def run_of(document: RunDocument, base: Base) -> Run:
    """Return the run that the document describes, with what the base expects of it."""
    entries = expected(document, base)
    return Run(
        door=Door.GATE,
        expected=entries,
        must_measure=tuple(entries),
        machine=document.machine,
        tree=Tree(document.commit, "the document names none", document.dirty),
        began=(document.commit, tuple(document.dirty)),
        against=document.against,
        against_commit=document.base_commit,
        states={case.case: case for case in document.cases if case.case},
        cases=[
            _case(result, entries.get(result.case), bool(document.against))
            for result in document.results
        ],
        ending=Ending(
            passes=document.passed,
            strict=document.strict,
            end=document.end,
            gpus=len(document.gpus),
        ),
        problems=document.problems,
        base=base,
    )


def _case(result: ResultDocument, entry: Entry | None, in_pairs: bool) -> RunCase:
    """Return a case that was measured. Its device and ranks are those that the base recorded."""
    known = entry.case if entry else {}
    device, ranks = str(known.get("device", GPU)), int(known.get("world_size", 1))
    differences = [name for name, metric in METRICS.items() if metric.kind == "difference"]
    # Pairs do not measure differences. The step time stands for them (``judged()``).
    covered = differences if in_pairs and JUDGED_TIME in result.gates else []
    return RunCase(
        id=result.case,
        parameters=result.parameters,
        device=device,
        ranks=ranks,
        gates=result.gates,
        covered=covered,
        margins=margins_of(result.margins_pct, device),
        result=CaseResult(
            commit=result.commit,
            dirty=result.dirty,
            tree_changed=result.tree_changed,
            verdict=result.verdict,
            headline=result.text.headline,
            judged_by=result.judged_by,
        ),
    )
