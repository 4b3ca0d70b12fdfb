"""accept(): which evidence becomes a recording, where it goes, and what is refused."""

import difflib
import json
import threading

import pytest
from builders import (
    CASE_ID,
    COUNTS,
    DETAIL,
    FINGERPRINT,
    baseline_file,
    block,
    cpu_evidence,
    evidence,
    launch,
    replace,
    with_counts,
)
from git_repositories import git, repository

from stepguard.core.comparison import Question
from stepguard.core.evidence import Counts, Difference, Fault
from stepguard.core.metrics import BETWEEN_STEPS, METRICS, OPERATORS, UNWANTED
from stepguard.core.reasons import Reason
from stepguard.core.recording import KEPT_RECORDINGS
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.judge.rule_book import judge
from stepguard.report.metric_list import moves
from stepguard.report.metric_notes import note
from stepguard.storage import accept_recording as acceptance
from stepguard.storage.accept_recording import Accepted, Action, accept
from stepguard.storage.baseline_files import load, save
from stepguard.storage.json_file import FileError


@pytest.fixture
def path(tmp_path):
    """Where the baseline goes; nothing is there yet."""
    return tmp_path / "h200x1.json"


def run(number, launch_ms=(250.0,) * 3, **changes):
    """The evidence of the ``number``th run."""
    return evidence(launch_ms, date=f"run {number:04d}", commit=f"{number:040x}", **changes)


def epochs(path, case_id=CASE_ID):
    """The epochs that the file holds."""
    return load(path).cases[case_id].epochs


def refused(path, found, reason="", match=""):
    """accept() refuses, and the file is as it was, or still not there."""
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(FileError, match=match):
        accept(path, found, reason)
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("gone", ["file", "folder"])
def test_a_file_that_git_has_is_not_begun_anew(tmp_path, gone):
    """Deleted by mistake, it has other cases and levels: it is restored, or removed from git."""
    path = tmp_path / "baselines" / "h200x1.json"
    accept(path, evidence(), "")
    repository(tmp_path)
    git(tmp_path, "add", "-A")
    path.unlink()
    if gone == "folder":
        path.parent.rmdir()
    with pytest.raises(FileError, match=f"git has it, .* git checkout -- {path}"):
        accept(path, evidence(), "")
    assert not path.exists()
    git(tmp_path, "rm", "-q", "--cached", path)
    assert accept(path, evidence(), "").action is Action.FIRST_RECORDING


def test_same_appends_to_the_epoch(path):
    """What is same makes the epoch's next recording; it keeps its reason."""
    accept(path, run(1), "why not")
    done = accept(path, run(2, (251.0,) * 3), "")
    assert done == Accepted(CASE_ID, Action.APPENDED, path, 2)
    (only,) = epochs(path)
    assert [recording.date for recording in only.recordings] == ["run 0001", "run 0002"]
    assert only.reason == "why not"


def test_the_newest_twenty_are_kept(path):
    """An epoch holds 20 recordings: its first, from which drift is told, and the newest."""
    assert KEPT_RECORDINGS == 20
    for number in range(23):
        accept(path, run(number), "")
    dates = [recording.date for recording in epochs(path)[0].recordings]
    assert dates == [f"run {number:04d}" for number in (0, *range(4, 23))]


@pytest.mark.parametrize(("pct", "most_pct"), [(0.3, 1.2), (0.05, 4.6)])
def test_a_level_does_not_creep(path, pct, most_pct):
    """Steps that are each `same` do not add up for ever: the mean of the recordings is compared,
    and the first of them is kept.
    """
    ms, number = 100.0, 0
    with pytest.raises(FileError, match=r"\(limit 0.70 %\); a new level needs a reason"):
        for number in range(1, 120):
            accept(path, run(number, (ms,) * 3), "")
            ms *= 1 + pct / 100
    assert ms == pytest.approx(100.0 + most_pct, abs=0.1)
    assert len(epochs(path)) == 1


