"""python -m stepguard calibrate: what it reads, prints, writes and refuses; pairs are made up."""

import math
import re

import pytest
from builders import replace
from counts import counted

from stepguard import Case
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Block, Counts, Evidence, Fault, Launch
from stepguard.core.fingerprint import Fingerprint
from stepguard.core.margins import Margins
from stepguard.core.reasons import Reason
from stepguard.judge.ab.calibration import widened
from stepguard.measure.pair_run import PAIR_TIMINGS
from stepguard.storage import calibrations
from stepguard.storage.runs import Store

QUIET = [0.05, -0.04, 0.02, -0.03, 0.01, -0.01] * 4
ONE, TWO = Case("one", "work:step"), Case("two", "work:step")
FOUR = Case("four", "work:step", world_size=4)
CPU = Case("cpu", "work:step", device="cpu", launches=1, gates=("step_ms", "flops_per_step"))

MEASURE = "pytest perf_tests --perf-against=HEAD --perf-budget=MIN"


def launch(index, ms):
    """Two blocks of four steps."""
    blocks = tuple(Block(4, (4 * t,), (4 * t,), (t,) * 4) for t in (ms * 0.9999, ms * 1.0001))
    return Launch(index, blocks, 1.0, 4.0, 9, "", 20.0)


def evidence(case, step_ms, day):
    """Of one side."""
    gpu = Fingerprint("NVIDIA H200", "GPU-1", "2.13.0", driver="580.65", cuda="13.0")
    return Evidence(
        case_id=case.id,
        case=case.as_dict(),
        date=f"2030-01-{day:02d}T00:00:00+00:00",
        commit="a" * 40,
        dirty=(),
        command="pytest perf_tests --perf-against=HEAD",
        planned_launches=1,
        gates=("step_ms", "flops_per_step"),
        fingerprint=gpu if case.device == "cuda" else Fingerprint("x86_64", "", "2.13.0"),
        launches=tuple(launch(i, ms) for i, ms in enumerate(step_ms, start=1)),
        counts=Counts(counted({"flops_per_step": 1000}, case.device)),
        tokens_per_step=64,
    )


class Bench:
    """The command in a folder in which comparisons of HEAD with itself are kept."""

    def __init__(self, shell):
        self._shell, self.path = shell, shell.path
        self._day = 0

    def keep(self, case, ratios=QUIET, root=None, head=None, **fields):
        """Keep a run's comparison whose pairs have these log-ratios in percent, and took 30 s each;
        ``head`` changes that side.
        """
        self._day += 1
        sides = (
            evidence(case, [10.0 * math.exp(d / 100) for d in ratios], self._day),
            evidence(case, [10.0] * len(ratios), self._day),
        )
        made = Comparison(
            "HEAD",
            replace(sides[0], **head or {}),
            sides[1],
            wall_s=30.0 * len(ratios),
            case_margins=case.margins,
            timing=PAIR_TIMINGS[case.device].as_dict(),
        )
        store = Store(root or self.path)
        return store.keep_comparison(store.new_run(), case.slug, replace(made, **fields))

    def __call__(self, *arguments):
        """Call the command."""
        return self._shell("calibrate", *arguments)

    def cases(self, name="h200x1.json"):
        """What the calibration file holds, by case id."""
        return calibrations.load(self.path / "baselines" / "calibration" / name).cases


@pytest.fixture
def bench(shell):
    """Nothing kept yet."""
    return Bench(shell)


def test_one_case(bench):
    """Its noise is reported, drawn and written, and the file named."""
    bench.keep(ONE)
    done = bench("step[one]")
    assert done.status == 0, done.err
    (entry,) = bench.cases().values()
    sd = math.sqrt(math.fsum(d * d for d in QUIET) / 23)
    assert entry.sd_pct == pytest.approx(sd, rel=1e-3)
    assert (entry.pairs, entry.commit, entry.seconds_a_pair) == (24, "a" * 40, 30.0)
    assert (entry.device_uuid, entry.case) == ("GPU-1", ONE.as_dict())
    assert entry.timing == PAIR_TIMINGS["cuda"].as_dict()
    assert "step[one] on NVIDIA H200: 24 pairs" in done.out
    assert re.search(r"^pair sd +0\.031 %  95 %: 0\.024 to 0\.044 %$", done.out, re.MULTILINE)
    assert re.search(
        r"^mean difference +-?0\.000 %  95 %: -0\.013 to \+0\.013 %", done.out, re.MULTILINE
    )
    assert "smallest detectable slowdown 0.32 % within 24 pairs, 30.0 s each, with" in done.out
    assert "margins 0.2 and 0.5 %: they can decide at this noise" in done.out
    assert "written to baselines/calibration/h200x1.json: review it, and commit it" in done.out


def test_the_picture(bench):
    """A line a pair, in order, to scale: the widest pairs touch the edges, and zero is a bar."""
    bench.keep(ONE, QUIET[:6])
    rows = [line for line in bench().out.splitlines() if re.match(r"  +\d+ +[+-]", line)]
    assert [float(row.split()[1]) for row in rows] == QUIET[:6]
    drawn = [row.partition("%  ")[2] for row in rows]
    assert drawn[0] == " " * 24 + "|" + " " * 23 + "*"
    assert drawn[1] == " " * 5 + "*" + " " * 18 + "|"


