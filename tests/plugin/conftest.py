"""A gate whose measurements are made up, so that what is tested is pytest's side of it.

``gate`` runs pytest in-process in a folder of its own, on a machine with the GPUs that the test
says, and answers every measurement with evidence that the test says.
"""

import contextlib
import functools
import importlib.metadata
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_benchmark.plugin
import pytest_benchmark.session
from builders import replace
from counts import counted
from short_launches import BUSY_LIMIT_S

import stepguard.measure.driver
import stepguard.measure.suite
import stepguard.plugin.hooks  # by each run anew, if it were not here already
import stepguard.plugin.session
from stepguard import Case
from stepguard.core.comparison import Comparison, Question, judged
from stepguard.core.evidence import Block, Counts, Evidence, Launch
from stepguard.core.fingerprint import Fingerprint
from stepguard.judge.rule_book import need
from stepguard.machine import inherited, packages
from stepguard.machine.git.resolve import TreeError
from stepguard.machine.gpu import Gpu
from stepguard.storage import baseline_files as baseline
from stepguard.storage.accept_recording import accept

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "a" * 40
# What pytest reads of each plugin that is installed, in every run: read once.
PLUGINS = [
    SimpleNamespace(
        metadata=one.metadata,
        version=one.version,
        files=one.files,
        entry_points=one.entry_points,
        _normalized_name=one._normalized_name,  # importlib's own, of whoever looks for entry points
    )
    for one in importlib.metadata.distributions()
    if any(entry.group == "pytest11" for entry in one.entry_points)
]
VERSION = functools.cache(importlib.metadata.version)
REQUIREMENTS = functools.cache(packages.requirements)  # a file of TOML, in every run
# Plugins that no run needs. The first would be imported anew in every run; the others are looked
# through, and asked again and again.
UNUSED = "hypothesispytest anyio doctest faulthandler legacypath pastebin recwarn stepwise"
UNUSED += " subtests threadexception unraisableexception xdist.looponfail"
WITHOUT = [part for name in UNUSED.split() for part in ("-p", f"no:{name}")]
# What git init writes, which takes as long as a tenth of a run.
GIT_CONFIG = """[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
"""
KNOWN_COUNTS = {"flops_per_step": 1000, "operator_calls_per_step": 100,
                "compiled_operator_calls_per_step": 50, "launches_per_step": 200,
                "generated_kernels": 7, "graph_breaks": 0, "unique_graphs": 1,
                "peak_allocated_bytes": 64 * 2**20}  # fmt: skip
H200 = Gpu("GPU-11111111-2222", "NVIDIA H200", "580.65.06", 1980)


def launch(index: int, step_ms: float) -> Launch:
    """A launch of one block of four equal steps."""
    wall = (4 * step_ms,)
    block = Block(steps=4, wall_ms=wall, events_ms=wall, step_ms=(step_ms,) * 4, ran=9)
    return Launch(index, (block,), compile_s=1.0, warmup_s=5.0, warmup_steps=9, steady="", wall_s=9)


def sound_evidence(case: Case, serial: int) -> Evidence:
    """Everything that the case gates, measured without a fault: 10 ms a step."""
    return Evidence(case_id=case.id, case=case.as_dict(),
                    date=f"2030-01-01T00:{serial // 60:02d}:{serial % 60:02d}+00:00", commit=COMMIT,
                    dirty=(), command="pytest", planned_launches=case.launches, gates=case.gates,
                    margins_pct=case.margins_pct, extended=case.extended,
                    fingerprint=Fingerprint(
                        device_name=H200.name if case.device == "cuda" else "x86_64",
                        device_uuid=H200.uuid if case.device == "cuda" else "", torch="2.13.0",
                        driver=H200.driver if case.device == "cuda" else ""),
                    launches=tuple(launch(i + 1, 10.0) for i in range(case.launches)),
                    counts=Counts(counted(KNOWN_COUNTS, case.device, case.world_size)),
                    tokens_per_step=64, wall_s=1.0)  # fmt: skip


class Run:
    """A run of pytest that is over."""

    def __init__(self, result: pytest.RunResult) -> None:
        self._result = result

    def __getattr__(self, name: str):
        return getattr(self._result, name)

    def says(self, *lines: str) -> None:
        """It printed these lines, which may have wildcards, in this order."""
        self.stdout.fnmatch_lines(lines)


