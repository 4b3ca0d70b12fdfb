"""Modules that a case ran and that are in no commit, since git ignores them: they are said."""

import contextlib

from git_repositories import commit, repository
from short_launches import launch_spec

from stepguard import Case
from stepguard.core.replies import Sources
from stepguard.machine.git.revision import current
from stepguard.measure.case_workers import Bench, CaseWorkers, Ticker
from stepguard.report import verdict_text

CASE = Case("a", "work:step", device="cpu", launches=1)


def test_an_ignored_module_is_said(tmp_path):
    """The tree is clean by git's word; one of its three modules no other clone has. Those of the
    engine's own folder, and of packages in the tree, are no sources.
    """
    root = repository(tmp_path / "tree", work="import made, part", part="")
    (root / ".gitignore").write_text("made.py\n.stepguard/\nsite-packages/\n")
    commit(root, "ignore")
    files = {"work": "work.py", "part": "part.py", "made": "made.py", "os": "/usr/lib/os.py"}
    files |= {"lib": "site-packages/lib.py", "gen": ".stepguard/cache/gen.py"}
    for name in ("made.py", "site-packages/lib.py", ".stepguard/cache/gen.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    revision = current(root, None)
    assert revision.dirty == ()
    bench = Bench(root, tmp_path, tmp_path, (), revision, "pytest")
    workers = CaseWorkers(CASE, bench, Ticker(print), None, contextlib.ExitStack())
    sources = {name: str(root / file) for name, file in files.items()}
    ranks = [Sources(sources=sources, installed={})]
    workers.check_sources(ranks, launch_spec(root), "end")
    found = workers.evidence(planned_launches=1, gates=("step_ms",))
    assert found.untracked == ("made.py",)
    (said,) = verdict_text.remarks(found)
    assert "it runs a module that is in no commit: made.py; no other clone" in said
