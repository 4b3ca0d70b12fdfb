"""Help on reasons: what each means, and what to do about it. docs/reason-codes.md is made from it,
section by section. The texts are Markdown, with the page's links.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stepguard.core.reasons import Reason


@dataclass(frozen=True)
class Help:
    """What a reason means, and what the reader does about it."""

    means: str
    remedy: str


@dataclass(frozen=True)
class Section:
    """The reasons of one section of the page, and the text above them."""

    title: str
    codes: Mapping[Reason, Help]
    begins: str = ""


_AGAINST_RECORDINGS: Mapping[Reason, Help] = {
    Reason.EQUAL: Help(
        "A counter is exactly what the newest recording holds.",
        "Nothing.",
    ),
    Reason.NOT_JUDGED: Help(
        "Information about a metric, shown beside what is judged. It is no reason of a whole case.",
        "Nothing.",
    ),
    Reason.WITHIN_LIMIT: Help(
        "A time or a difference is inside the limit, or a counter rose by no more than its slack.",
        "Nothing.",
    ),
    Reason.BEYOND_LIMIT: Help(
        "A time or a difference is outside the limit.",
        "`SLOWER`: look at what changed. Pairs with the recording's commit confirmed it, or it is "
        "beyond 4 % and the line under it says `unconfirmed` and why. `FASTER`: accept it, or the "
        "gain can be lost unseen.",
    ),
    Reason.UNCONFIRMED: Help(
        "A time is outside the limit, by 4 % at most. Pairs with the recording's commit could not "
        "tell slower code from a slower machine; the note says why.",
        "Give the pairs what they lacked: the commit (`git fetch --unshallow`), or a larger "
        "`--perf-budget`.",
    ),
    Reason.KERNELS_MOVED: Help(
        "The step is within the limit. But its kernels, or the gaps between them, take 0.5 % of "
        "the step more than in the newest recording with a profile. What all kernels of a class "
        "share does not count. Pairs with the recording's commit did not say `SLOWER`, or could "
        "not be measured. If they ended undecided and beyond the ignore margin, it is "
        "`UNDECIDED`. Printed, though it passes.",
        "Look at what the lines name.",
    ),
    Reason.COUNTER_ROSE: Help(
        "The step pays more: launches, host syncs, copies, memory, graphs, graph breaks, "
        "recompiles.",
        "Read the lines under it: they name the new places, or else what rose. Undo it, or accept "
        "it with a reason. Host syncs and their candidates: [host-syncs.md](host-syncs.md).",
    ),
    Reason.COUNTER_FELL: Help(
        "The step pays less; or operators went along with that: views, and reads of a number that "
        "the host no longer waits for.",
        "Accept it, so that the new count becomes the bound.",
    ),
    Reason.WORK_MOVED: Help(
        "The step does not do the same work: it has more or fewer FLOPs, tokens, operators or "
        "exchanged bytes. If its tokens or FLOPs differ, only counters are compared: times of "
        "other work say nothing. A step with other tokens than recorded is `NOT COMPARABLE`.",
        "Fewer is no gain by itself: a step that skips work is fast. If the new work is meant, "
        "accept it with a reason, or give the case a new name. After an A/B comparison record it "
        "after the merge.",
    ),
}

_IN_PAIRS: Mapping[Reason, Help] = {
    Reason.BEYOND_MARGIN: Help(
        "The step time's interval over the pairs is beyond the ignore margin. The code is the "
        "cause: both revisions ran on this machine in alternate blocks.",
        "`SLOWER`: look at what changed between the two.",
    ),
    Reason.WITHIN_MARGINS: Help(
        "The interval is inside the matter margins.",
        "Nothing.",
    ),
    Reason.IDENTICAL_STEP: Help(
        "The step is known to be the other revision's: the same kernels in order with their "
        "grids, generated code, operators with shapes, strides and types, copies, collectives, "
        "counters and settings of libraries. The GPU bounds it, and one pair (two to four on a "
        "noisy machine) shows no difference ([judge.md](judge.md#a-step-that-is-the-same)).",
        "Nothing.",
    ),
    Reason.CHANGED_KERNELS: Help(
        "Only some kernels differ, and the GPU bounds the step. What these kernels take longer, or "
        "less long, is beyond 0.05 % of the step (`SLOWER` after one pair: 0.5 %), or for `same` "
        "within 0.125 %. The other kernels keep their pace, and the steps do not contradict it "
        "([judge.md](judge.md#kernels-against-kernels)).",
        "`SLOWER`: look at the kernel that the first line names.",
    ),
    Reason.UNDECIDED: Help(
        "All pairs are measured, or the time of `--perf-budget` is over. The step time's interval "
        "over the pairs is neither beyond the ignore margin nor inside the matter margins. Or HEAD "
        "is slower by more than the matter margin once the disturbed pairs are counted. Or HEAD "
        "alone has slow steps within its launches, which the pairs neither prove nor exclude. Or "
        "the run was ended while it measured the case (Ctrl-C, SIGTERM, SIGHUP): what was known by "
        "then is shown and kept, a counter that moved decides, and the case never passes.",
        "A larger budget; or, after 24 pairs, "
        "[margins that fit the noise](judge.md#what-decides-an-undecided-time), which the next "
        "step names.",
    ),
    Reason.NO_SLOWDOWN: Help(
        "On a CPU, in a case that gates no time: two pairs or more, eight if they scatter by more "
        "than the matter margin, show no slowdown beyond the ignore margin. It says less than "
        "`WITHIN_MARGINS`.",
        "Nothing.",
    ),
    Reason.MAYBE_SLOWER: Help(
        "On a CPU, in a case that gates no time: eight pairs are slower on average by more than "
        "the ignore margin. That may be chance: on a busy CPU it happens. Printed, though it "
        "passes.",
        "If you suspect the code, measure again on an idle machine, or gate `step_ms` in the case.",
    ),
    Reason.LATE_SLOWDOWN: Help(
        "In every launch steps are slower from some step on; the note says which, and by how "
        "much. It is `SLOWER` if the other revision's steps are not. Else it is a notice, also "
        "against recordings, which do not know single steps.",
        "Look for what grows or starts with the number of steps: a list, a cache, a counter, a "
        "schedule.",
    ),
    Reason.PERIODIC_SLOWDOWN: Help(
        "In every launch every n-th step is slower, or one step is; the note says which, and by "
        "how much. It is `SLOWER` if the other revision's steps are not, else a notice.",
        "Look for what happens every so many steps: logging, a checkpoint, `empty_cache`.",
    ),
    Reason.GROWING_SLOWDOWN: Help(
        "In every launch steps take longer and longer; the note says by how much over the timed "
        "steps. It is `SLOWER` if the other revision's steps do not, else a notice. Lines of "
        "Python that become more are a counter, `growing_python_lines_per_step`.",
        "Look for what the step adds to and goes through: a list, a dictionary, a cache, a graph.",
    ),
    Reason.BASE_LACKS: Help(
        "The other revision has no such factory or parameter, or its step raised; the message "
        "says which.",
        "Compare with a revision that can, or use the stored baseline. If it lacks files that git "
        'ignores, name them in the case: `data=("PATH",)`.',
    ),
    Reason.TIME_DECIDES: Help(
        "On a GPU: an amount moved, for example operators or launches. Pairs judge the step's time "
        "instead. Printed, though it passes.",
        "Read what moved; it explains the time.",
    ),
    Reason.MACHINE_MOVED: Help(
        "The stored baseline says SLOWER or FASTER. But the recording's own code, measured in "
        "alternate blocks with this one, is as slow or as fast: the machine changed. Printed on "
        "every run, though it passes.",
        "Leave the code alone. Find what is different about the machine; record anew if it stays "
        "so.",
    ),
    Reason.MACHINE_TOO_FAR: Help(
        "As `MACHINE_MOVED`, but the time moved by more than 15 %. No other card or clock changes "
        "a time so much "
        "([judge.md](judge.md#when-a-recordings-alarm-is-confirmed)).",
        "`python -m stepguard doctor`; see that nothing else runs there. Else the recording is "
        "not of the commit that it names: look at the history of its baseline file.",
    ),
}

_NOTHING_TO_COMPARE: Mapping[Reason, Help] = {
    Reason.NOT_RECORDED: Help(
        "No file for this kind of machine, or no entry for this case.",
        "`pytest perf_tests --perf-update-new`, or `python -m stepguard accept CASE`.",
    ),
    Reason.OTHER_CONDITIONS: Help(
        "Another torch, CUDA, cuDNN, Triton, driver branch, CPU architecture or steering variable "
        "than every recording of the newest level has, or other steps were counted; the message "
        "says which.",
        "Install what was recorded, or accept: the first recording under new software joins that "
        "level. If it is slower, accept with a reason.",
    ),
}

_NOT_DECIDED: Mapping[Reason, Help] = {
    Reason.NOT_STEADY: Help(
        "The step time still drifted when the warm-up's time was over. Or something was compiled "
        "or allocated on the GPU again and again, which ends the warm-up early; or a graph was "
        "compiled within a timed block. After such a launch no other follows.",
        "`python -m stepguard doctor`; look for a workload that allocates, recompiles or waits "
        "for data. What compiles late: call it once in the factory, or in the first step.",
    ),
    Reason.TOO_NOISY: Help(
        "The launches, or the pairs of a difference, differ so much that the limit cannot be told "
        "from noise. More launches did not help.",
        "Look for what else runs on the machine; then measure again.",
    ),
    Reason.COUNT_UNSTABLE: Help(
        "Two launches of this tree counted the same steps differently, the eager step does not fit "
        "in memory, or the trace lacks what a count needs.",
        "Make the steps alike in each launch: chance or a clock decides what they do. Or take the "
        "metric out of the case's `gates`.",
    ),
}

_MACHINE_UNFIT: Mapping[Reason, Help] = {
    Reason.FOREIGN_PROCESS: Help(
        "Another process is on the GPU, or memory is in use that belongs to no visible process. "
        "Or another run of stepguard, of any user, kept the GPU for longer than 15 min. Runs take "
        "turns case by case, so that run hangs, or several wait in a queue. The message says which "
        "process. Or the lock file `/tmp/stepguard-<uuid>.lock` cannot be used.",
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
        "No launch, fewer launches than the case asks for, or launches that make no pairs; a "
        "launch without a block, or a block without a time.",
        "Read the logs beside the evidence.",
    ),
    Reason.CLOCKS_DISAGREE: Help(
        "Two clocks disagree in two blocks of a launch; the first of them is measured again. Wall "
        "clock and CUDA events differ by more than 0.5 % and more than 1 ms, or the ranks' clock "
        "and the host's by more than 5 % and more than 500 ms.",
        "Work runs on a stream that the events do not see, the host was stopped, or the workload "
        "replaced the rank's clock.",
    ),
    Reason.RAISED: Help(
        "The workload raised; the traceback from the factory inwards is in the report, the whole "
        "of it in the evidence.",
        "Fix it.",
    ),
    Reason.BAD_WORKLOAD: Help(
        "The factory cannot be imported, or not be called with the case's parameters. Or what it "
        "returned has no `step` or `tokens_per_step`. Or it changes a variable that torch reads as "
        "it is imported "
        "(`TORCHINDUCTOR_...`): that comes too late. Or `step()` does its work in another thread, "
        "where no counter sees it. Or a script or a loop ended, left or asked for input before it "
        "was measured.",
        "The message names what is missing, what to set where, or what to pass.",
    ),
    Reason.TREE_CHANGED: Help(
        "During an A/B comparison a file of the tree was written, or another commit was checked "
        "out, even if it was restored since. Pairs may be of different code.",
        "Measure again, and leave the tree alone meanwhile.",
    ),
    Reason.OTHER_TREE: Help(
        "A rank imported a module of the factory's package from outside of the measured tree: "
        "from another clone, an installed copy or the other revision's tree. Or any module that "
        "this tree has in another form, or that differs between the two revisions. The message "
        "names module and file.",
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
        "A rank died of a signal, of the kernel's out-of-memory killer for example, or ended by "
        "itself while it worked. The other ranks then raise, too. Or the process of torchrun's "
        "engine ended while its ranks were at work.",
        "`dmesg`, and `agent.log` beside the evidence; the message names rank, step and phase.",
    ),
    Reason.NO_ANSWER: Help(
        "A rank did not answer in time; every thread's stack is in the report.",
        "The message says where. Of several ranks it is most often a hang in different "
        "collectives. Of one, a step that waits for what never comes, or that is too large for "
        "the machine: the first step, with its compilation, has 600 s, a launch the case's "
        "`time_limit_s`.",
    ),
}

OF_REASONS = (
    Section("The comparison was made", _AGAINST_RECORDINGS),
    Section(
        "An A/B comparison was made",
        _IN_PAIRS,
        "With `--perf-against`, or when a stored baseline's SLOWER or FASTER is confirmed. The "
        "rules are in\n`stepguard/judge/judge_pairs.py`, `stepguard/judge/rules/` and "
        "`stepguard/judge/alarm.py`; [judge.md](judge.md) explains them.",
    ),
    Section("There is nothing to compare with", _NOTHING_TO_COMPARE),
    Section("It could not be decided", _NOT_DECIDED),
    Section("The machine is not fit", _MACHINE_UNFIT),
    Section("The measurement is broken", _MEASUREMENT_BROKEN),
)