@pytest.mark.parametrize("card", [FINGERPRINT.device_uuid, "GPU-5678"])
def test_a_moved_time_joins_where_pairs_cleared_the_code(path, card):
    """Another card joins in this way; by the recordings alone it needs a reason."""
    accept(path, run(1), "")
    moved = run(2, (262.0,) * 3, fingerprint=replace(FINGERPRINT, device_uuid=card))
    limits = {"change_pct": 4.8, "limit_pct": 2.0}
    for status, reason in (
        (Status.SAME, Reason.UNCONFIRMED),
        (Status.SLOWER, Reason.BEYOND_LIMIT),
    ):
        time = MetricVerdict("step_ms", status, reason, **limits)
        by_run = Verdict(moved.case_id, status, reason, metrics=(time,))
        with pytest.raises(FileError, match="a new level needs a reason"):
            accept(path, moved, "", verdict=by_run)
    cleared = Verdict(moved.case_id, Status.SAME, Reason.WITHIN_MARGINS)
    done = accept(path, moved, "", verdict=cleared)
    assert (done.action, done.number) == (Action.APPENDED, 2)


def test_slower_under_other_software_needs_a_reason(path):
    """An upgrade must not carry a slowdown in unseen."""
    accept(path, run(1), "")
    newer = replace(FINGERPRINT, torch="2.12.0+cu130")
    slower = run(2, (270.0,) * 3, fingerprint=newer)
    for none in ("", "...", "'...'"):
        match = r"against the recordings of other software: step_ms \+8.00 %"
        refused(path, slower, none, match=match)
    done = accept(path, slower, "torch 2.12 is slower here")
    assert done == Accepted(CASE_ID, Action.EPOCH_OPENED, path, 2, "torch 2.12 is slower here")


@pytest.mark.parametrize("metric", UNWANTED)
def test_waste_that_comes_with_other_software_needs_a_reason(path, metric):
    """Versions call other operators, but it is the code that waits for the GPU, or leaks: beside an
    upgrade a sync would else be the level, and nothing would say so. Less of it needs none.
    """
    kind = evidence if METRICS[metric].exists("cuda", 1) else cpu_evidence
    first = with_counts(kind(date="run 1"), **{metric: 1024})
    accept(path, first, "")
    newer = replace(first.fingerprint, torch="2.99.0")
    more, less = (
        replace(with_counts(first, **{metric: count}), date="run 2", fingerprint=newer)
        for count in (2048, 0)
    )
    rise = f"{metric} 1,024.* -> 2,048"
    refused(path, more, match=f"against the recordings of other software: {rise}")
    before = path.read_bytes()
    assert accept(path, less, "").action is Action.FIRST_OF_SOFTWARE
    path.write_bytes(before)
    done = accept(path, more, "so it is")
    assert done.action is Action.EPOCH_OPENED
    assert sum(line.startswith("  Recorded as normal: 2,048 ") for line in moves(done)) == 1


def test_upgrades_do_not_add_up(path):
    """Each upgrade within the limit of the one before, all together beyond it: a reason is due."""
    accept(path, run(1), "")
    for number in (1, 2):
        newer = replace(FINGERPRINT, torch=f"2.{11 + number}.0+cu130")
        upgraded = run(1 + number, (250.0 * 1.015**number,) * 3, fingerprint=newer)
        if number == 1:
            accept(path, upgraded, "")
    refused(path, upgraded, match=r"against the recordings of other software: step_ms \+3.02 %")


@pytest.mark.parametrize(("kind", "usual"), [(cpu_evidence, (5.0, 20.0)), (evidence, (0.2, 0.5))])
def test_margins_are_recorded_where_they_are_not_the_devices(path, kind, usual):
    """Also where nothing else is new. The device's own leave the file as it is without a word of
    them, be it that the evidence has them or that it is from before there were any.
    """
    found = kind()
    accept(path, found, "")
    for number, own in enumerate([usual, (6.0, 25.0), usual, (6.0, 25.0), ()], 1):
        accept(path, replace(found, date=f"run {number}", margins_pct=own), "")
        margins = load(path).cases[found.case_id].margins
        assert (margins.ignore_pct, margins.matter_pct) == (own or usual)
        assert ("margins_pct" in path.read_text()) == (own == (6.0, 25.0))


