"""Help on reasons and problems: what each code means and what to do about it, section by section of
docs/reason-codes.md, which is made of it. In Markdown; links are the page's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stepguard.document import ProblemCode
from stepguard.reasons import Reason


@dataclass(frozen=True)
class Help:
    """What a code means, and what the reader does about it."""

    means: str
    remedy: str


@dataclass(frozen=True)
class Section:
    """The reasons of a section of the page, and what stands above them."""

    title: str
    codes: Mapping[Reason, Help]
    begins: str = ""


_AGAINST_RECORDINGS: Mapping[Reason, Help] = {
    Reason.EQUAL: Help(
        "A counter is exactly what the newest recording holds.",
        "Nothing.",
    ),
    Reason.NOT_JUDGED: Help(
        "Only of metrics, never of a case: information, shown beside what is judged.",
        "Nothing.",
    ),
    Reason.WITHIN_LIMIT: Help(
        "A time or a difference is inside the limit, or a counter rose by no more than its slack.",
        "Nothing.",
    ),
    Reason.BEYOND_LIMIT: Help(
        "A time or a difference is outside the limit.",
        "`SLOWER`: it was confirmed in an A/B comparison with the recording's commit, or is "
        "beyond 4 % and the line under it says `unconfirmed` and why; look at what changed. "
        "`FASTER`: accept it, or the gain can be lost unseen.",
    ),
    Reason.UNCONFIRMED: Help(
        "A time is beyond the screen's limit but within 4 %, and no pairs with the recording's "
        "commit told code from machine; the note says why.",
        "Give the pairs what they lacked: the commit (`git fetch --unshallow`), or a larger "
        "`--perf-budget`.",
    ),
    Reason.KERNELS_MOVED: Help(
        "The step is within the limit, but kernels, or gaps between them, take 0.5 % of it more "
        "than in the newest recording with a profile, apart from what all kernels of their class "
        "share. Pairs with the recording's commit were measured where they could be, and did not "
        "say `SLOWER`; where time ended before they decided, and all that they had was beyond the "
        "ignore margin, that is `UNDECIDED`. Printed, though it passes.",
        "Look at what the lines name.",
    ),
    Reason.WITHIN_LEVEL: Help(
        "A time is beyond the screen's limit in the good direction, and no pairs with the "
        "recording's commit confirmed it: no gain is claimed.",
        "Nothing.",
    ),
    Reason.COUNTER_ROSE: Help(
        "The step pays more: launches, host syncs, copies, memory, graphs, graph breaks, "
        "recompiles.",
        "Read the lines under it, which name the places that are new, or else what rose. Undo it, "
        "or accept it with a reason. Host syncs and their candidates: "
        "[host-syncs.md](host-syncs.md).",
    ),
    Reason.COUNTER_FELL: Help(
        "The step pays less.",
        "Accept it, so that the new count becomes the bound.",
    ),
    Reason.WORK_MOVED: Help(
        "The step is not the same work: other FLOPs, tokens, operators or exchanged bytes, more "
        "or fewer. Of other tokens or FLOPs nothing is compared but counters: times of other "
        "work say nothing. `NOT COMPARABLE` is a step of other tokens than were recorded.",
        "Fewer is no gain by itself: a step that skips work is fast. If the new work is meant, "
        "accept it with a reason, or give the case a new name; after an A/B comparison record it "
        "after the merge.",
    ),
}

_IN_PAIRS: Mapping[Reason, Help] = {
    Reason.BEYOND_MARGIN: Help(
        "The step time's interval over the pairs is beyond the ignore margin. The cause is the "
        "code, since both revisions ran on this machine in alternate blocks.",
        "`SLOWER`: look at what changed between the two.",
    ),
    Reason.WITHIN_MARGINS: Help(
        "The interval is inside the matter margins.",
        "Nothing.",
    ),
    Reason.IDENTICAL_STEP: Help(
        "The step is known to be the other revision's: kernels in order with their grids, "
        "generated code, operators with shapes, strides and types, copies, collectives, counters "
        "and settings of libraries; the GPU bounds it, and one pair (or two to four, on a noisy "
        "machine) shows no difference ([judge.md](judge.md#a-step-that-is-the-same)).",
        "Nothing.",
    ),
    Reason.UNDECIDED: Help(
        "The step time's interval over the pairs is neither beyond the ignore margin nor inside "
        "the matter margins, or HEAD is slower by more than these with the pairs that were "
        "disturbed; and the pairs or `--perf-budget` are spent.",
        "A larger budget; or, once the last of the plan's analyses is made, "
        "[calibrate](judge.md#a-machines-own-noise): the machine is too noisy for these margins.",
    ),
    Reason.NO_SLOWDOWN: Help(
        "On a CPU, in a case that gates no time: two pairs or more show no slowdown beyond the "
        "ignore margin. It is not as much as `WITHIN_MARGINS` says.",
        "Nothing.",
    ),
    Reason.MAYBE_SLOWER: Help(
        "On a CPU, in a case that gates no time: eight pairs are slower on average by more than "
        "the ignore margin, and not beyond doubt. Printed, though it passes: a busy CPU does that.",
        "If you suspect the code, measure again on an idle machine, or gate `step_ms` in the case.",
    ),
    Reason.EXPECTED: Help(
        "The metric is `SLOWER` or `CHANGED` beside the other revision, and a commit of the range "
        "declares it ([ci.md](ci.md#a-pull-request-is-red)). Printed, though it passes.",
        "Read the reason; who approves the pull request approves it.",
    ),
    Reason.UNPROVEN: Help(
        "`SLOWER` by its own pairs, but not among all cases of the run (Benjamini and Hochberg at "
        "1 %).",
        "Judge it again, alone: that takes more pairs; or, once the last of the plan's analyses "
        "is made, as of `UNDECIDED`.",
    ),
    Reason.LATE_SLOWDOWN: Help(
        "In every launch steps are slower from some step on; the note says which, and by how "
        "much. `SLOWER` if the other revision's are not; else a notice, also against recordings, "
        "which do not know single steps.",
        "Look for what grows or starts with the number of steps: a list, a cache, a counter, a "
        "schedule.",
    ),
    Reason.PERIODIC_SLOWDOWN: Help(
        "In every launch steps are slower at one interval, or one step is; the note says which, "
        "and by how much. `SLOWER` or a notice as of `LATE_SLOWDOWN`.",
        "Look for what happens every so many steps: logging, a checkpoint, `empty_cache`.",
    ),
    Reason.BASE_LACKS: Help(
        "The other revision has no such factory or parameter, or its step raised; the message "
        "says which.",
        "Compare with a revision that can, or use the stored baseline.",
    ),
    Reason.TIME_DECIDES: Help(
        "On a GPU: other work than the other revision's, like other operators, and the step time "
        "is judged by pairs. Printed, though it passes.",
        "Read what moved; it explains the time.",
    ),
    Reason.PAID_FOR: Help(
        "On a GPU: a cost rose, and the step is `FASTER` by pairs all the same. Printed, though "
        "it passes.",
        "Decide whether the gain is worth the memory, the copies or the syncs.",
    ),
    Reason.MACHINE_MOVED: Help(
        "The stored baseline says SLOWER or FASTER, and the recording's own code, measured in "
        "alternate blocks with this one, is as slow or as fast: the machine changed. Printed on "
        "every run, though it passes.",
        "Leave the code alone. Find what is different about the machine; record anew if it stays "
        "so.",
    ),
    Reason.MACHINE_TOO_FAR: Help(
        "As `MACHINE_MOVED`, but the time moved by more than 15 %, which other cards and clocks "
        "do not do ([judge.md](judge.md#what-it-does-not-see)).",
        "`python -m stepguard doctor`; see that nothing else runs there. Else the recording is "
        "not of the commit that it names: look at the history of its baseline file.",
    ),
}

_NOTHING_TO_COMPARE: Mapping[Reason, Help] = {
    Reason.NOT_RECORDED: Help(
        "No file for this kind of machine, or no entry for this case.",
        "`pytest perf_tests --perf-update-new`, or `python -m stepguard accept CASE`.",
    ),
    Reason.METRIC_NOT_RECORDED: Help(
        "The recording is older than the metric, or lacks the parts that it is made of.",
        "`python -m stepguard accept CASE --reason '...'`.",
    ),
    Reason.OTHER_SOFTWARE: Help(
        "Another torch, CUDA, cuDNN, Triton, driver branch, CPU architecture or steering variable "
        "than every recording of the newest level; the message says which.",
        "Install what was recorded, or accept: the first recording under new software joins that "
        "level, with a reason if it is slower.",
    ),
    Reason.OTHER_PARAMETERS: Help(
        "The case's parameters, device or world size were edited.",
        "Give the case a new name, or accept with a reason.",
    ),
}

_NOT_DECIDED: Mapping[Reason, Help] = {
    Reason.NOT_STEADY: Help(
        "The step time still drifted when the warm-up's time was over, something was compiled or "
        "allocated on the GPU again and again, which ends it early, or a graph was compiled "
        "within a timed block. No launch follows one that did not get steady.",
        "`python -m stepguard doctor`; look for a workload that allocates, recompiles or waits "
        "for data. What compiles late: call it once in the factory, or in the first step.",
    ),
    Reason.TOO_NOISY: Help(
        "The launches differ so much that the limit cannot be told from noise, and more launches "
        "did not help; or the pairs of a difference do.",
        "Look for what else runs on the machine; then measure again.",
    ),
    Reason.COUNT_UNSTABLE: Help(
        "Two steps gave two counts, the eager step does not fit in memory, or the trace lacks "
        "what a count needs.",
        "Make the step deterministic, or take the metric out of the case's `gates`.",
    ),
}

_MACHINE_UNFIT: Mapping[Reason, Help] = {
    Reason.FOREIGN_PROCESS: Help(
        "Another process is on the GPU, or memory is in use that belongs to no process in sight. "
        "Or another run of stepguard, of whichever user, measured on it for longer than 15 min; "
        "the message says which process and since when: runs alternate case by case, so only a "
        "run that hangs, or several in a queue, last so long. Or the lock file "
        "`/tmp/stepguard-<uuid>.lock` cannot be used.",
        "Wait for it or end it, or choose a GPU with `CUDA_VISIBLE_DEVICES`.",
    ),
    Reason.THROTTLED: Help(
        "Heat, a power brake or a hardware slowdown slowed the clocks in block after block. The "
        "ordinary power cap does not count.",
        "Let it cool; check fans and power.",
    ),
    Reason.MACHINE_UNREADABLE: Help(
        "NVML gave no telemetry during a block, or a rank ran on a GPU that NVML does not show in "
        "that place.",
        "`nvidia-smi`; `python -m stepguard doctor`.",
    ),
    Reason.RANKS_DIFFER: Help(
        "A rank has another torch, CUDA, cuDNN, NCCL, Triton, Python, kind of GPU or steering "
        "variable than rank 0.",
        "Run all ranks on GPUs of one kind, with the same software on every node.",
    ),
    Reason.TOO_FEW_GPUS: Help(
        "The case has more ranks than the machine has GPUs.",
        'Use another machine, or deselect it: `-m "not multi_gpu and not extended"`.',
    ),
}

_MEASUREMENT_BROKEN: Mapping[Reason, Help] = {
    Reason.NOTHING_MEASURED: Help(
        "No launch, fewer launches than the case asks for, or not in pairs; a launch without a "
        "block, or a block without a time.",
        "Read the logs beside the evidence.",
    ),
    Reason.METRIC_MISSING: Help(
        "A metric that the case gates was not measured, or it gates none.",
        "Take it out of `gates`, or find out why: it is never skipped in silence.",
    ),
    Reason.FASTER_THAN_PHYSICS: Help(
        "The step is quicker than its fewest FLOPs at the GPU's highest clock.",
        "The workload does not do what it says, or does it after the clock is read.",
    ),
    Reason.CLOCKS_DISAGREE: Help(
        "Wall clock and CUDA events of a block differ by more than 0.5 % and by more than 1 ms, "
        "or the ranks' clock and the host's by more than 5 % and by more than 500 ms, in two "
        "blocks of a launch: the first is measured again.",
        "Work runs on a stream that the events do not see, the host was stopped, or the workload "
        "replaced the rank's clock.",
    ),
    Reason.CONTRADICTION: Help(
        "The step without exchange between ranks takes longer than the step as it is, by more "
        "than 0.5 % and the interval.",
        "See what the step does where `gradient_sync` is False: it is more than to exchange "
        "nothing.",
    ),
    Reason.RAISED: Help(
        "The workload raised; the traceback from the factory inwards is in the report, the whole "
        "of it in the evidence.",
        "Fix it.",
    ),
    Reason.BAD_WORKLOAD: Help(
        "The factory cannot be imported or called with the case's parameters, or what it returned "
        "has no `step` or `tokens_per_step`, or no `gradient_sync` where exposed communication is "
        "gated; or it changes a variable that torch reads as it is imported "
        "(`TORCHINDUCTOR_...`), which happens before.",
        "The message names what is missing, or what to set where.",
    ),
    Reason.TREE_CHANGED: Help(
        "A file of the tree was written, or another commit checked out, during an A/B comparison, "
        "even if it was restored since: pairs may be of different code.",
        "Measure again, and leave the tree alone meanwhile.",
    ),
    Reason.OTHER_TREE: Help(
        "A rank imported a module of the factory's package from outside of the measured tree, "
        "from another clone or an installed copy; or any module that this tree has in another "
        "form, or that differs between the two revisions of an A/B comparison; or one from the "
        "other revision's tree. The message names module and file.",
        "Take the other tree off `PYTHONPATH`; uninstall what is installed, in editable mode or "
        "not. What lies in `src/` is then imported by a relative `PYTHONPATH=src`, which every "
        "tree reads as its own.",
    ),
    Reason.OUT_OF_MEMORY: Help(
        "`torch.OutOfMemoryError` in a rank; of the host's memory `MemoryError`, or torch's CPU "
        "allocator that cannot allocate.",
        "A smaller batch; or somebody else holds the memory.",
    ),
    Reason.KILLED: Help(
        "A rank died of a signal, e.g. by the kernel's out-of-memory killer, or ended by itself "
        "in mid-work, in which case the others raise and are its victims. Or the process that "
        "torchrun's engine runs in ended while its ranks were at work.",
        "`dmesg`, and `agent.log` beside the evidence; the message names rank, step and phase.",
    ),
    Reason.NO_ANSWER: Help(
        "A rank did not answer in time; every thread's stack is in the report.",
        "The message says where. Of several ranks most often a hang, in different collectives. Of "
        "one, a step that waits for what never comes, or one too large for the machine: the first "
        "one, its compilation included, has 600 s, a launch the case's `time_limit_s`.",
    ),
    Reason.NOT_STARTED: Help(
        "The ranks never said hello.",
        "`agent.log` and `stderr-0.log` beside the evidence; usually an import.",
    ),
}

OF_RUNS: Mapping[ProblemCode, Help] = {
    ProblemCode.REFUSED: Help(
        "A usage error: nothing was measured.",
        "The message says it.",
    ),
    ProblemCode.NOT_FINISHED: Help(
        "The run was interrupted, or pytest failed inside; or a test ended it with status 0 "
        "though its case fails.",
        "Run it again; else see the log.",
    ),
    ProblemCode.NOTHING_MEASURED: Help(
        "No selected case came to a result; in a strict run also `--collect-only`, `--fixtures` "
        "and `--fixtures-per-test`.",
        "See why each was skipped or failed. To collect alone, add `--perf-no-strict`.",
    ),
    ProblemCode.NOT_RECORDED: Help(
        "`--perf-update` could not record what it measured.",
        "The message says it.",
    ),
    ProblemCode.CASE_MISSING: Help(
        "A guarded case was deleted, skipped, deselected, or never reached.",
        "Measure it; or say what is meant with `--perf-select`; or remove it from the baseline as "
        "well.",
    ),
    ProblemCode.NO_CASES: Help(
        "No performance test was collected; of the gate: the base has no recording for this "
        "machine.",
        "Call pytest where they are; record first.",
    ),
    ProblemCode.FEWER_GATES: Help(
        "A case gates less than its recording has, has wider margins (`margins_pct`) than were "
        "recorded, or its verdict says nothing of a gate.",
        "Gate it again, or narrow its margins; or record the case as it is: `--perf-update "
        "--perf-select=CASE`.",
    ),
    ProblemCode.OTHER_CASE: Help(
        "A test measured another case than it declares, or one with other parameters than are "
        "recorded.",
        "`perf(case)` with the case that the test is given; a changed workload is another case, "
        "with a name of its own.",
    ),
    ProblemCode.EXPECTED_TO_FAIL: Help(
        "A mark `xfail` on a case.",
        "`python -m stepguard waive`: it has a size, a day and a reason.",
    ),
    ProblemCode.RECORDS: Help(
        "`--perf-update` in a gate.",
        "Record in a run of its own, with `--perf-no-strict`.",
    ),
    ProblemCode.DIRTY: Help(
        "What was measured is in no commit: there is no git, no repository or no commit, files "
        "differ from the commit, or a file in `baselines/` is in none, or only a link.",
        "Commit it, or let git ignore what is no source; the message names the files, or has the "
        "command.",
    ),
    ProblemCode.TREE_CHANGED: Help(
        "Files or the commit changed while a case was measured, or since the run began.",
        "Measure again, and leave the tree alone meanwhile.",
    ),
    ProblemCode.FOREIGN_COMMIT: Help(
        "The gate: the document is of another commit.",
        "Measure the commit that is to be merged.",
    ),
    ProblemCode.FEWER_GPUS: Help(
        "The gate: fewer GPUs than the machine should have.",
        "`--perf-require-gpus=N`; `python -m stepguard doctor`.",
    ),
    ProblemCode.NOT_STRICT: Help(
        "The gate: the run was not strict.",
        "`--perf-strict`, or `CI` is set.",
    ),
    ProblemCode.NOT_PASSED: Help(
        "The gate: pytest failed though no case did.",
        "See its log.",
    ),
    ProblemCode.FAILED: Help(
        "The gate: a case does not pass, or is waived where the base has no such waiver.",
        "Its verdict says it.",
    ),
    ProblemCode.OTHER_BASELINE: Help(
        "Judged by what the base has not recorded, or against itself.",
        "`--perf-base=BRANCH`; see which baselines the change edits.",
    ),
}

OF_REASONS = (
    Section("The comparison was made", _AGAINST_RECORDINGS),
    Section(
        "An A/B comparison was made",
        _IN_PAIRS,
        "With `--perf-against`, or when a stored baseline's SLOWER or FASTER is confirmed. The "
        "rules are in\n`stepguard/judge/ab/decision.py` and `stepguard/judge/ab/confirm.py`; "
        "[judge.md](judge.md) explains them.",
    ),
    Section("There is nothing to compare with", _NOTHING_TO_COMPARE),
    Section("It could not be decided", _NOT_DECIDED),
    Section("The machine is not fit", _MACHINE_UNFIT),
    Section("The measurement is broken", _MEASUREMENT_BROKEN),
)
