"""The failure block and the summary: the verdict in full and as a line, worst first, what to do."""

import pytest

from stepguard import Case
from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason


def test_a_verdict_stands_once_in_full_and_once_as_a_line(gate):
    """However long the case's name and the worker's words are: uncut where no terminal is, under
    FAILURES or ERRORS with everything and in the summary as a line; nowhere is a piece of it.
    """
    long_name = "a-very-long-case-name-" + "x" * 60
    cases = [gate.cpu(long_name), gate.cpu("talkative"), gate.cpu("nano")]
    gate.suite(*cases)
    gate.record(*cases)
    gate.will_measure(cases[0], counters={"compiled_operator_calls_per_step": 51})
    gate.will_measure(
        cases[1], faults=(Fault(Reason.RAISED, "word " * 100, "", "launch 1, block"),)
    )
    gate.will_measure(cases[2], counters={"compiled_operator_calls_per_step": 51})
    result = gate.run()
    opening = next(n for n, line in enumerate(result.outlines) if "= performance =" in line)
    text = "\n".join(result.outlines)
    for line in (
        f"linear[{long_name}]: CHANGED: compiled_operator_calls_per_step 50 -> 51 (+1 call)",
        f"linear[talkative]: BROKEN: launch 1: {('word ' * 100).strip()}",
        "linear[nano]: CHANGED: compiled_operator_calls_per_step 50 -> 51 (+1 call)",
    ):
        at = [n for n, shown in enumerate(result.outlines) if shown.strip() == line]
        assert len(at) == 2 and at[0] < opening < at[1], line
    assert text.count("accept: ") == 2, "what to do stands in the block alone"
    assert "Failed: " not in text and " - linear[" not in text


def test_github_gets_an_annotation_of_a_red_case(gate, monkeypatch):
    """There alone, without a document that was asked for."""
    gate.will_measure(gate.guarded(), counters={"compiled_operator_calls_per_step": 51})
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert "::error" not in gate.run().stdout.str()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    gate.run().says("::error file=*,title=linear?nano?::linear?nano?: CHANGED: *")


def test_stages_are_shown_with_v_only(gate):
    """-v prints a line a stage; without it a case begins with one line and nothing more."""
    gate.guarded()
    loud = gate.run("-v")
    loud.says(
        "?1/1? linear?nano?",
        " *0.0 s  launch 1: start",
        " *0.0 s  launch 1: block 1 of 3",
    )
    quiet = gate.run()
    quiet.says("?1/1? linear?nano?: about *:* left")
    quiet.stdout.no_fnmatch_line("*launch 1: start*")


def test_the_header_names_the_machine(gate, h200):
    """pytest's header says on what would be measured and where the baselines are."""
    gate.suite(gate.cpu())
    gate.run().says("stepguard: no GPU: *; baselines in baselines/")
    gate.gpus = [h200]
    found = gate.run("-m", "smoke").stdout
    found.fnmatch_lines(["stepguard: NVIDIA H200 (GPU-11111111), driver 580.65.06; baselines in*"])


def test_a_stale_baseline_is_reported(gate):
    """A baseline entry that no case claims is named; it fails nothing."""
    gone, kept = gate.cpu("gone"), gate.cpu("kept")
    gate.record(gone, kept)
    gate.suite(kept)
    result = gate.run()
    assert result.ret == 0
    result.says(
        "baselines/cpu.json: linear?gone? has a baseline but no case: if it is gone for good, "
        "take its entry out of the file"
    )


@pytest.mark.parametrize("testpaths", ["", "perf_tests"])
def test_a_folder_within_the_tests_is_a_part_of_them(gate, testpaths):
    """The cases of the folders beside it are not gone; of the whole folder they would be."""
    gone, kept = gate.cpu("gone"), gate.cpu("kept")
    gate.record(gone, kept)
    gate.suite(kept)
    part = gate.path / "perf_tests" / "part"
    part.mkdir(parents=True)
    (gate.path / "test_perf.py").rename(part / "test_perf.py")
    gate.pytester.makeini(f"[pytest]\ntestpaths = {testpaths}\n")
    stale = "*linear?gone? has a baseline but no case*"
    gate.run("perf_tests/part").stdout.no_fnmatch_line(stale)
    gate.run("perf_tests").says(stale)


def test_a_case_that_was_not_selected_is_not_stale(gate):
    """A part of the suite (a file, a test, -k, -m) calls no other case's baseline stale."""
    kept, other = gate.cpu("kept"), gate.cpu("other")
    extended = gate.cpu("long", extended=True)
    gate.record(kept, other, extended)
    gate.suite(kept, extended)
    text = (gate.path / "test_perf.py").read_text()
    (gate.path / "test_other.py").write_text(text.replace("name='kept'", "name='other'"))
    for arguments in (
        ("-m", "not extended"),
        ("test_perf.py", "-m", "not extended"),
        ("test_perf.py::test_step[kept]",),
        ("-k", "kept"),
        ("--deselect", "test_perf.py"),
        ("--ignore", "test_perf.py"),
    ):
        result = gate.run(*arguments)
        assert result.ret == 0, arguments
        assert not [line for line in result.outlines if "has a baseline" in line], arguments


def test_extended_cases_are_marked_so(gate):
    """Markers follow from the case: gpu, multi_gpu, smoke, extended, under --strict-markers."""
    pair = Case("pair", "factories:linear", world_size=2, extended=True)
    gate.suite(gate.cpu("a"), gate.cuda("b"), pair)
    for expression, names in (
        ("smoke", {"a"}),
        ("gpu", {"b", "pair"}),
        ("multi_gpu", {"pair"}),
        ("extended", {"pair"}),
    ):
        result = gate.run("--co", "-q", "--strict-markers", "-m", expression)
        listed = {line.partition("[")[2].strip("]") for line in result.outlines if "::" in line}
        assert listed == names, expression