def test_a_time_that_was_not_gated_is_no_level(path):
    """Launches that gate no time need not get steady. Whoever gates it later has no baseline, and
    not theirs, beside which a slower step would pass.
    """
    counters = tuple(name for name in evidence().gates if METRICS[name].kind == "counter")
    shown = tuple(launch(ms, steady="not steady after 5 s") for ms in (250.0, 400.0))
    accept(path, run(1, (250.0,) * 2, gates=counters, launches=shown), "")
    found = judge(Question(run(2, (290.0,) * 2), load(path).cases[CASE_ID]))
    assert (found.status, found.reason) == (Status.NO_BASELINE, Reason.NOT_RECORDED)


def test_a_vague_difference_is_refused(path):
    """A sync overhead known to a point either way is no level to compare with."""
    pairs = ((100.0, 100.0), (100.0, 102.0), (100.0, 100.0), (100.0, 102.0))
    vague = run(1, differences=(Difference("sync_overhead", pairs),))
    refused(path, vague, match=r"sync_overhead is known to \+- 1.84 % of a step only")


@pytest.mark.parametrize("ms", [230.0, 270.0])
def test_another_level_needs_a_reason(path, ms):
    """A changed time, either way, is refused without a reason and opens an epoch with one."""
    accept(path, run(1), "")
    for none in ("", " ", "...", "'...'"):  # the dots of a pasted command are no reason
        refused(path, run(2, (ms,) * 3), none, match="new level needs a reason.*--reason")
    done = accept(path, run(2, (ms,) * 3), "fused the loss")
    assert done == Accepted(CASE_ID, Action.EPOCH_OPENED, path, 2, "fused the loss")
    old, new = epochs(path)
    assert (len(old.recordings), len(new.recordings)) == (1, 1)
    assert new.reason == "fused the loss"
    assert judge(Question(run(3, (ms,) * 3), load(path).cases[CASE_ID])).status is Status.SAME


def test_a_metric_that_is_new_joins_the_level(path):
    """It needs a reason, but what cards and days tell of the times stays; with anything that moved
    beside it, it is another level.
    """
    known = {name: value for name, value in COUNTS.items() if name != BETWEEN_STEPS}
    gates = tuple(name for name in evidence().gates if name != BETWEEN_STEPS)
    accept(path, run(1, counts=Counts(known, {}, DETAIL), gates=gates), "")
    refused(path, run(2), match=f"{BETWEEN_STEPS} is new; a new level needs a reason")
    slower, beside = run(3, (260.0,) * 3), path.with_name("beside.json")
    beside.write_bytes(path.read_bytes())
    assert accept(beside, slower, "both").action is Action.EPOCH_OPENED
    assert accept(path, run(4), "it is counted").action is Action.APPENDED
    (only,) = epochs(path)
    assert only.reason == "first recording; it is counted" and len(only.recordings) == 2
    worse = with_counts(run(5), **{BETWEEN_STEPS: COUNTS[BETWEEN_STEPS] + 4096})
    assert judge(Question(worse, load(path).cases[CASE_ID])).status is Status.CHANGED


def test_a_metric_that_the_newest_recording_lacks_is_not_new(path):
    """An older one of the level has it, at another value: what comes now is another level."""
    accept(path, run(1), "")
    known = {name: value for name, value in COUNTS.items() if name != BETWEEN_STEPS}
    gates = tuple(name for name in evidence().gates if name != BETWEEN_STEPS)
    accept(path, replace(run(2), counts=replace(run(2).counts, values=known), gates=gates), "")
    worse = with_counts(run(3), **{BETWEEN_STEPS: COUNTS[BETWEEN_STEPS] + 4096})
    assert accept(path, worse, "it is counted").action is Action.EPOCH_OPENED


