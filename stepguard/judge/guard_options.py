"""The guard's conditions on a run's options, tree, machine and environment. Pure.

Code of the tree, or the command, may set a variable for both sides of a pair. A comparison of the
two sides does not show that. So the environment is also compared with the recording's.
"""

from collections.abc import Iterator, Sequence

from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.shared_sentences import changed_in_pytest, other_variables
from stepguard.core.status import Status
from stepguard.core.text import revision, short_hash
from stepguard.judge.comparable import UNSET, Tag, comparable, conditions_recorded
from stepguard.judge.guarded_run import Condition, Door, Problems, Run, Tree

SHOW_ONLY = ("--collect-only", "--fixtures", "--fixtures-per-test")
RECORDING = ("--perf-update", "--perf-update-new")
JUDGING = ("--perf-against", "--perf-base", "--perf-baselines")
CONFIRMING = ("--perf-budget",)
_NONE = "no variable that steers"


def _own_problems(run: Run) -> Problems:
    yield from run.problems


def _only_shows(run: Run) -> Problems:
    for option in run.options:
        if option.name in SHOW_ONLY:
            yield Problem(ProblemCode.NOTHING_MEASURED, f"{option.name} measures nothing")


def _against_itself(run: Run) -> Problems:
    commit = run.against_commit
    itself = run.against == "HEAD" if commit is None else commit in ("", run.began[0])
    if run.against and itself:
        text = f"--perf-against={run.against} judges the tree against itself, which is always the "
        text += "same"
        yield Problem(ProblemCode.OTHER_BASELINE, text)


def _other_base(run: Run) -> Problems:
    assert run.base is not None
    commit = run.against_commit or ""
    if run.against and commit not in ("", run.began[0], run.base.against):
        text = f"judged against {revision(run.against, commit)}, which may be of the branch "
        text += "itself: if it is the base, say so by gate --against COMMIT"
        yield Problem(ProblemCode.OTHER_BASELINE, text)


def _untyped(run: Run, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for option in run.options:
        if option.name in names and not option.typed:
            said = f"{option.name}={option.value}" if option.value else option.name
            yield said, f"{said} comes from settings or PYTEST_ADDOPTS"


def _judge_of_settings(run: Run) -> Problems:
    for _, origin in _untyped(run, JUDGING):
        text = f"{origin}, and may be of this branch, or of a slower level: name what judges in "
        yield Problem(ProblemCode.OTHER_BASELINE, text + "the command itself")


def _pairs_of_settings(run: Run) -> Problems:
    for _, origin in _untyped(run, CONFIRMING):
        text = f"{origin}, and may leave an alarm without the pairs that confirm it: say it in the "
        yield Problem(ProblemCode.OTHER_BASELINE, text + "command")


def _records(run: Run) -> Problems:
    for option in run.options:
        if option.name in RECORDING:
            text = f"{option.name} passes what it records: record in a run of its own"
            yield Problem(ProblemCode.RECORDS, text)
    for case in run.cases:
        # With --perf-append a case that is `same` adds a recording, and still passes.
        verdict = case.result.verdict if case.result else None
        if verdict and verdict.recorded and verdict.status is not Status.SAME:
            text = "its verdict is that it was recorded"
            yield Problem(ProblemCode.RECORDS, text, case.id)


def _not_strict(run: Run) -> Problems:
    assert run.ending is not None
    if not run.ending.strict:
        yield Problem(ProblemCode.NOT_STRICT, "the run was not strict: --perf-strict")


def _no_commit(run: Run) -> Problems:
    if run.tree and not run.tree.commit:
        text = f"the measured code has no commit: {run.tree.no_commit}"
        yield Problem(ProblemCode.DIRTY, text)


def _foreign_commit(run: Run) -> Problems:
    assert run.base is not None
    if run.began[0] != run.base.commit:
        measured = short_hash(run.began[0]) or "no commit"
        text = f"{measured} was measured, and not {short_hash(run.base.commit)}"
        yield Problem(ProblemCode.FOREIGN_COMMIT, text)


def _dirty(run: Run) -> Problems:
    tree = run.tree or Tree("")
    for path in tree.dirty:
        text = f"{path} differs from the commit: commit it, or add an output to .gitignore"
        yield Problem(ProblemCode.DIRTY, text, file=path)
    for path in tree.left_out:
        text = f"{path} is in the commit, and a sparse checkout leaves it out: "
        text += f"git sparse-checkout add {path.rpartition('/')[0] or '.'}"
        yield Problem(ProblemCode.DIRTY, text, file=path)


def _other_environment(run: Run) -> Problems:
    """Yield a problem for each thing that launches inherit and that changed since pytest was
    started. Then yield one for each case in pairs whose environment differs from the newest
    recording's.
    """
    for change in run.changed:
        yield Problem(ProblemCode.OTHER_ENVIRONMENT, changed_in_pytest(change))
    for case in run.cases:
        entry, base = run.expected.get(case.id), case.result.base if case.result else None
        if entry is None or base is None:
            continue
        for other in comparable(conditions_recorded(entry.newest), base, (Tag.ENVIRONMENT,)):
            was, now = (_NONE if side == UNSET else side for side in (other.old, other.new))
            text = other_variables(was, now, run.recording_of(case.id))
            yield Problem(ProblemCode.OTHER_ENVIRONMENT, text, case.id)


def _fewer_gpus(run: Run) -> Problems:
    assert run.base is not None and run.ending is not None
    if run.ending.gpus < run.base.gpus:
        text = f"{run.ending.gpus} GPUs measured, {run.base.gpus} should have"
        yield Problem(ProblemCode.FEWER_GPUS, text)


_IS_TOLD = "only the gate is told by its own command what should have been measured"
_CHECKS_JUDGE = "the gate sees what judged: it has the commit's name and the recordings' digests"
EXPECTS_ALL = "the gate expects every case of the base, whatever the run selected"
_SAYS_NOT_WHERE = "a document does not say where an option comes from; a strict run was refused it"
_READS_PROCESS = "only pytest sees what its process was started with, and its launches had"

CONDITIONS = (
    Condition(_own_problems, Door.GATE, "the run's own, which pytest has said"),
    # Conditions on what was asked for.
    Condition(_only_shows, Door.PYTEST, EXPECTS_ALL),
    Condition(_against_itself),
    Condition(_other_base, Door.GATE, _IS_TOLD),
    Condition(_judge_of_settings, Door.PYTEST, _CHECKS_JUDGE),
    Condition(_pairs_of_settings, Door.PYTEST, _SAYS_NOT_WHERE),
    Condition(_records),
    Condition(_not_strict, Door.GATE, "pytest asks of strict runs alone"),
    # Conditions on what was measured.
    Condition(_no_commit),
    Condition(_foreign_commit, Door.GATE, _IS_TOLD),
    Condition(_dirty),
    Condition(_other_environment, Door.PYTEST, _READS_PROCESS),
    Condition(_fewer_gpus, Door.GATE, _IS_TOLD + "; pytest has --perf-require-gpus"),
)
