"""A folder to call the command line in, in this process, with made-up measurements."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
from counts import counted

import stepguard.measure.suite
from stepguard import Case
from stepguard.cli import common, workload_arguments
from stepguard.cli import main as cli
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Block, Counts, Evidence, Launch
from stepguard.core.fingerprint import Fingerprint
from stepguard.storage.kept_runs import Store

KNOWN_COUNTS = {"flops_per_step": 1000, "operator_calls_per_step": 100,
                "compiled_operator_calls_per_step": 50, "generated_kernels": 7, "graph_breaks": 0,
                "unique_graphs": 1, "peak_allocated_bytes": 2**20}  # fmt: skip
BLOCK = Block(steps=4, wall_ms=(40.0,), events_ms=(40.0,), step_ms=(10.0,) * 4)
LAUNCH = Launch(1, (BLOCK,), compile_s=1.0, warmup_s=1.0, warmup_steps=3, steady="", wall_s=9.0)


def made(name="nano", *, counters=None, params=None, **fields) -> Evidence:
    """Sound evidence of a CPU case on a clean commit, but for what is given."""
    case = Case(name, "factories:linear", params or {}, device="cpu", launches=1)
    evidence = Evidence(
        case_id=case.id, case=case.as_dict(), date="2030-01-01T00:00:00+00:00", commit="a" * 40,
        dirty=(), command="pytest", planned_launches=1, gates=case.gates,
        fingerprint=Fingerprint("x86_64", "", torch="2.13.0"), launches=(LAUNCH,),
        counts=Counts(counted(KNOWN_COUNTS, "cpu") | (counters or {})),
        tokens_per_step=64)  # fmt: skip
    return replace(evidence, **fields)


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    """``shell(*arguments)`` calls the command line in a folder of its own: status, out, err."""
    monkeypatch.chdir(tmp_path)
    for module in (common, workload_arguments):
        monkeypatch.setattr(module, "visible_gpus", lambda: [])

    def call(*arguments):
        capsys.readouterr()
        try:
            status = cli.main(list(arguments))
        except SystemExit as leaving:
            status = leaving.code
        told = capsys.readouterr()
        return SimpleNamespace(status=status, out=told.out, err=told.err)

    def keep(*evidences):
        store = Store(tmp_path)
        run = store.new_run()
        kept = []
        for evidence in evidences:
            name = evidence.case_id.translate(str.maketrans("[]", "--"))
            again = sum(path.parent.name.startswith(name) for path in kept)
            kept.append(store.keep(run, name + str(again or ""), evidence))
        return kept

    def record(*evidences):
        keep(*evidences)
        call("accept")

    def keep_comparison(head, base, **fields):
        store = Store(tmp_path)
        found = Comparison("main", head, base, **fields)
        return store.keep(store.new_run(), "0", found)

    def commit():
        (tmp_path / ".gitignore").write_text(".stepguard/\n")
        for command in ("init -q", "add -A", "commit -q -m all"):
            git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *command.split()]
            subprocess.run(git, cwd=tmp_path, check=True)

    def will_measure(evidence):
        def measure(case, bench, asked, progress):
            revision = {"commit": bench.revision.commit, "dirty": bench.revision.dirty}
            found = replace(evidence, case_id=case.id, case=case.as_dict(), **revision)
            return replace(asked, now=found)

        monkeypatch.setattr(stepguard.measure.suite, "measure", measure)

    call.keep, call.path, call.made = keep, tmp_path, made
    call.record, call.keep_comparison = record, keep_comparison
    call.commit, call.will_measure = commit, will_measure
    return call