def test_other_parameters_need_a_reason(path):
    """A case that was redefined opens an epoch and its entry holds the new parameters."""
    accept(path, run(1), "")
    case = evidence().case | {"params": {"batch": 32}}
    refused(path, run(2, case=case), match="new level needs a reason")
    newer = replace(FINGERPRINT, torch="2.12.0+cu130")
    refused(path, run(2, case=case, fingerprint=newer), match="new level needs a reason")
    accept(path, run(2, case=case), "half the batch")
    assert load(path).cases[CASE_ID].case == case
    assert judge(Question(run(3), load(path).cases[CASE_ID])).reason is Reason.OTHER_CONDITIONS


def test_the_first_under_other_software_appends(path):
    """New versions bring a level of their own: the first recording under them needs no reason."""
    accept(path, run(1), "")
    newer = replace(FINGERPRINT, torch="2.12.0+cu130")
    first = run(2, (200.0,) * 3, fingerprint=newer)
    places = {OPERATORS: (Site("aten.mm.default", "model/gpt.py", 7, "forward", "x @ y"),)}
    done = accept(path, replace(first, counts=replace(first.counts, sites=places)), "")
    assert done.action is Action.FIRST_OF_SOFTWARE
    (only,) = epochs(path)
    assert len(only.recordings) == 2
    entry = load(path).cases[CASE_ID]
    assert judge(Question(run(3, (200.0,) * 3, fingerprint=newer), entry)).status is Status.SAME
    assert judge(Question(run(3, (200.0,) * 3), entry)).reason is Reason.UNCONFIRMED  # it moved
    refused(path, run(4, (230.0,) * 3, fingerprint=newer), match="new level")


def test_pairs_carry_a_level_over_to_other_software(path):
    """Whatever its figures are, if this tree has those of the level under its software."""
    accept(path, run(1), "")
    newer = run(2, (270.0,) * 3, fingerprint=replace(FINGERPRINT, torch="2.12.0+cu130"))
    unknown = run(2, fingerprint=replace(FINGERPRINT, torch="2.10.0+cu130"))
    same = Verdict(newer.case_id, Status.SAME, Reason.WITHIN_MARGINS)
    for other in (unknown, run(2, (255.0,) * 3)):
        with pytest.raises(FileError, match="name the one that recorded it"):
            accept(path, newer, "", verdict=same, beside=other)
    less = MetricVerdict("flops_per_step", Status.SAME, Reason.TIME_DECIDES, 2.0, 1.0)
    with pytest.raises(FileError, match="other work under this software: flops_per_step"):
        accept(path, newer, "", verdict=replace(same, metrics=(less,)), beside=run(2))
    done = accept(path, newer, "", verdict=same, beside=run(2))
    assert done.action is Action.FIRST_OF_SOFTWARE
    (only,) = epochs(path)
    assert only.reason == "first recording; carried over from torch 2.11.0+cu130 by pairs"


def test_the_same_evidence_is_recorded_once(path):
    """The same run twice would narrow the limit by nothing. So what --perf-update recorded of a run
    stops nobody from accepting the rest of it.
    """
    accept(path, run(1), "")
    before = path.read_bytes()
    for reason in ("", "why"):
        assert accept(path, run(1), reason).action is Action.NOTHING_TO_ADD
    assert path.read_bytes() == before


