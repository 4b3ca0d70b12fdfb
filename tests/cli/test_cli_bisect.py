"""python -m stepguard bisect: which commit it names, in how many measurements, in real git trees.

What a commit's step counts is what its tree says; real launches are in tests/smoke/test_bisect.py.
"""

import json
import subprocess
from dataclasses import replace

import pytest
from git_repositories import git

from stepguard.cli import bisect
from stepguard.core.comparison import Comparison, judged
from stepguard.core.evidence import Counts, Fault
from stepguard.core.reasons import Reason
from stepguard.machine.packages import Python

SYNCS = "sync_candidates_per_step"
SLOW, BROKEN = {SYNCS: 11}, "broken"  # other commits have 10
OTHER = {"operator_calls_per_step": 101}  # than 100
WORK = {"flops_per_step": 2000}  # than 1000
CASE = "factories:linear", "--device=cpu", "--json=-"


def chain(*states, begin="good"):
    """The lines of commits one after the other: name, parents, state. They are c1, c2, ..."""
    names = [begin, *(f"c{n}" for n in range(1, len(states) + 1))]
    return [
        (name, [before], state)
        for before, name, state in zip(names, names[1:], states, strict=False)
    ]


def of(culprit, most=8):
    """A chain whose commits have the sync from the culprit's number on."""
    return chain(*({} if n < culprit else SLOW for n in range(1, most + 1)))


BRANCH = [  # a branch of three, merged between three commits
    ("old", [], {}),
    ("good", ["old"], {}),
    ("b1", ["good"], {}),
    ("b2", ["b1"], {}),
    ("b3", ["b2"], {}),
    ("c1", ["good"], {}),
    ("merge", ["c1", "b3"], {}),
    ("c2", ["merge"], {}),
    ("bad", ["c2"], {}),
]


def slow_in(*names, begun="good"):
    """The history with a branch, slow in these commits. The branch began there."""
    lines = [(name, [begun] if name == "b1" else parents) for name, parents, _ in BRANCH]
    return [(name, parents, SLOW if name in names else {}) for name, parents in lines]


LINEAR = [(f"{n} of 8", of(n), f"c{n}", 5) for n in range(1, 9)]
HISTORIES = [  # its commits, what is named, how often something is measured
    *LINEAR,
    ("one commit", of(1, most=1), "c1", 2),
    ("it needs no answer that does not run", chain({}, BROKEN, {}, SLOW, SLOW, SLOW), "c4", 5),
    ("one of two", chain({}, {}, BROKEN, SLOW, SLOW), ["c3", "c4"], 4),
    ("none runs between", chain(BROKEN, BROKEN, SLOW), ["c1", "c2", "c3"], 3),
    ("in the branch", slow_in("b2", "b3", "merge", "c2", "bad"), "b2", 6),
    ("the merge itself", slow_in("merge", "c2", "bad"), "merge", 6),
    ("after the merge", slow_in("c2", "bad"), "c2", 4),
    ("a branch from before GOOD", slow_in("b3", "merge", "c2", "bad", begun="old"), "merge", 4),
    (
        "a branch of slow ones",
        slow_in("old", "b1", "b2", "b3", "merge", "c2", "bad", begun="old"),
        "merge",
        4,
    ),
    ("it got faster", chain({}, {}, {SYNCS: 9}, {SYNCS: 9}), "c3", 4),
    ("they cancel each other", chain({}, SLOW, SLOW, {}), None, 1),
    ("BAD does not run", chain({}, BROKEN), None, 1),
    ("another move on the way", chain({}, OTHER, {}, SLOW), "c4", 4),
    ("other work on the way", chain(WORK, WORK, WORK, WORK | SLOW), "c1", 5),
    ("a part of the move", chain({}, SLOW, {SYNCS: 12}, {SYNCS: 13}), "c2", 4),
]


