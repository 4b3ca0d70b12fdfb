"""python -m stepguard calibrate: what is measured, told, kept, and refused; pairs are made up."""

import json
import math
import re
from dataclasses import replace

import pytest
from counts import counted

from stepguard import Case
from stepguard.cli import calibrate as cli_calibrate
from stepguard.cli.collect import cases_of
from stepguard.comparison import Comparison
from stepguard.evidence import Block, Counts, Evidence, Fault, Launch
from stepguard.fingerprint import Fingerprint
from stepguard.gpu.nvml import Gpu
from stepguard.judge.calibration import widened
from stepguard.storage import calibrations

H200 = Gpu("GPU-1", "NVIDIA H200", "580.65", 1980)
QUIET = [0.05, -0.04, 0.02, -0.03, 0.01, -0.01] * 4
CPU = Case("cpu", "work:step", device="cpu", launches=1, gates=("step_ms", "flops_per_step"))
CASES = [
    Case("one", "work:step"),
    Case("two", "work:step"),
    Case("extra", "work:step", extended=True),
    Case("four", "work:step", world_size=4),
    Case("counted", "work:step", device="cpu", launches=1),
    CPU,
]


def launch(index, ms):
    """Two blocks of four steps."""
    blocks = tuple(Block(4, (4 * t,), (4 * t,), (t,) * 4) for t in (ms * 0.9999, ms * 1.0001))
    return Launch(index, blocks, 1.0, 4.0, 9, "", 20.0)


def evidence(case, bench, step_ms):
    """Of one side."""
    return Evidence(
        case_id=case.id,
        case=case.as_dict(),
        date="2030-01-01T00:00:00+00:00",
        commit=bench.revision.commit,
        dirty=(),
        command=bench.command,
        planned_launches=1,
        gates=case.gates,
        fingerprint=Fingerprint("NVIDIA H200", "GPU-1", "2.13.0", driver="580.65", cuda="13.0"),
        launches=tuple(launch(i, ms) for i, ms in enumerate(step_ms, start=1)),
        counts=Counts(counted({"flops_per_step": 1000}, case.device)),
        tokens_per_step=64,
    )