@pytest.mark.parametrize(("changes", "match"), [
    ({"dirty": ("a", "b", "c", "d")}, "uncommitted changes .a, b, c and 1 more.: commit them"),
    ({"commit": ""}, "no commit yet, or git was not on PATH; commit, then measure again"),
    ({"faults": (Fault(Reason.RAISED, "ValueError: planted"),)}, "BROKEN: ValueError: planted"),
    ({"faults": (Fault(Reason.FOREIGN_PROCESS, "process 7"),)}, "UNFIT: process 7"),
    ({"launches": ()}, "BROKEN: no launch"),
    ({"planned_launches": 4}, "BROKEN: 3 of 4 launches"),
    ({"launches": (launch(steady="drifts"),) * 3}, "INCONCLUSIVE: launch 1: drifts"),
    ({"launches": (launch(blocks=(block(events_ms=(1.0,)),)),) * 3}, "BROKEN: launch 1"),
    ({"counts": None}, "BROKEN: no values of [a-z_]+ were measured"),
    ({"floor_flops_per_step": 1e18}, "BROKEN.*peak"),
])  # fmt: skip
@pytest.mark.parametrize("reason", ["", "right all the same"])
def test_unsound_evidence_is_refused(path, changes, match, reason):
    """A dirty tree or a faulty measurement is no recording, whatever the reason given."""
    found = replace(run(1), **changes)
    refused(path, found, reason, match)
    assert not path.exists()
    accept(path, run(0), "")
    refused(path, found, reason, match)


def test_another_machine_is_refused(path):
    """A file holds one kind of machine; figures of another do not get in."""
    save(path, baseline_file(machine="NVIDIA H100 80GB HBM3"))
    before = path.read_bytes()
    with pytest.raises(FileError, match="figures of 'NVIDIA H100 80GB HBM3', not of 'NVIDIA H200'"):
        accept(path, run(1), "reason")
    assert path.read_bytes() == before


def test_one_launch_that_was_enough_adds_nothing(path):
    """It is no reason to refuse the run, whose other cases may have a new level. It is no
    recording either, whatever it would be.
    """
    refused(path, run(1, (250.0,)), match="1 launch, a time needs 2")
    accept(path, run(1), "")
    before = path.read_bytes()
    for reason in ("", "new"):
        assert accept(path, run(2, (250.0,)), reason).action is Action.ONE_LAUNCH
        assert path.read_bytes() == before
        refused(path, run(2, (275.0,)), reason, "1 launch, a time needs 2")
        refused(path, run(2, (250.0,), dirty=("model.py",)), reason, "uncommitted changes")


def test_cpu_counters_that_are_equal_add_nothing(path):
    """On a CPU an equal count says nothing new, and no time is recorded."""
    accept(path, cpu_evidence(date="run 1"), "")
    before = path.read_bytes()
    done = accept(path, cpu_evidence(date="run 2"), "")
    assert done.action is Action.NOTHING_TO_ADD
    assert path.read_bytes() == before
    content = load(path)
    recorded = content.cases["forward[nano-cpu]"].epochs[0].recordings[0]
    assert content.machine == "CPU"
    assert recorded.times_ms == {} and recorded.information == {}


def test_a_counter_that_no_recording_has_joins_its_level(path):
    """On a CPU, too, once: a run is then compared with it, and says no more that it is not."""

    name = "leaked_graph_nodes_per_step"
    accept(path, cpu_evidence(date="run 1"), "")
    older = json.loads(path.read_text())  # as it was before there was such a counter
    del older["cases"]["forward[nano-cpu]"]["epochs"][0]["recordings"][0]["counters"][name]
    path.write_text(json.dumps(older))
    assert accept(path, cpu_evidence(date="run 2"), "").action is Action.APPENDED
    before = path.read_bytes()
    assert accept(path, cpu_evidence(date="run 3"), "").action is Action.NOTHING_TO_ADD
    assert path.read_bytes() == before
    (epoch,) = load(path).cases["forward[nano-cpu]"].epochs
    assert [name in recording.counters for recording in epoch.recordings] == [False, True]


@pytest.mark.parametrize("gates", [(), evidence().gates])
def test_a_difference_that_creeps_needs_a_reason(path, gates):
    """Half a point of a step from the mean of the level's recordings is told."""

    def creeping(number, pct):
        pairs = ((100.0, 100.0 + pct),) * 6
        found = run(number, differences=(Difference("sync_overhead", pairs),))
        return replace(found, gates=(*gates, "sync_overhead_pct"))

    for number, pct in enumerate((0.2, 0.6, 0.8), 1):
        accept(path, creeping(number, pct), "")
    refused(path, creeping(4, 1.1), match=r"sync_overhead_pct \+0.57 % \(limit 0.50 %\); a new")
    assert accept(path, creeping(4, 1.1), "one more sync is meant").number == 2


