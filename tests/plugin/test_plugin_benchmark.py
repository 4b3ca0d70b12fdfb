"""Together with pytest-benchmark, with its options, and without it."""

import json

import pytest
from builders import replace

SAMPLES = (10.0, 11.0, 12.5, 10.25)


@pytest.fixture
def recorded(gate):
    """One recorded case whose single steps took SAMPLES milliseconds."""
    case = gate.cpu()
    made = gate.evidence(case)
    block = replace(made.launches[0].blocks[0], step_ms=SAMPLES)
    gate.will_measure(case, launches=(replace(made.launches[0], blocks=(block,)),))
    gate.suite(case)
    gate.record(case)
    return gate


def test_without_benchmark(recorded):
    """-p no:benchmark: the gate works, and only its table is missing."""
    recorded.run("-p", "no:benchmark", passed=1)
    recorded.will_measure(recorded.cpu(), counters={"flops_per_step": 2})
    assert recorded.run("-p", "no:benchmark").ret == 1


@pytest.mark.parametrize(
    ("option", "measured"), [("--benchmark-skip", 0), ("--benchmark-disable", 1)]
)
def test_its_switches_pass_no_case_that_is_slower(recorded, option, measured):
    """Skipped, nothing was measured; disabled, its table alone has no row."""
    recorded.will_measure(recorded.cpu(), counters={"flops_per_step": 2})
    assert recorded.run(option).ret == 1
    assert len(recorded.measured) == measured


def test_json_holds_our_samples(recorded):
    """--benchmark-json: every single step as a round, counters and verdict in extra_info."""
    assert recorded.run("--benchmark-json=bench.json").ret == 0
    (bench,) = json.loads((recorded.path / "bench.json").read_text())["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx([ms / 1e3 for ms in SAMPLES], rel=1e-12)
    assert bench["stats"]["rounds"] == len(SAMPLES)
    assert bench["stats"]["median"] == pytest.approx(10.625e-3)
    info = bench["extra_info"]["stepguard"]
    assert (info["case"], info["verdict"]) == ("linear[nano]", "same")
    assert info["metrics"]["flops_per_step"] == 1000
    assert info["units"]["peak_allocated_bytes"] == "B"


def test_a_users_own_mark_survives(recorded):
    """@pytest.mark.benchmark(group=...) on a case groups it, and its samples stay ours."""
    text = (recorded.path / "test_perf.py").read_text()
    mark = '@pytest.mark.benchmark(group="mine", min_rounds=9)\n@cases('
    (recorded.path / "test_perf.py").write_text(text.replace("@cases(", mark))
    assert recorded.run("--benchmark-json=bench.json").ret == 0
    (bench,) = json.loads((recorded.path / "bench.json").read_text())["benchmarks"]
    assert bench["group"] == "mine"
    assert bench["stats"]["rounds"] == len(SAMPLES)


@pytest.mark.parametrize("option", [
    "--benchmark-warmup=on", "--benchmark-disable-gc", "--benchmark-min-rounds=100",
    "--benchmark-cprofile=tottime", "--benchmark-autosave", "--benchmark-group-by=param",
    "--benchmark-histogram=h",
])  # fmt: skip
def test_its_other_options_change_no_verdict(recorded, option):
    """Options of pytest-benchmark's own loop have no hold on a replayed measurement."""
    if "histogram" in option:
        pytest.importorskip("pygal")
    recorded.run(option, "--benchmark-json=bench.json", passed=1)
    (bench,) = json.loads((recorded.path / "bench.json").read_text())["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx([ms / 1e3 for ms in SAMPLES], rel=1e-12)


OWN = """
def test_own(benchmark):
    assert benchmark(lambda: 7) == 7
"""


def test_its_table_has_the_users_benchmarks_alone(recorded):
    """Ours has the cases already, and a run of cases alone has no second table."""
    recorded.run().stdout.no_fnmatch_line("*OPS*")
    (recorded.path / "test_own.py").write_text(OWN)
    shown = recorded.run("--benchmark-max-time=0.01").stdout
    shown.fnmatch_lines(["*OPS*", "test_own *"])
    shown.no_fnmatch_line("*?nano?  *Outliers*")
    assert len([line for line in shown.lines if line.startswith("linear[nano]")]) == 1


def test_its_comparison_still_fails(recorded):
    """--benchmark-compare-fail goes by that table: it is there then, and so is its failure."""
    assert recorded.run("--benchmark-save=first").ret == 0
    slower = recorded.evidence(recorded.cpu())
    block = replace(slower.launches[0].blocks[0], step_ms=tuple(2 * ms for ms in SAMPLES))
    launches = (replace(slower.launches[0], blocks=(block,)),)
    recorded.will_measure(recorded.cpu(), launches=launches)
    compare = ("--benchmark-compare=0001", "--benchmark-compare-fail=mean:5%")
    result = recorded.run(*compare)
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*Performance has regressed*"])


def test_benchmark_loaded_without_its_entry_point(recorded, monkeypatch):
    """With autoload off and -p pytest_benchmark.plugin the samples still reach it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    recorded.run("-p", "pytest_benchmark.plugin", "--benchmark-json=bench.json", passed=1)
    (bench,) = json.loads((recorded.path / "bench.json").read_text())["benchmarks"]
    assert bench["stats"]["rounds"] == len(SAMPLES)