@pytest.fixture
def bench(shell, monkeypatch):
    """The command in a repository with one commit, on one H200, with CASES; ``pairs(case id)`` are
    the log-ratios in percent that its pairs have, each of which takes 30 s after 60 s of counting.
    """
    shell.commit()
    shell.measured, shell.pairs, shell.fault, shell.during = [], lambda case_id: QUIET, {}, None
    gpus = [H200]
    monkeypatch.setattr(cli_calibrate, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(cli_calibrate, "cases_of", lambda root, suite: CASES)

    def compare_with(case, bench, tree, progress, wanted):
        shell.measured.append((case.id, case.gates, wanted.budget_s, tree.rev, tree.commit))
        ratios, wall_s, base = shell.pairs(case.id), 60.0, []
        found = Comparison("HEAD", evidence(case, bench, []), evidence(case, bench, []))
        while wanted.wants_another(replace(found, wall_s=wall_s)) and len(base) < 24:
            if base and wall_s > wanted.budget_s:
                found = replace(found, out_of_time=True)
                break
            if fault := shell.fault.get((case.id, len(base))):
                return replace(found, head=replace(found.head, faults=(fault,)))
            progress(f"pair {len(base) + 1} base: warm-up")
            wall_s += 30.0
            base.append(10.0)
            head = [10.0 * math.exp(d / 100) for d in ratios[: len(base)]]
            sides = evidence(case, bench, head), evidence(case, bench, base)
            found = replace(found, head=sides[0], base=sides[1])
        if shell.during:
            shell.during()
        return replace(found, wall_s=wall_s)

    monkeypatch.setattr(cli_calibrate, "compare_with", compare_with)
    shell.gpus = gpus
    return shell


def content(bench, name="h200x1.json"):
    """The calibration file."""
    return calibrations.load(bench.path / "baselines" / "calibration" / name)


def test_one_case(bench):
    """HEAD's own commit beside it; its noise is told, drawn, kept, and the file named."""
    done = bench("calibrate", "step[one]")
    assert done.status == 0, done.err
    ((case_id, gates, _, rev, commit),) = bench.measured
    assert (case_id, rev) == ("step[one]", "HEAD")
    assert gates == ("step_ms", "flops_per_step")
    (entry,) = content(bench).cases.values()
    sd = math.sqrt(math.fsum(d * d for d in QUIET) / 23)
    assert entry.sd_pct == pytest.approx(sd, rel=1e-3)
    assert (entry.pairs, entry.commit) == (24, commit)
    assert (entry.seconds_a_pair, entry.device_uuid) == (30.0, "GPU-1")
    assert entry.case == CASES[0].as_dict()
    assert "step[one] on NVIDIA H200: 24 pairs" in done.out
    assert re.search(r"^pair sd +0\.031 %  95 %: 0\.024 to 0\.044 %$", done.out, re.MULTILINE)
    assert re.search(
        r"^mean difference +-?0\.000 %  95 %: -0\.013 to \+0\.013 %", done.out, re.MULTILINE
    )
    assert "smallest detectable slowdown 0.32 % within 24 pairs, 30.0 s each" in done.out
    assert "margins 0.2 and 0.5 %: they can decide at this noise" in done.out
    assert "written to baselines/calibration/h200x1.json: review it, and commit it" in done.out


def test_the_picture(bench):
    """A line a pair, in order, to scale: the widest pairs touch the edges, and zero is a bar."""
    done = bench("calibrate", "step[one]", "--pairs", "6")
    rows = [line for line in done.out.splitlines() if re.match(r"  +\d+ +[+-]", line)]
    assert [float(row.split()[1]) for row in rows] == QUIET[:6]
    drawn = [row.partition("%  ")[2] for row in rows]
    assert drawn[0] == " " * 24 + "|" + " " * 23 + "*"
    assert drawn[1] == " " * 5 + "*" + " " * 18 + "|"


def test_the_core_suite_by_default(bench):
    """Every GPU case that fits this machine and is not extended, each with its share of the time;
    another call keeps what it does not measure.
    """
    done = bench("calibrate", "--budget", "40")
    assert done.status == 0, done.err
    assert [item[0] for item in bench.measured] == ["step[one]", "step[two]"]
    assert bench.measured[0][2] == 40 * 60 / 2
    assert "\n[2/2] step[two]: up to about 40:00" in done.err  # the first one left all of its share
    assert len(list((bench.path / ".stepguard/runs").iterdir())) == 1
    bench.gpus += [replace(H200, uuid=f"GPU-{number}") for number in (2, 3, 4)]
    assert bench("calibrate", "step[four]").status == 0
    assert set(content(bench).cases) == {"step[one]", "step[two]"}
    assert set(content(bench, "h200x4.json").cases) == {"step[four]"}


def test_noise_that_the_margins_cannot_decide(bench):
    """Twelve times as noisy: wider margins, and the two numbers that say why."""
    bench.pairs = lambda case_id: [12 * d for d in QUIET]
    done = bench("calibrate", "step[one]")
    assert done.status == 0, done.err
    (entry,) = content(bench).cases.values()
    matter = widened(entry.prior).matter_pct
    assert 0.55 < matter < 0.75
    assert f"margins 0.2 and {matter:g} %, wider than the case's 0.2 and 0.5 %" in done.out


def test_a_cpu_case_of_ones_own(bench):
    """One that gates times can be calibrated without a GPU, into the CPU's file."""
    bench.gpus.clear()
    done = bench("calibrate", "step[cpu]", "--pairs", "6")
    assert done.status == 0, done.err
    assert content(bench, "cpu.json").machine == "CPU"
    assert "margins 5 and 20 %" in done.out


def test_progress_and_time_left(bench):
    """How long it may take, how many pairs of how many, and what the last one said."""
    done = bench("calibrate", "step[one]")
    assert "[1/1] step[one]: up to about 30:00" in done.err
    assert " s  pair 1 base: warm-up" in done.err
    assert "4/24 pairs, the last -0.030 %; pair 5 base: warm-up" in done.err


REFUSED = {
    "a fault": (
        {"fault": {("step[one]", 3): Fault("RAISED", "planted")}},
        "step[one]: not calibrated, BROKEN: planted",
    ),
    "too few pairs": (
        {"arguments": ["--budget", "3"]},
        "5 pairs were measured, 6 are needed; a pair takes 30 s, give them more time: --budget",
    ),
    "a bias": ({"pairs": [1.0 + d for d in QUIET]}, "the same code came out SLOWER"),
    "no noise": ({"pairs": [0.0] * 24}, "no clock is that even"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_calibration(bench, name):
    """Status 1, why, and no file; the pairs that there were are kept with the run's evidence."""
    planted, words = REFUSED[name]
    bench.fault = planted.get("fault", {})
    bench.pairs = lambda case_id: planted.get("pairs", QUIET)
    done = bench("calibrate", "step[one]", *planted.get("arguments", []))
    assert done.status == 1
    assert words in done.err
    assert "written" not in done.out and not (bench.path / "baselines").exists()
    (kept,) = (bench.path / ".stepguard/runs").glob("*/*/comparison.json")
    assert json.loads(kept.read_text())["head"]["case_id"] == "step[one]"


def test_a_refused_case_does_not_stop_the_next(bench):
    """Nor does it leave its former calibration changed."""
    assert bench("calibrate").status == 0
    before = content(bench).cases["step[one]"]
    bench.fault = {("step[one]", 0): Fault("RAISED", "planted")}
    bench.pairs = lambda case_id: [2 * d for d in QUIET]
    done = bench("calibrate")
    assert done.status == 1
    after = content(bench).cases
    assert after["step[one]"] == before
    assert after["step[two]"].sd_pct == pytest.approx(2 * before.sd_pct, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--pairs", "5"], 2, "--pairs 5: from 6 to 24"),
        (["--pairs", "25"], 2, "--pairs 25: from 6 to 24"),
        (["--budget", "0"], 2, "--budget 0.0: a number of minutes"),
        (["--budget", "nan"], 2, "--budget nan: a number of minutes"),
        (["step[onn]"], 1, "'step[onn]' is no case of the suite; it has: step[counted], step[cpu]"),
        (["step[four]"], 1, "step[four]: it needs 4 GPU(s), this machine shows 1"),
        (["step[counted]"], 1, "it gates no step_ms, so that no pair would judge it"),
    ],
)
def test_what_cannot_be_meant(bench, arguments, status, words):
    """One line, before anything is measured."""
    done = bench("calibrate", *arguments)
    assert (done.status, done.out) == (status, "")
    assert words in done.err and done.err.count("\n") == 1
    assert not bench.measured


def test_without_a_gpu_there_is_no_default(bench):
    """Times of a CPU are not gated unless a case says so; nothing is not a success."""
    bench.gpus.clear()
    done = bench("calibrate")
    assert done.status == 1
    assert "none of 3 GPU cases of the core suite fits this machine, which shows 0 GPUs" in done.err


def test_a_tree_that_is_not_heads(bench):
    """With a change that is not committed, HEAD beside it would be other code."""
    (bench.path / "work.py").write_text("")
    done = bench("calibrate")
    assert done.status == 1 and not bench.measured
    assert "work.py differs from it; commit or git stash, then calibrate" in done.err


def test_a_tree_that_changes_meanwhile(bench):
    """It is found out at the end, and nothing is written."""
    bench.during = lambda: (bench.path / "work.py").write_text("")
    done = bench("calibrate", "step[one]")
    assert done.status == 1
    assert "the tree changed while it was measured" in done.err
    assert not (bench.path / "baselines").exists()


def test_outside_a_repository(shell, monkeypatch):
    """There is no HEAD: one line."""
    monkeypatch.setattr(cli_calibrate, "visible_gpus", lambda: [H200])
    monkeypatch.setattr(cli_calibrate, "cases_of", lambda root, suite: CASES)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(shell.path.parent))
    done = shell("calibrate")
    assert done.status == 1 and done.err.count("\n") == 1
    assert "git" in done.err


def test_a_calibration_file_that_cannot_be_trusted(bench):
    """Refused before anything is measured."""
    path = bench.path / "baselines/calibration/h200x1.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done = bench("calibrate")
    assert done.status == 1 and not bench.measured
    assert str(path.relative_to(bench.path)) in done.err and "git checkout" in done.err


def test_nothing_is_left(bench):
    """No worktree, whether it went well or was interrupted; an interrupt has its own status."""
    bench("calibrate", "step[one]")

    def interrupt():
        raise KeyboardInterrupt

    bench.during = interrupt
    assert bench("calibrate", "step[one]").status == 130
    assert [p.name for p in (bench.path / ".stepguard/trees").iterdir()] == ["lock"]


SUITE = """
import pytest
from stepguard import Case
from stepguard.plugin import cases


@cases(
    Case("a", "work:step", {"size": "124m", "lr": 1e-4, "compile": True, "note": None}),
    Case("b", "work:step", world_size=2, extended=True, margins_pct=(1.0, 3.0)),
    Case("c", "work:step", device="cpu", launches=1),
)
def test_step(perf, case):
    perf(case)


@pytest.mark.parametrize("case", [1, 2])
def test_other(case):
    pass
"""


def test_the_cases_of_a_suite(shell):
    """All that pytest collects for perf, extended ones too, each equal to what was declared."""
    (shell.path / "perf_tests").mkdir()
    (shell.path / "perf_tests" / "test_step.py").write_text(SUITE)
    (shell.path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not extended'\n")
    params = {"size": "124m", "lr": 1e-4, "compile": True, "note": None}
    assert cases_of(shell.path, "perf_tests") == [
        Case("a", "work:step", params),
        Case("b", "work:step", world_size=2, extended=True, margins_pct=(1.0, 3.0)),
        Case("c", "work:step", device="cpu", launches=1),
    ]


def test_a_suite_that_cannot_be_collected(shell):
    """No folder, or an error in a file: what is wrong and how to see it, never no case."""
    with pytest.raises(ValueError, match="perf_tests: no such folder.*--suite DIR"):
        cases_of(shell.path, "perf_tests")
    (shell.path / "perf_tests").mkdir()
    (shell.path / "perf_tests" / "test_step.py").write_text("import no_such_module\n")
    with pytest.raises(ValueError, match="perf_tests cannot be collected: .*--collect-only"):
        cases_of(shell.path, "perf_tests")


def test_a_suite_without_cases(shell):
    """None are found; then a name is unknown, and by default nothing fits."""
    (shell.path / "perf_tests").mkdir()
    assert cases_of(shell.path, "perf_tests") == []