def test_what_does_not_know_its_ranks_is_refused(path):
    """Without by_rank in the newest recording a rank could hide behind the busiest: restore it."""
    ranks = cpu_evidence().case | {"world_size": 2}
    found = cpu_evidence(case=ranks)
    accept(path, found, "")
    assert '"by_rank": {}' in path.read_text()
    path.write_text(path.read_text().replace('"by_rank": {},', ""))
    with pytest.raises(FileError, match="lacks by_rank.*mv "):
        accept(path, replace(found, date="run 2"), "")


def test_other_ranks_under_other_software_need_a_reason(path):
    """As much on the busiest rank, and another one does less: not the level of then."""
    case = cpu_evidence().case | {"world_size": 2}
    first = cpu_evidence(case=case)
    accept(path, first, "")
    flops = first.counts.values["flops_per_step"]
    less = replace(first.counts, by_rank={"flops_per_step": (flops, flops // 2)})
    other = replace(first.fingerprint, torch="9.9.9")
    later = replace(first, date="run 2", counts=less, fingerprint=other)
    refused(path, later, match="flops_per_step by rank")
    done = accept(path, replace(later, counts=first.counts), "")
    assert done.action is Action.FIRST_OF_SOFTWARE


def test_what_moved_is_kept_with_the_recording(path):
    """A recording keeps what its counters are made of, so that the next verdict can name a move."""
    accept(path, run(1), "")
    detail = {"operator_calls_per_step": {"aten.mm.default": 25, "aten.add.Tensor": 2376}}
    moved = with_counts(run(2), operator_calls_per_step=2401)
    moved = replace(moved, counts=replace(moved.counts, detail=detail))
    assert (
        note(judge(Question(moved, load(path).cases[CASE_ID])).worst) == "aten.mm.default 24 -> 25"
    )
    accept(path, moved, "one more product")
    assert epochs(path)[1].recordings[-1].detail == detail


def test_a_part_that_did_not_move_is_no_line_of_the_diff(path):
    """A new level's diff holds what moved and the recording's own facts, not a hundred operators
    again; the new recording has them all.
    """
    parts = {f"aten.operator_{number}.default": number + 1 for number in range(100)}
    text = ""
    for serial, extra in ((1, 0), (2, 4)):
        found = run(serial)
        detail = {"operator_calls_per_step": parts | {"aten.clone.default": 1 + extra}}
        values = found.counts.values | {"operator_calls_per_step": 5051 + extra}
        accept(path, replace(found, counts=Counts(values, detail=detail)), "clones")
        before, text = text, path.read_text()
    diff = [line for line in difflib.ndiff(before.splitlines(), text.splitlines())]
    changed = [line for line in diff if line[0] in "+-"]
    assert len(changed) < 60, "\n".join(changed)
    assert not any("operator_7." in line for line in changed)
    assert epochs(path)[1].recordings[-1].detail == detail
    (moved,) = accept(path, run(3), "clones gone").moved


def test_two_runs_record_at_once(path, monkeypatch):
    """Two runs of a checkout record into one file at the same moment, on two GPUs say: the second
    one waits, and does not write what it read before the first one saved.
    """
    accept(path, run(1), "")
    other = threading.Thread(target=accept, args=(path, run(2, case_id="other"), ""))

    def save_slowly(*content):
        if threading.current_thread() is not other:
            other.start()
            other.join(timeout=0.5)
        save(*content)

    monkeypatch.setattr(acceptance, "save", save_slowly)
    accept(path, run(3, case_id="first"), "")
    other.join()
    assert set(load(path).cases) == {CASE_ID, "first", "other"}
