"""--perf-baselines and the files in the folder: a file that cannot be trusted stops the run."""

import pytest


@pytest.fixture
def recorded(gate):
    """A gate with one recorded case."""
    gate.guarded()
    return gate


def test_another_folder(recorded):
    """--perf-baselines=DIR is where baselines are read, relative to where pytest is called."""
    recorded.baselines.rename(recorded.path / "elsewhere")
    assert recorded.run("--perf-baselines=elsewhere").ret == 0
    absolute = recorded.path / "elsewhere"
    assert recorded.run(f"--perf-baselines={absolute}").ret == 0
    result = recorded.run()
    assert result.ret == 1
    result.says("*NO BASELINE: no recording for this machine in baselines/cpu.json")


def test_the_folder_is_written_too(recorded):
    """With --perf-update it is DIR's file that is written, and the tree stays clean for git."""
    (recorded.path / "elsewhere").mkdir()
    (recorded.path / "elsewhere" / ".gitkeep").write_text("")
    before = (recorded.baselines / "cpu.json").read_bytes()
    recorded.commit()
    assert recorded.run("--perf-baselines=elsewhere", "--perf-update").ret == 0
    assert (recorded.path / "elsewhere" / "cpu.json").exists()
    assert (recorded.baselines / "cpu.json").read_bytes() == before


@pytest.mark.parametrize("folder", ["missing", "test_perf.py"])
def test_a_folder_that_is_none_is_a_usage_error(recorded, folder):
    """A mistyped --perf-baselines is exit 4 before anything is measured."""
    result = recorded.run(f"--perf-baselines={folder}")
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [f"*--perf-baselines={folder}: no such folder; to record *: mkdir -p *{folder}"]
    )
    assert recorded.measured == []


SCHEMA = '"schema": 1'
# All that may be wrong with a file is in tests/storage/test_baseline_files.py.
BREAKS = {
    "truncated": lambda text: text[: len(text) // 2],
    "other_schema": lambda text: text.replace(SCHEMA, '"schema": 99'),
    "not_text": lambda text: "\udcff\udcfe",
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
@pytest.mark.parametrize("options", [(), ("--perf-update",)], ids=["judge", "update"])
def test_a_broken_file_stops_the_run(recorded, broken, options):
    """Exit 4, one line that names the file, nothing measured, the file as it was."""
    path = recorded.baselines / "cpu.json"
    text = path.read_text()
    damaged = broken(text)
    assert damaged != text
    path.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    recorded.commit()  # without one nothing could be recorded anyway
    result = recorded.run(*options)
    assert result.ret == 4
    assert recorded.measured == []
    assert path.read_bytes() == before
    lines = [line for line in result.errlines if line.strip()]
    assert len(lines) == 1, lines
    assert "baselines/cpu.json" in lines[0]


def test_another_machines_file_under_this_name(gate, h200):
    """Figures of an H100 under the H200's name: not compared, not a pass, both machines named."""
    gate.gpus = [h200]
    case = gate.cuda()
    gate.suite(case)
    path = gate.record(case)
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA H100"))
    result = gate.run()
    assert result.ret != 0
    assert gate.measured == []
    assert result.parseoutcomes().get("passed", 0) == 0
    words = "\n".join(result.outlines + result.errlines)
    assert "'NVIDIA H100'" in words and "'NVIDIA H200'" in words and str(path) in words
    assert "was skipped" not in words


def test_the_file_that_breaks_while_measuring(recorded, monkeypatch):
    """A file broken after the check at the start is no pass, and the run ends in order."""
    path = recorded.baselines / "cpu.json"
    plain = recorded.measure

    def measure(*arguments):
        path.write_text("{")
        return plain(*arguments)

    monkeypatch.setattr("stepguard.measure.suite.measure", measure)
    recorded.commit()
    result = recorded.run("--perf-update")
    assert result.ret != 0
    assert path.read_text() == "{"
    assert "INTERNALERROR" not in "\n".join(result.outlines + result.errlines)