def history(root, lines):
    """Make a repository of these commits, with a tag each; the last one is tagged bad, too."""
    lines = lines if lines[0][0] == "old" else [("good", [], {}), *lines]
    marks, stream = {}, []
    for number, (name, parents, state) in enumerate(lines, start=1):
        marks[name], text = number, json.dumps(state)
        stream += ["commit refs/heads/main", f"mark :{number}"]
        stream += [f"committer a <a@b> {1_000_000 + number} +0000", f"data {len(name)}", name]
        both = zip(("from", "merge"), parents, strict=False)
        stream += [f"{how} :{marks[one]}" for how, one in both]
        stream += ["M 100644 inline state.json", f"data {len(text)}", text]
        stream += [f"reset refs/tags/{name}", f"from :{number}", ""]
    root.mkdir(exist_ok=True)
    git(root, "init", "-q")
    given = "\n".join([*stream, "reset refs/tags/bad", f"from :{number}", ""])
    subprocess.run(
        ["git", "-C", root, "fast-import", "--quiet"], input=given, text=True, check=True
    )
    git(root, "reset", "-q", "--hard", "bad")


@pytest.fixture
def bisected(shell, monkeypatch):
    """Calls the command in the history; ``measured`` are the states that were looked at."""
    measured, ends = [], []

    def evidence(case, bench, state):
        if len(measured) in ends:
            ends.remove(len(measured))
            if len(measured) % 2:  # the driver notes it, or it comes elsewhere
                raise KeyboardInterrupt
            state = Fault(Reason.UNDECIDED, "ended by SIGINT")
        state = Fault(Reason.RAISED, "ImportError: planted") if state == BROKEN else state
        found = shell.made("run", counters=state if isinstance(state, dict) else {})
        found = replace(found, gates=judged(case), commit=bench.revision.commit)
        if isinstance(state, Fault):
            found = replace(found, faults=(state,), launches=(), counts=None)
        return found

    def in_tree(case, bench):
        measured.append((bench.revision.commit, judged(case)))
        return evidence(case, bench, json.loads((bench.root / "state.json").read_text()))

    def alone(case, bench, asked, progress):
        return replace(asked, now=in_tree(case, bench))

    def beside(case, bench, other, asked, progress, budget_s):
        head = in_tree(case, bench)
        base = json.loads((other.tree.root / "state.json").read_text())
        return Comparison("good", head, evidence(case, replace(bench, root=other.tree.root), base))

    monkeypatch.setattr(bisect, "measure", alone)
    monkeypatch.setattr(bisect, "measure_beside", beside)

    def call(*words):
        done = shell("bisect", *(words or ("good", "bad")), *CASE)
        last = done.out.splitlines()[-1:]
        done.found = json.loads(last[0]) if last and last[0].startswith("{") else {}
        return done

    call.measured, call.ends, call.root, call.made = measured, ends, shell.path, shell.made
    call.trees = lambda: (shell.path / ".stepguard" / "trees").iterdir()
    return call


def named(root, commits):
    return [git(root, "show", "-s", "--format=%s", one) for one in commits]


@pytest.mark.parametrize(
    ("lines", "expected", "most"), [row[1:] for row in HISTORIES], ids=[row[0] for row in HISTORIES]
)
def test_who_is_named(bisected, lines, expected, most):
    """The culprit, or between which commits; never more measurements than halves need, and nothing
    is left.
    """
    history(bisected.root, lines)
    done = bisected()
    culprit = named(bisected.root, filter(None, [done.found["culprit"]]))
    between = sorted(named(bisected.root, done.found["between"]))
    if isinstance(expected, str):
        assert (culprit, between, done.status) == ([expected], [], 0), done.out
        assert f"culprit: {git(bisected.root, 'rev-parse', expected)[:12]} {expected}" in done.out
    elif isinstance(expected, list):
        assert (culprit, between, done.status) == ([], expected, 1), done.out
    else:
        assert (culprit, len(between), done.status) == ([], expected or 0, 1), done.out
    assert len(bisected.measured) <= most, done.out
    assert [*(bisected.root / ".stepguard" / "bisect").glob("*")] == []
    assert [one.name for one in bisected.trees()] == ["lock"]