def test_every_case_by_default(bench):
    """Each from all of its runs, into the file of its machine; a later call keeps what it does not
    name.
    """
    for case in (ONE, TWO, FOUR, ONE):
        bench.keep(case)
    done = bench()
    assert done.status == 0, done.err
    assert {case_id: entry.pairs for case_id, entry in bench.cases().items()} == {
        "step[one]": 48,
        "step[two]": 24,
    }
    assert set(bench.cases("h200x4.json")) == {"step[four]"}
    bench.keep(TWO)
    assert bench("step[two]").status == 0
    assert {entry.pairs for entry in bench.cases().values()} == {48}


def test_noise_that_the_margins_cannot_decide(bench):
    """Twelve times as noisy: wider margins, and the two numbers that say why; those of the case,
    not those that an older calibration had widened.
    """
    bench.keep(ONE, [12 * d for d in QUIET], margins=Margins(0.2, 2.6))
    done = bench("step[one]")
    assert done.status == 0, done.err
    (entry,) = bench.cases().values()
    matter = widened(entry.prior).matter_pct
    assert 0.55 < matter < 0.75
    assert f"margins 0.2 and {matter:g} %, wider than the case's 0.2 and 0.5 %" in done.out


def test_a_cpu_case_that_gates_times(bench):
    """Its noise goes into the CPU's file."""
    bench.keep(CPU, QUIET[:6])
    done = bench("step[cpu]")
    assert done.status == 0, done.err
    assert list(bench.cases("cpu.json")) == ["step[cpu]"]
    assert "margins 5 and 20 %" in done.out


def test_evidence_of_another_machine(bench, tmp_path):
    """What CI uploaded: a file, or the folder that it is in; what is kept here has no say."""
    bench.keep(ONE)
    path = bench.keep(TWO, root=tmp_path / "uploaded")
    for evidence_of_it in (path, tmp_path / "uploaded"):
        assert bench("--evidence", str(evidence_of_it)).status == 0
        assert set(bench.cases()) == {"step[two]"}


def test_a_comparison_that_is_there_twice(bench, tmp_path):
    """A download beside its copy: three pairs are not six."""
    path = bench.keep(ONE, QUIET[:3], root=tmp_path / "uploaded")
    copy = tmp_path / "uploaded" / "copy" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    done = bench("--evidence", str(tmp_path / "uploaded"))
    assert done.status == 1
    assert "3 pairs were measured, 6 are needed" in done.err


REFUSED = {
    "a fault": (
        {"head": {"faults": (Fault(Reason.RAISED, "planted"),)}},
        "step[one]: not calibrated, BROKEN: planted",
    ),
    "too few pairs": (
        {"ratios": QUIET[:5]},
        "5 pairs were measured, 6 are needed; measure again, with more time: --perf-against=HEAD",
    ),
    "a bias": ({"ratios": [1.0 + d for d in QUIET]}, "the same code came out SLOWER"),
    "no noise": ({"ratios": [0.0] * 24}, "no clock is that even"),
    "a tree that changed": (
        {
            "head": {
                "faults": (Fault(Reason.TREE_CHANGED, "the tree changed while it was measured"),)
            }
        },
        "the tree changed while it was measured",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_calibration(bench, name):
    """Status 1, why, and no file."""
    planted, words = REFUSED[name]
    bench.keep(ONE, **planted)
    done = bench("step[one]")
    assert done.status == 1
    assert words in done.err
    assert "written" not in done.out and not (bench.path / "baselines").exists()


def test_a_refused_case_does_not_stop_the_next(bench):
    """Nor does it leave its former calibration changed."""
    bench.keep(ONE)
    assert bench().status == 0
    before = bench.cases()["step[one]"]
    bench.keep(ONE, head={"faults": (Fault(Reason.RAISED, "planted"),)})
    bench.keep(TWO, [2 * d for d in QUIET])
    assert bench().status == 1
    assert bench.cases()["step[one]"] == before
    assert bench.cases()["step[two]"].sd_pct == pytest.approx(2 * before.sd_pct, rel=1e-3)


NOT_MEANT = {
    "nothing kept": (None, []),
    "another commit": ({"head": {"commit": "b" * 40}}, []),
    "a tree with changes": ({"head": {"dirty": ("work.py",)}}, []),
    "a module that is in no commit": ({"head": {"untracked": ("local.py",)}}, []),
    "no time gated": ({"head": {"gates": ("flops_per_step",)}}, []),
    "a time of a CPU that only glances": ({"glance": True}, []),
    "kept without its timing": ({"timing": {}}, []),
    "another case": ({}, ["step[onn]"]),
}


@pytest.mark.parametrize("name", NOT_MEANT)
def test_no_comparison_of_a_case_with_itself(bench, name):
    """One line with the command that measures one."""
    planted, arguments = NOT_MEANT[name]
    if planted is not None:
        bench.keep(ONE, **planted)
    done = bench(*arguments)
    assert (done.status, done.out) == (1, "")
    assert MEASURE in done.err and done.err.count("\n") == 1
    if arguments:
        assert "no comparison of 'step[onn]' with itself; it has: step[one]" in done.err


def test_evidence_that_cannot_be_read(bench, tmp_path):
    """A file that was named is never passed over; a damaged one among the kept runs is."""
    (tmp_path / "comparison.json").write_text("{")
    for named in ("comparison.json", ".", "nowhere.json"):
        done = bench("--evidence", named)
        assert (done.status, done.err.count("\n")) == (1, 1)
    bench.keep(ONE).write_text("{")
    bench.keep(ONE)
    assert bench().status == 0


def test_a_calibration_file_that_cannot_be_trusted(bench):
    """Refused, and left as it is."""
    bench.keep(ONE)
    path = bench.path / "baselines/calibration/h200x1.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done = bench()
    assert done.status == 1 and path.read_text() == "{"
    assert str(path.relative_to(bench.path)) in done.err and " with: mv " in done.err