class Gate:
    """A suite in a folder of its own; see the module."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester, self._monkeypatch = pytester, monkeypatch
        self.path = pytester.path
        self.gpus: list[Gpu] = []
        self.hidden_gpus = 0  # by CUDA_VISIBLE_DEVICES
        self.measured: list[str] = []
        self.may_be_enough = False  # whether the last case could end before all was measured
        self.fields: dict[str, dict[str, object]] = {}
        self.paired: list[tuple[str, str, float]] = []  # case, base commit, budget in s
        self.pair_fields: dict[str, dict[str, object]] = {}
        self._serial = 0
        pytester.makeconftest('pytest_plugins = ["stepguard.plugin"]\n')
        self.baselines = self.path / "baselines"
        self.baselines.mkdir()

    def known_gpus(self) -> int:
        """How many the machine has, hidden ones too."""
        return len(self.gpus) + self.hidden_gpus

    @staticmethod
    def cpu(name: str = "nano", **fields) -> Case:
        """A case that runs on a CPU."""
        return Case(name, "factories:linear", device="cpu", launches=1, **fields)

    @staticmethod
    def cuda(name: str = "124m", **fields) -> Case:
        """A case that needs a GPU."""
        return Case(name, "factories:linear", device="cuda", **fields)

    def suite(self, *cases: Case) -> None:
        """A test file that declares these cases as a user would."""
        listed = "".join(f"    {case!r},\n" for case in cases)
        self.tests(f"@cases(\n{listed})\ndef test_step(perf, case):\n    perf(case)\n")

    def tests(self, body: str) -> None:
        """A test file with this body; Case and cases are imported."""
        head = "import pytest\nfrom stepguard import Case\nfrom stepguard.plugin import cases\n\n\n"
        (self.path / "test_perf.py").write_text(head + body)

    def will_measure(self, case: Case, **fields) -> None:
        """From now on the case's evidence has these fields; step_ms, counters and torch too."""
        self.fields[case.id] = fields

    def evidence(self, case: Case) -> Evidence:
        """What measuring the case gives now."""
        self._serial += 1
        fields = dict(self.fields.get(case.id, {}))
        made = sound_evidence(case, self._serial)
        step_ms = fields.pop("step_ms", None)
        counters = fields.pop("counters", {})
        torch = fields.pop("torch", None)
        if step_ms is not None:
            launches = tuple(launch(i + 1, step_ms) for i in range(case.launches))
            made = replace(made, launches=launches)
        if torch is not None:
            made = replace(made, fingerprint=replace(made.fingerprint, torch=torch))
        counts = replace(made.counts, values=made.counts.values | counters)
        return replace(made, **({"counts": counts} | fields))

    def measure(self, case, bench, asked, progress, *pairs) -> Question:
        """In place of stepguard.measure.driver.measure."""
        if pairs:
            return self.measure_beside(case, bench, asked, progress, *pairs)
        self.measured.append(case.id)
        progress("launch 1: start")
        progress("launch 1: block 1 of 3")
        made = self.evidence(case)
        counts = replace(made.counts, launches=2) if made.counts else None
        more = replace(made, planned_launches=len(made.launches) + 1, counts=counts)
        self.may_be_enough = not need(replace(asked, now=more)).launch
        revision = bench.revision
        return replace(asked, now=replace(made, commit=revision.commit, dirty=revision.dirty))

    def will_compare(self, case: Case, pct: float = 0.0, **fields) -> None:
        """From now on the case takes ``pct`` percent longer than in any other revision, over six
        pairs that scatter by 0.015 %, or ``wider`` times that; ``head`` and ``base`` change a
        side's evidence, ``does`` is called first, with the two benches, ``ended`` is how it is
        ended after its pairs.
        """
        self.pair_fields[case.id] = {"pct": pct} | fields

    def measure_beside(self, case, bench, asked, progress, beside, keep) -> Question:
        """The same, of two trees."""
        self.paired.append((case.id, beside.bench.revision.commit, beside.budget_s))
        benches = (bench, beside.bench)
        progress("pair 1 head: block 1 of 2")
        fields = dict(self.pair_fields.get(case.id, {"pct": 0.0}))
        does, pairs = fields.pop("does", None), fields.pop("pairs", 6)
        if does:
            does(benches)
        wider = fields.pop("wider", 1.0)
        scatter = [wider * d for d in (0.0002, -0.0002, 0.0001, -0.0001, *[0.0] * 4)[:pairs]]
        moved = math.log1p(fields.pop("pct") / 100)
        sides = {"head": [10.0 * math.exp(moved + one) for one in scatter]}
        sides["base"] = [10.0] * pairs
        made = {}
        for (name, times), bench in zip(sides.items(), benches, strict=True):
            found = replace(
                sound_evidence(case, 1),
                launches=tuple(launch(i, ms) for i, ms in enumerate(times, start=1)),
                gates=judged(case),
                planned_launches=1,
                commit=bench.revision.commit,
                dirty=bench.revision.dirty,
            )
            changes = dict(fields.pop(name, {}))
            counters = found.counts.values | changes.pop("counters", {})
            counts = replace(found.counts, values=counters)
            made[name] = replace(found, **({"counts": counts} | changes))
        ended = fields.pop("ended", "")
        fields = {"alpha": beside.alpha} | fields
        found = replace(asked, pairs=Comparison(beside.against, **made, **fields))
        self.wants_another = bool(need(found))
        keep(found.pairs)
        if ended:
            raise RuntimeError(ended)
        return found

    def measure_really(self) -> None:
        """From now on a case is measured by worker processes."""
        real = stepguard.measure.driver.measure
        self._monkeypatch.setattr(stepguard.measure.suite, "measure", real)

    def record(self, *cases: Case, folder: Path | None = None) -> Path:
        """Give the cases a baseline: what measuring them gives now. The file of the last one."""
        path = Path()
        for case in cases:
            name = H200.name if case.device == "cuda" else ""
            file = baseline.file_name(case.device, name, case.world_size)
            path = (folder or self.baselines) / file
            accept(path, self.evidence(case), "")
        return path

    def record_anew(self, *cases: Case) -> None:
        """Put such a baseline in place of all that its file has."""
        path = self.record(*cases, folder=self.path.parent / f"{self.path.name}-anew")
        path.replace(self.baselines / path.name)

    def guarded(self, *gpus: Gpu, **fields) -> Case:
        """A case for this machine, which has these GPUs: in a test file, and recorded."""
        self.gpus = list(gpus)
        case = self.cuda(**fields) if gpus else self.cpu(**fields)
        self.suite(case)
        self.record(case)
        return case

    def recorded(self, gpu: Gpu, ahead: bool = True, step_ms: float = 11.0, **fields) -> Case:
        """A GPU case with a baseline of 10 ms from the repository's commit, one commit behind HEAD
        if ``ahead``; it takes ``step_ms`` now.
        """
        self.gpus = [gpu]
        case = self.cuda()
        self.suite(case)
        self.commit()
        self.will_measure(case, commit=self.git("rev-parse", "HEAD").strip())
        self.record(case)
        if ahead:
            self.commit()
        self.will_measure(case, step_ms=step_ms, **fields)
        return case

    def run(self, *arguments, **outcomes) -> "Run":
        """pytest in this folder, in this process; with these outcomes, if any are given."""
        self.measured.clear()
        self.paired.clear()
        # What a test has set is what this run is started with.
        self._monkeypatch.setattr(inherited, "STARTED", inherited.inherited_now())
        options = {"no_reraise_ctrlc": True}  # a test may be about a Ctrl-C
        result = self.pytester.runpytest_inprocess(*WITHOUT, *arguments, **options)
        if outcomes:
            result.assert_outcomes(**outcomes)
        return Run(result)

    def run_apart(self, *arguments: str) -> pytest.RunResult:
        """pytest in this folder, as a process of its own: for xdist, whose workers are."""
        command = [sys.executable, "-m", "pytest", "--basetemp", self.path.parent / "apart"]
        return self.pytester.run(*command, *WITHOUT, *arguments, timeout=BUSY_LIMIT_S)

    def git(self, *arguments: str) -> str:
        """A git command in the folder."""
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        return subprocess.run(
            command, cwd=self.path, check=True, capture_output=True, text=True
        ).stdout

    def commit(self, tag: str = "") -> None:
        """Make the folder a repository with everything in it committed, and tagged if asked."""
        (self.path / ".gitignore").write_text(".stepguard/\n__pycache__/\n.pytest_cache/\n")
        if not (made := self.path / ".git").exists():
            for name in ("objects", "refs"):
                (made / name).mkdir(parents=True)
            (made / "HEAD").write_text("ref: refs/heads/main\n")
            (made / "config").write_text(GIT_CONFIG)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "all of it")
        if tag:
            self.git("tag", tag)


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    """The pytest inside must not take itself for a worker of the one outside."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gate(pytester, monkeypatch):
    """A suite in a folder of its own, with made-up measurements; without a GPU at first.

    Three seams are patched: the machine's GPUs, the launches of a case, and its pairs.
    """
    made = Gate(pytester, monkeypatch)
    monkeypatch.setattr(stepguard.plugin.session, "visible_gpus", lambda: list(made.gpus))
    monkeypatch.setattr(stepguard.plugin.session, "known_gpus", made.known_gpus)
    monkeypatch.setattr(stepguard.measure.suite, "measure", made.measure)
    # Every run would read all that is installed, and ask git for a name that nothing shows.
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: PLUGINS)
    monkeypatch.setattr(importlib.metadata, "version", VERSION)
    monkeypatch.setattr(packages, "requirements", REQUIREMENTS)
    monkeypatch.setattr(pytest_benchmark.plugin, "get_tag", lambda: "tag")
    # They start a Python to look at the CPU, and a program to look at Python.
    monkeypatch.setattr(pytest_benchmark.plugin, "get_cpu_info", dict)
    monkeypatch.setattr(pytest_benchmark.session, "get_machine_id", lambda: "machine")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(pytester.path.parent))
    return made


@pytest.fixture
def h200():
    """The GPU whose baselines ``gate.record`` writes."""
    return H200


@pytest.fixture
def no_tree():
    """In place of tree_of: another revision's tree cannot be had."""

    @contextlib.contextmanager
    def full(*arguments):
        raise TreeError("cannot be made: no space left; free some")
        yield

    return full