@pytest.mark.parametrize(("name", "words"), [
    ("they cancel each other",
     "nothing to find: if two changes cancel each other, name a BAD between"),
    ("BAD does not run", "name a GOOD and a BAD that both run the case"),
    ("none runs between", "skipped: {c2} (0 s): linear[run]: BROKEN: ImportError: planted"),
    ("another move on the way", "without it: {c2} (0 s): moved otherwise: linear[run]: CHANGED"),
    ("none runs between", "between these 3, none is proven:"),
])  # fmt: skip
def test_what_is_said(bisected, name, words):
    """Why nothing was found; why a commit was skipped; that it moved otherwise than BAD."""
    history(bisected.root, next(row[1] for row in HISTORIES if row[0] == name))
    short = f"{git(bisected.root, 'rev-parse', 'c2')[:12]} c2"
    done = bisected()
    assert words.replace("{c2}", short) in done.out, done.out


@pytest.mark.parametrize("at", (1, 4, 5))
def test_the_same_command_goes_on(bisected, at):
    """After Ctrl-C in the proof, in a half or in the last pairs, and once more: only what was
    interrupted is measured again.
    """
    history(bisected.root, of(3))
    plain = bisected()
    once = [*bisected.measured]
    bisected.measured.clear()
    bisected.ends += [at, at + 1]
    for _ in range(2):
        run = bisected()
        kept = f"the proof and {min(3, at - 2)} answer" if at > 1 else "BAD"
        assert run.status == 130 and kept in run.out.splitlines()[-1], run.out
        assert [one.name for one in bisected.trees()] == ["lock"]
    done = bisected()
    assert done.status == 0 and done.found["culprit"] == plain.found["culprit"]
    assert [one["of"] for one in done.found["answers"]] == [a["of"] for a in plain.found["answers"]]
    assert bisected.measured == [*once[:at], once[at - 1], *once[at - 1 :]]


@pytest.mark.parametrize(("words", "error"), [
    (("gone", "bad"), "'gone' is no revision of "),
    (("bad", "good"), "comes after good ("),
    (("HEAD", "bad"), "are one commit: name an older GOOD"),
    (("b1", "good"), "is no ancestor of good ("),
    (("good",), "name GOOD, BAD and CASE, or --pythons GOOD,BAD and CASE"),
    (("--pythons=/nowhere",), "name GOOD, BAD and CASE, or --pythons GOOD,BAD and CASE"),
    (("--pythons=/nowhere,/there",), "no program is there; make an environment"),
])  # fmt: skip
def test_what_cannot_be_searched(bisected, words, error):
    """It is said before anything is measured, with what mends it."""
    history(bisected.root, slow_in(begun="old"))
    done = bisected(*words)
    assert done.status in (1, 2) and error in done.err and not bisected.measured, done.err


def test_interpreters_in_order(bisected, monkeypatch):
    """The same search over a list, in the tree as it is; each is measured beside the first one, and
    the culprit beside the one before it.
    """
    asked, states = ["a", "b", "c", "d", "e"], {"d": SLOW, "e": SLOW}
    pairs = []

    def surveyed(one, *where):
        return Python(one, one, f"/{one}", (3, 12), True, {"torch": f"2.{ord(one)}"}, {})

    def beside(case, bench, other, *rest, budget_s):
        sides = [states.get(python.asked, {}) for python in other.pythons]
        pairs.append("".join(python.asked for python in other.pythons))
        head, base = (replace(shell_made(state), gates=judged(case)) for state in sides)
        return Comparison("x", head, base, python=other.pythons[1].asked)

    def shell_made(state):
        found = bisected.made("run", counters=state)
        return replace(found, counts=Counts(found.counts.values))

    monkeypatch.setattr(bisect, "survey_other", surveyed)
    monkeypatch.setattr(bisect, "measure_beside", beside)
    history(bisected.root, of(1, most=1))
    done = bisected(f"--pythons={','.join(asked)}")
    assert (done.found["culprit"], done.status) == ("d", 0), done.out
    assert pairs == ["ea", "ca", "da", "dc"]
