"""What launches do: one tree's, and those of two trees in turns, with groups that only say what
they were asked. A group's step takes as long as the test says, on no clock but the one in its
answers.
"""

import math
import re
import threading

import msgspec
import pytest
from builders import replace
from recorded_kernels import COLD, edited, longer, profile

import stepguard.measure.case_workers
import stepguard.measure.driver
import stepguard.measure.turns
from stepguard import Case, Loop
from stepguard.core.comparison import Question
from stepguard.core.evidence import Disturbance, Fault
from stepguard.core.metrics import SYNCS
from stepguard.core.profile import MachineCode
from stepguard.core.reasons import Reason
from stepguard.core.replies import REPLIES
from stepguard.core.status import Status
from stepguard.judge import rule_book
from stepguard.judge.pair_statistics import MOST_PAIRS
from stepguard.judge.rule_book import NOTHING, Need, next_pair
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.machine.git.revision import Revision
from stepguard.machine.gpu import Gpu
from stepguard.measure.case_workers import Bench
from stepguard.measure.driver import Pairing
from stepguard.measure.warm_up import PAIR_PROTOCOLS

H200 = Gpu("GPU-1234", "NVIDIA H200", "580.159", 1980)
GIB = 2**30
STEP_MS = {"head": 250.0, "base": 250.0}
CPU = Case("a", "m:f", device="cpu", launches=1, gates=("step_ms", "flops_per_step"))
GPU = Case("a", "m:f", gates=("step_ms", "flops_per_step"))
FIRST = ["first launch head", "first launch base"]
COUNTING = ["counting launch head", "counting launch base"]
ENDING = ("sources", "exit", "leave")
HOT = Disturbance(Reason.THROTTLED, "thermal slowdown")


class World:
    """What happened, in order, and what the groups are to do."""

    def __init__(self):
        self.events = []  # (label, what)
        self.groups = {}  # by label; of one closed and started again the latter
        self.step_ms = dict(STEP_MS)
        self.peak_bytes = {"head": 40 * GIB, "base": 40 * GIB}
        self.fails = {}  # (label, command): reason
        self.fails_once = {}  # the same, but the next time it works
        self.slow_imports = {}  # label: how often it says that it is not ready
        self.slow_agents = {}  # the same of a standby's agent
        self.taints = []  # of the blocks to come, in order
        self.threads = {}
        self.identities = {}  # of each side's step; none: it is not known
        self.counted = {}  # further counts of each side's step
        self.comes_after = {}  # label of a first step: the event that it waits for
        self.compiles = {}  # label: which of its blocks still compile, from the first on
        self.afresh = set()  # labels that find nothing of it in the cache
        self.profiles = {}  # of each side's step; none: there is none
        self.profiled = {}  # label: the profile of a launch that ran other kernels
        self.other_ranks = []  # what they answer if they are asked for kernels
        self.counts = {}  # label: what it counts beside the peak

    def asked(self, *labels):
        """The events of these labels."""
        return [event for event in self.events if event[0] in labels]


class Monitor:
    """Who watches the GPUs."""

    def __init__(self, world):
        self.world, self.gpus, self.expected = world, (H200,), []

    def expect(self, *groups):
        """The processes that may be there."""
        self.expected.append(groups)

    def poll(self):
        """Sampled by the main thread alone."""
        assert threading.current_thread() is threading.main_thread()

    def annotate(self, block, ranks):
        """The next taint that the test planned."""
        return replace(block, disturbance=self.world.taints.pop(0) if self.world.taints else None)


def fake_group(world):
    """A WorkerGroup's stand-in."""

    class Group:
        def __init__(self, spec, environment):
            self.spec, self.pids, self.closed = spec, {}, False
            self.token = "token"
            self.label, self.standby = spec.label, spec.standby
            self.side = "head" if "head" in spec.folder.parts else "base"
            world.groups[self.key] = self
            self.note("start")

        @property
        def key(self):
            both = self.label in ("first launch", "counting launch")
            return f"{self.label} {self.side}" if both else self.label

        def note(self, what):
            world.events.append((self.key, what))
            asked = (self.key, what.partition(" ")[0])
            if reason := world.fails.get(asked) or world.fails_once.pop(asked, ""):
                raise LaunchFailed(Fault(Reason(reason), "planted", "", f"{self.label}, {what}"))

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            self.close()

        @property
        def released(self):
            return not self.standby

        def hello(self, poll):
            self.release()
            self.note("hello")
            self.pids = {0: len(world.groups)}

        def ready(self):
            assert not self.standby
            left = world.slow_imports.get(self.key, 0)
            world.slow_imports[self.key] = left - 1
            self.note("ready" if left <= 0 else "importing")
            return left <= 0

        def imported(self):
            left = world.slow_agents.get(self.key, 0)
            world.slow_agents[self.key] = left - 1
            self.note("imported" if left <= 0 else "importing")
            return left <= 0

        def release(self):
            if self.standby:
                self.standby = False
                self.note("release")

        def let_exit(self):
            self.note("exit")

        def leave(self):
            self.note("leave")
            self.closed = True

        def close(self):
            if not self.closed:
                self.closed = True
                self.note("close")

        def request(self, command, *, limit_s, poll, progress, **arguments):
            assert not self.closed and limit_s > 0
            poll()
            progress("asked")
            world.threads[(self.key, command)] = threading.current_thread()
            self.note(f"{command} {arguments['steps']}" if command == "block" else command)
            others = world.other_ranks if command == "kernels" else []
            answers = [getattr(self, command)(**arguments), *others]
            if command in ("count", "count_eager", "locate"):
                answers = [{"counts": counts} for counts in answers]
            return [msgspec.convert(one, REPLIES[command]) for one in answers]

        def prepare(self, case, timed_s):
            self.on_gpu = case["device"] == "cuda"
            if self.on_gpu:  # nobody may be on a GPU who is not expected there
                assert [*self.pids.values()] in world.monitor.expected[-1]
            return {"tokens_per_step": 10, "flops_per_step": 1.0, "precision": "bf16",
                    "fingerprint": {"device_name": "x", "device_uuid": H200.uuid, "torch": "2.13",
                                    "cuda": "13.0"}, "sources": {}, "installed": {},
                    "memory_bytes": 140 * GIB}  # fmt: skip

        def first_step(self):
            if event := world.comes_after.get(self.key):
                event.wait(5.0)
            reserved = world.peak_bytes[self.side]
            compiled = {"compiled_afresh": False, "missed_graphs": 0}
            return {"compile_s": 1.5, "reserved_bytes": reserved * self.on_gpu} | compiled

        def count(self):
            information = {"peak_reserved_bytes": float(world.peak_bytes[self.side])}
            values = world.counted.get(self.side, {})
            counts = {"values": values, "information": information, "unstable": {}}
            if self.side in world.identities:
                counts["identity"] = {"parts": {"kernels": world.identities[self.side]}}
            self.counted = counts | {"profile": msgspec.to_builtins(world.profiles.get(self.side))}
            return self.counted | world.counts.get(self.key, {})

        def count_eager(self):
            values = {"flops_per_step": 7}
            found = self.counted | world.counts.get(self.key, {})
            return found | {"values": found["values"] | values}

        def locate(self):
            return {"values": {SYNCS: 1}, "sites": {SYNCS: [{"what": f"line of {self.key}"}]}}

        def profile(self):
            return {}

        def kernels(self):
            known = world.profiled.get(self.key, world.profiles.get(self.side))
            return {"profile": msgspec.to_builtins(known), "problem": ""}

        def block(self, steps):
            ms = world.step_ms[self.side]
            self.run = min(getattr(self, "run", 0) + 1, world.compiles.get(self.key, 0))
            ahead_ms = ms / 2 if world.profiles else None
            block_ms = ms * steps
            single = {"step_ms": [ms] * steps, "enqueue_ms": ahead_ms, "began_ns": 1, "ended_ns": 2}
            return single | {
                "wall_ms": block_ms,
                "events_ms": block_ms,
                "outside_ms": block_ms,
                "compiled_graphs": self.run,
                "compiled_afresh": self.run > 0 and self.key in world.afresh,
            }

        def park(self):
            for event in world.comes_after.values():
                event.set()
            return {}

        def sources(self):
            return {"sources": {}, "installed": {}}

    return Group


@pytest.fixture
def world(monkeypatch, tmp_path):
    """What happens."""
    (tmp_path / "other").mkdir()
    made = World()
    made.monitor = Monitor(made)
    group = fake_group(made)
    monkeypatch.setattr(stepguard.measure.case_workers, "WorkerGroup", group)
    monkeypatch.setattr(stepguard.measure.case_workers, "WorkerGroup", group)
    monkeypatch.setattr(stepguard.measure.turns, "PAUSE_S", 0.0)
    monkeypatch.setattr(
        stepguard.measure.driver,
        "watch",
        lambda case, *rest: (made.monitor if case.device == "cuda" else None, None),
    )
    return made


@pytest.fixture
def bench(tmp_path):
    """HEAD's bench."""
    return Bench(tmp_path, tmp_path, tmp_path / "head", (H200,), Revision("f" * 40), "pytest")


@pytest.fixture
def measure(world, bench, tmp_path, monkeypatch):
    """Measures so many pairs of a case, or as long as the judge needs them; the comparison."""

    def measure(pairs=None, case=CPU, base="0" * 40, keep=lambda pairs: pairs, **pairing):
        def needs(asked):
            needed = rule_book.need(asked)
            if pairs is None or needed.counters:
                return needed
            return next_pair(asked.pairs) if asked.pairs.pairs < min(pairs, MOST_PAIRS) else NOTHING

        monkeypatch.setattr(stepguard.measure.driver, "need", needs)
        other = tmp_path / "other"
        beside = replace(bench, root=other, folder=tmp_path / "base", revision=Revision(base))
        beside, world.told = Pairing(beside, "main", **pairing), []
        told = world.told.append
        asked = stepguard.measure.driver.measure(case, bench, Question(), told, beside, keep)
        return asked.pairs

    return measure


def launched(world):
    """The labels of the launches that were built, in order."""
    return [label for label, what in world.events if what == "prepare"]


def judged(pairs):
    """The verdict on pairs."""
    return rule_book.judge(Question(pairs=pairs))


def blocks(world, number):
    """What the groups of a pair did, (side, what)."""
    front = "first launch" if number == 1 else f"pair {number}"
    both = world.asked(f"{front} head", f"{front} base")
    return [(label.split()[-1], what) for label, what in both]


@pytest.mark.parametrize(("number", "first"), [(3, "base"), (4, "head"), (5, "base")])
def test_blocks_take_turns(world, measure, number, first):
    """Base, head, head, base, in the next pair head, base, base, head; whoever has run is parked
    before the other goes on, and untimed steps come before each block.
    """
    world.step_ms = {"head": 250.0, "base": 250.0}
    found = measure(5)
    second = "head" if first == "base" else "base"
    block = [(second, "block 1"), (second, "block 4")]  # untimed, timed
    others = [(first, what) for _, what in block]
    wanted = [*others, (first, "park"), *block, *block, (second, "park"), *others]
    asked = [event for event in blocks(world, number) if event[1] not in ENDING]
    assert asked[-len(wanted) :] == wanted
    assert [len(side.launches) for side in (found.head, found.base)] == [5, 5]


@pytest.mark.parametrize("base_ms", [125.0, 250.0, 251.0, 2500.0])
@pytest.mark.parametrize(("taints", "alike"), [
    ([], [True, True]),
    ([HOT], [True, True]),
    ([None, HOT], [False, True]),  # base had run its first block by then
    ([None, None, HOT], [True, True]),
])  # fmt: skip
def test_both_time_the_same_steps(world, measure, taints, alike, base_ms):
    """Counted from the first, warm-up and all: a model that learns costs another time in every
    step. Who is disturbed, or takes longer to get steady, is ahead, and the other one catches up,
    untimed, where it still can. A block is as long as the faster side needs.
    """
    world.taints, world.step_ms = [*taints], {"head": 250.0, "base": base_ms}
    found = measure(1, GPU)
    (head,), (base,) = found.head.launches, found.base.launches
    (steps,) = {block.steps for launch in (head, base) for block in launch.blocks}
    assert steps == max(4, round(PAIR_PROTOCOLS["cuda"].block_s * 1e3 / min(250.0, base_ms)))
    ran = [[block.ran for block in launch.blocks] for launch in (head, base)]
    assert [a == b for a, b in zip(*ran, strict=True)] == alike
    for side, launch in (("head", head), ("base", base)):
        asked = [what.split() for who, what in blocks(world, 1) if who == side]
        counts = [int(what[1]) for what in asked if what[0] == "block"]
        begins = {sum(counts[:i]) for i, count in enumerate(counts) if count == steps}
        assert {block.ran for block in launch.blocks} <= begins


@pytest.mark.parametrize(("afresh", "replaced"), [
    ({"first launch base"}, 1),
    (set(), 0),  # every launch loads it: that is time of its step
    ({"first launch base", "pair 2 head"}, 0),  # every launch compiles it
])  # fmt: skip
@pytest.mark.parametrize("case", [CPU, GPU])
def test_what_one_side_compiles_in_a_block_for_both_is_not_its_time(
    world, measure, case, afresh, replaced
):
    """The pair is replaced by the next one, which finds all in the cache. No launch of a pair is
    unsteady by what is compiled, or loaded, in its blocks: the pairs judge it.
    """
    world.step_ms = {"head": 250.0, "base": 250.0}
    world.compiles, world.afresh = {"first launch base": 1000, "pair 2 head": 1000}, afresh
    found = measure(2, case)
    assert [pair.base.index for pair in found.again] == [1] * replaced
    launches = (*found.head.launches, *found.base.launches)
    assert found.pairs == 2 and not any(launch.steady for launch in launches)


@pytest.mark.parametrize("number", [1, 2])
def test_launches_one_after_the_other_time_the_same_steps(world, measure, number):
    """The second warms up by the windows of the first, whoever that is."""
    world.step_ms = {"head": 250.0, "base": 240.0}
    for label in ("first launch head", "pair 1 head"):
        world.fails_once[(label, "block")] = "OUT_OF_MEMORY"
    found = measure(number, GPU)
    head, base = (side.launches[-1] for side in (found.head, found.base))
    assert not found.together and {block.steps for block in (*head.blocks, *base.blocks)} == {8}
    assert [block.ran for block in head.blocks] == [block.ran for block in base.blocks]


def test_first_steps_run_alone(world, measure):
    """They compile, and no trial of a kernel is timed beside another launch."""
    measure(1, GPU)
    assert {world.threads[label, "first_step"] for label in FIRST} == {threading.main_thread()}


@pytest.mark.parametrize("case", [GPU, CPU])
@pytest.mark.parametrize("first", [True, False])
def test_waste_that_rose_ends_a_case_with_the_launches_that_count(world, measure, case, first):
    """No launch is timed."""
    name = "recompiles"
    world.times_first = first
    world.counted = {"head": {name: 1}, "base": {name: 0}}
    found = measure(None, replace(case, gates=(*case.gates, name)))
    assert (judged(found).status, found.pairs) == (Status.CHANGED, 0)
    assert not [label for label, what in world.events if what.startswith("block")]


@pytest.mark.parametrize(
    "squeezed", [(), *((side, what) for side in FIRST for what in ("count", "count_eager"))]
)
def test_one_pair_of_the_same_step_is_enough(world, measure, squeezed):
    """Also if a launch had too little memory to count at first."""
    if squeezed:
        world.fails_once[squeezed] = "OUT_OF_MEMORY"
    world.identities = {"head": "equal", "base": "equal"}
    world.profiles = {"base": profile(), "head": profile()}
    found = measure(None, GPU)
    verdict = judged(found)
    expected = (Status.SAME, Reason.IDENTICAL_STEP, 1)
    assert (verdict.status, verdict.reason, found.pairs) == expected


def test_a_base_without_memory_beside_head_is_counted_alone(world, measure):
    """Both first launches are ended before each tree counts by itself."""
    world.fails_once[("first launch base", "first_step")] = "OUT_OF_MEMORY"
    found = measure(1, GPU)
    assert launched(world)[:4] == FIRST + COUNTING and found.head.counts and found.base.counts
    told = world.asked(*FIRST, *COUNTING)
    again = told.index((COUNTING[0], "start"))
    assert {label for label, what in told[:again] if what == "close"} == {*FIRST}
    assert found.pairs == 1


def test_an_eager_step_without_memory_beside_the_other_launch_is_counted_alone(
    world, measure, differing
):
    """It takes more than the compiled step. Each tree is counted in a launch that has the card to
    itself, and the first pair is one of other launches.
    """
    for which in {FIRST[0]}, {FIRST[1]}, {*FIRST}:
        world.events.clear()
        world.fails_once = {(label, "count_eager"): "OUT_OF_MEMORY" for label in which}
        found = measure(1, GPU)
        assert launched(world)[:4] == FIRST + COUNTING and found.pairs == 1
        assert {*launched(world)[4:]} == {"pair 1 head", "pair 1 base"}
        for side in (found.head, found.base):
            assert side.counts.values == {"flops_per_step": 7} and not side.faults
            assert not side.counts.unstable and side.counts.profile
            assert [len(one.kernels_us) for one in side.launches] == [93]
        for label in which:
            *_, last = (what for _, what in world.asked(label))
            assert last == "close"


def test_lines_of_host_syncs_are_found_after_all_that_is_timed(world, measure):
    """torch reports them as they happen, which slows down what follows in that process."""
    counted = {"values": {SYNCS: 2}, "information": {}, "unstable": {}}
    world.counts = dict.fromkeys(FIRST, counted)
    found = measure(1, GPU)
    for label, side in zip(FIRST, (found.head, found.base), strict=True):
        last = [what for _, what in world.asked(label) if what not in ("park", *ENDING)][-1]
        assert last == "locate" and side.counts.values[SYNCS] == 1
        assert [site.what for site in side.counts.sites[SYNCS]] == [f"line of {label}"]


STEPS_VARY = {"values": {"launches_per_step": 9}, "lists": {"launches_per_step": [4, 5]}}


@pytest.mark.parametrize(("varies", "again"), [
    (set(), []),
    ({*FIRST, *COUNTING}, []),  # equal lists are equal
    ({FIRST[0]}, COUNTING[:1]),  # chance
    ({FIRST[0], COUNTING[0]}, COUNTING[:1]),  # the change
    ({FIRST[1]}, COUNTING),
])  # fmt: skip
def test_steps_that_differ_on_one_side_are_counted_once_more(world, measure, varies, again):
    """By HEAD's tree, which counts what the launches agree on. Then by the other tree, if the count
    is still another one and it is that tree whose steps differ.
    """
    case = replace(GPU, gates=(*GPU.gates, "launches_per_step"))
    alike = {"values": {"launches_per_step": 4}}
    other = {"information": {}, "unstable": {}}
    world.counts = {
        label: (STEPS_VARY if label in varies else alike) | other for label in FIRST + COUNTING
    }
    found = measure(1, case)
    counted = [label for label, what in world.events if what == "count"]
    assert [label for label in counted if label in COUNTING] == again
    head, base = (side.counts.lists for side in (found.head, found.base))
    assert bool(head) == ({FIRST[0], COUNTING[0]} <= varies)
    assert bool(base) == ({FIRST[1], COUNTING[1]} <= varies)


def test_an_eager_step_that_fits_nowhere_is_no_fault(world, measure):
    """What only it counts says so, and all else is judged."""
    eager = {"flops_per_step", "operator_calls_per_step", "growing_python_lines_per_step"}
    for label in (*FIRST, *COUNTING):
        world.fails_once[label, "count_eager"] = "OUT_OF_MEMORY"
    found = measure(1, GPU)
    for side in (found.head, found.base):
        assert not side.faults and side.counts.values == {}
        assert side.counts.unstable.keys() == eager
        assert {*side.counts.unstable.values()} == {"the eager step does not fit into memory"}
    assert found.pairs == 1 and judged(found).reason is Reason.COUNT_UNSTABLE


def test_a_loop_is_built_after_heads_first_step(world, measure):
    """Building it runs its first steps, which compile. Other workloads are built at once."""
    for case in (replace(CPU, loop=Loop()), CPU):
        world.events.clear()
        measure(1, case)
        first, built = ((FIRST[0], "first_step"), (FIRST[1], "prepare"))
        later = world.events.index(built) > world.events.index(first)
        assert later == (case.loop is not None)


@pytest.mark.parametrize("what", ["imported", "ready"])
def test_a_launch_that_dies_before_it_is_wanted_is_started_anew(world, measure, what):
    """Nobody waited for it. If it dies again, it is a fault as of any launch."""
    world.fails_once[("pair 3 head", what)] = "KILLED"
    found = measure(3, GPU)
    assert found.pairs == 3 and not found.head.faults
    assert world.asked("pair 3 head").count(("pair 3 head", "start")) == 2


def test_groups_are_built_at_the_same_time(world, measure):
    """Where the counted peaks fit: in threads of their own, and the monitor, which the main one
    alone may ask, expects both.
    """
    measure(2, GPU)
    for side in STEP_MS:
        assert world.threads[(f"pair 2 {side}", "first_step")] is not threading.main_thread()
        assert world.threads[(f"pair 2 {side}", "block")] is threading.main_thread()
    assert {len(groups) for groups in world.monitor.expected} == {2}


@pytest.mark.parametrize(
    ("peaks", "at_once"),
    [((63, 62), True), ((63, 64), False), ((0, 62), True), ((0, 64), False), ((0, 0), False)],
)
def test_what_fits(world, measure, peaks, at_once):
    """Under 90 % of 140 GiB together. A peak that is not known is taken to be the other one."""
    world.peak_bytes = {"head": peaks[0] * GIB, "base": peaks[1] * GIB}
    measure(2, GPU)
    thread = world.threads[("pair 2 head", "first_step")]
    assert (thread is not threading.main_thread()) is at_once


def test_an_unfit_machine_measures_nothing(world, measure, monkeypatch):
    """UNFIT before anything starts."""

    def refuse(*arguments):
        return None, Fault(Reason.FOREIGN_PROCESS, "held by process 1", "", "preflight")

    monkeypatch.setattr(stepguard.measure.driver, "watch", refuse)
    found = measure(1, GPU)
    assert not world.groups and judged(found).reason is Reason.FOREIGN_PROCESS


GELU = "triton_poi_fused_gelu_view_9"
CODE = MachineCode(128, 0, 0, 1280, 0, 0, 0)


@pytest.fixture
def differing(world):
    """HEAD has another source of a kernel, which takes 0.3 % of the step longer."""
    world.step_ms = {"head": 250.0 * 1.003, "base": 250.0}
    world.profiles = {"base": profile(), "head": longer(edited(profile(), GELU), GELU, 750.0)}


def with_code(known, only=None):
    """The profile, with the machine code of the kernels with these keys; by default of all."""
    rows = (
        replace(row, machine_code=CODE if only is None or row.key in only else None)
        for row in known.kernels
    )
    return replace(known, kernels=tuple(rows))


def profiles(world):
    """The labels of the launches that were profiled."""
    return [label for label, what in world.events if what == "profile"]


def test_the_first_pairs_end_with_profiles_if_kernels_differ(world, measure, differing):
    """One of each launch, in the pair's order, after untimed steps, the other launch parked. All
    blocks were timed before. Both are read when no step runs any more.
    """
    found = measure(6, GPU)
    orders = [("base", "head"), ("head", "base")] * 2
    fronts = ["first launch", "pair 2", "pair 3", "pair 4"]
    each = zip(fronts, orders, strict=True)
    assert profiles(world) == [f"{front} {side}" for front, both in each for side in both]
    steps = round(PAIR_PROTOCOLS["cuda"].lead_s * 1e3 / 250.0)
    lead = f"block {max(4, steps)}"
    for number, (first, second) in [*enumerate(orders, 1)][1:]:
        did = [event for event in blocks(world, number) if event[1] not in ENDING]
        assert {*did[-2:]} == {(first, "kernels"), (second, "kernels")}
        wanted = [(first, lead), (first, "profile"), (first, "park")]
        assert did[-7:-2] == [*wanted, (second, lead), (second, "profile")]
        assert did[-8][0] == first and did[-8][1].startswith("block")
        (timed,) = {b.steps for b in found.head.launches[number - 1].blocks}
        assert did[-8][1] == f"block {timed}"
    both = zip(found.head.launches, found.base.launches, strict=True)
    whole = [[len(one.kernels_us) for one in pair] for pair in both]
    assert whole == [[93, 93]] * 4 + [[0, 0]] * 2


def test_other_kernels_than_counted_end_the_profiles(world, measure, differing):
    """A launch whose compiler chose another grid decides nothing, and no later pair can."""
    world.profiled["pair 2 base"] = profile(COLD)
    found = measure(4, GPU)
    assert [len(one.kernels_us) for one in found.base.launches] == [93, 0, 0, 0]
    assert profiles(world)[-1].startswith("pair 2")


def test_forms_of_kernels_that_the_first_pair_ran_are_the_cases(world, measure, differing):
    """The first launch compiled, and chose other grids than are kept for later launches. What
    only a counting pass reads stays, of the kernels that ran in the same form.
    """
    warm = {"head": world.profiles["head"], "base": world.profiles["base"]}
    pairs = [*FIRST, *(f"pair {n} {side}" for n in range(2, 5) for side in warm)]
    world.profiled = {label: warm[label.split()[-1]] for label in pairs}
    world.profiles["base"] = with_code(profile(COLD))
    found = measure(None, GPU)
    assert [len(one.kernels_us) for one in found.base.launches] == [93, 93]
    cold, kept = ({row.key for row in one.kernels} for one in (profile(COLD), warm["base"]))
    assert 80 < len(cold & kept) < len(kept)
    assert found.base.counts.profile == with_code(warm["base"], cold)
    assert judged(found).reason is Reason.CHANGED_KERNELS


def test_a_pair_that_waits_for_the_next_is_kept_too(world, measure):
    """A run that is ended before that one leaves it: a retry is not to think that none was odd."""
    world.step_ms = {"head": 250.0, "base": 250.0}
    world.compiles, world.afresh = {"first launch base": 1000}, {"first launch base"}
    kept = []
    found = measure(2, GPU, keep=lambda pairs: kept.append(pairs) or pairs)
    assert [(one.pairs, len(one.again)) for one in kept] == [(0, 1), (1, 1), (2, 1)]
    assert kept[-1].again == found.again


def test_a_tree_that_was_edited_ends_the_case_after_that_pair(world, measure):
    """Whoever stores the pairs sees it, and says so by a fault."""
    world.step_ms = {"head": 250.0, "base": 125.0}
    edited = Fault(Reason.TREE_CHANGED, "x.py")

    def keep(pairs):
        return replace(pairs, head=replace(pairs.head, faults=(edited,)))

    found = measure(None, GPU, keep=keep)
    assert (found.pairs, found.head.faults) == (1, (edited,))


def test_out_of_memory_in_the_first_pair_means_one_after_the_other(world, measure):
    """The first launches counted, which takes memory, so others are tried. Then launches follow
    each other, in the same order, for all pairs; two blocks in a row each.
    """
    world.step_ms = {"head": 250.0, "base": 125.0}
    for label in ("first launch head", "pair 1 head"):
        world.fails_once[(label, "block")] = "OUT_OF_MEMORY"
    found = measure(2, GPU)
    assert not found.together and found.pairs == 2 and not found.head.faults
    events = world.events
    starts = [i for i, event in enumerate(events) if event == ("pair 1 base", "start")]
    after = [event for event in events[starts[-1] :] if event[1] in ("start", "leave")]
    wanted = ["pair 1 base", "pair 1 head", "pair 2 head", "pair 2 base"]
    assert after == [(label, what) for label in wanted for what in ("start", "leave")]
    assert {events[i] for i in range(starts[-1]) if events[i][1] == "close"} >= {
        (label, "close") for label in (*FIRST, "pair 1 head", "pair 1 base", "pair 2 head")
    }
    assert all(len(one.blocks) == 2 for side in (found.head, found.base) for one in side.launches)
    assert found.log_ratios() == pytest.approx([math.log(2)] * 2)


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize("command", ["hello", "prepare", "first_step", "park", "block", "leave"])
@pytest.mark.parametrize("number", [1, 2])
def test_who_fails_is_blamed(world, measure, side, command, number):
    """Whatever it was asked, also while it only imports: the fault is its side's, nothing is
    raised, no group is left, and nothing passes.
    """
    front = "first launch" if number == 1 else f"pair {number}"
    world.fails[(f"{front} {side}", command)] = "KILLED"
    found = measure(3)
    mine, others = (found.head, found.base) if side == "head" else (found.base, found.head)
    (fault,) = mine.faults
    assert fault.code == "KILLED" and not others.faults
    assert found.pairs == number - 1
    assert all(group.closed for group in world.groups.values())
    verdict = judged(found)
    assert verdict.reason is Reason.KILLED
    assert verdict.message.startswith("main (000000000000): ") is (side == "base")


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize("command", ["hello", "prepare", "first_step", "count", "leave"])
def test_who_fails_when_counted_is_blamed(world, measure, side, command):
    """No pair is measured then; a base that cannot run the case is not comparable."""
    world.fails[(f"first launch {side}", command)] = "BAD_WORKLOAD"
    found = measure(3)
    (fault,) = (found.head if side == "head" else found.base).faults
    assert fault.code == "BAD_WORKLOAD" and found.pairs == 0
    pairs = {what for label, what in world.events if label.startswith("pair")}
    assert pairs <= {"start", "release", "ready", "imported", "close"}
    status = Status.BROKEN if side == "head" else Status.NOT_COMPARABLE
    assert judged(found).status is status


@pytest.mark.parametrize(
    ("raised", "by"), [(KeyboardInterrupt(), "SIGINT"), (KeyboardInterrupt("SIGTERM"), "SIGTERM")]
)
def test_an_end_is_judged_by_the_pairs_before_it(world, measure, monkeypatch, raised, by):
    """Ctrl-C in the third pair: every group is closed, and two pairs are judged. It is never green,
    and says how it ended, in which stage, and what the pairs say by then.
    """
    run = stepguard.measure.turns.run_blocks

    def stop(alive, *arguments):
        if alive[0].label == "pair 3 head":
            raise raised
        run(alive, *arguments)

    world.step_ms = {"head": 250.0, "base": 250.0}
    monkeypatch.setattr(stepguard.measure.turns, "run_blocks", stop)
    found = measure(5)
    assert found.pairs == 2 and all(group.closed for group in world.groups.values())
    verdict = judged(found)
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    stage = rf"ended by {by} after \d+ s, \d+ s into pair 3: build and first step"
    assert re.fullmatch(rf"{stage}; step_ms \+0\.00 \[.*\] % over 2 pairs", verdict.message)
    (time,) = (one for one in verdict.metrics if one.metric == "step_ms")
    assert time.pairs.decision.pairs == 2 and time.new == pytest.approx(250.0)


def test_a_spent_budget_ends_it(world, measure):
    """One pair is measured in any case; it says that there were to be more."""
    found = measure(5, budget_s=0.0)
    assert found.pairs == 1 and found.out_of_time
    assert judged(found).status is Status.INCONCLUSIVE


def test_a_wait_for_the_card_is_none_of_the_budget(world, measure, monkeypatch):
    """A lock that another run held for an hour leaves the budget whole."""
    clock = {"now": 0.0}
    monkeypatch.setattr(stepguard.measure.driver.time, "monotonic", lambda: clock["now"])

    def wait(*arguments):
        clock["now"] += 3600.0
        return world.monitor, None

    monkeypatch.setattr(stepguard.measure.driver, "watch", wait)
    found = measure(3, GPU, budget_s=600.0)
    assert found.pairs == 3 and not found.out_of_time


def test_no_launch_follows_one_that_never_got_steady(world, bench):
    """Its step takes memory anew in every window: twelve seconds of load say so, and the verdict
    has the reason. The other launches, which were to come, would say it again.
    """
    world.compiles = {"launch 1": 1000}
    asked = stepguard.measure.driver.measure(replace(GPU, launches=3), bench, Question())
    found, verdict = asked.now, rule_book.judge(asked)
    assert len(found.launches) == 1 and not found.faults and found.launches[0].warmup_s < 15
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOT_STEADY)
    assert "takes device memory anew" in verdict.message
    assert not [label for label, what in world.events if what == "hello" and label == "launch 2"]
    world.compiles = {}
    asked = stepguard.measure.driver.measure(replace(GPU, launches=3), bench, Question())
    assert len(asked.now.launches) == 3


@pytest.fixture
def alone(world, bench, monkeypatch):
    """Measures a case in one tree; the judge needs what ``needs`` says after so many launches, and
    all that is planned if that does not say.
    """

    def alone(case, needs=()):
        answers = dict(enumerate(needs))

        def needed(asked):
            said = answers.get(len(asked.now.launches))
            return rule_book.need(replace(asked, everything=True)) if said is None else said

        monkeypatch.setattr(stepguard.measure.driver, "need", needed)
        world.profiles = {"head": profile()} if case.device == "cuda" else {}
        return stepguard.measure.driver.measure(case, bench, Question()).now

    return alone


@pytest.mark.parametrize("case", [CPU, GPU], ids=lambda case: case.device)
def test_the_first_launch_of_one_tree_counts_before_anything_is_timed(world, alone, case):
    """What slows down later steps comes last. Before the warm-up it gives back memory that other
    launches do not have. Those only time.
    """
    world.counts = {"launch 1": {"values": {SYNCS: 2}}}
    found = alone(replace(case, launches=2))
    assert not found.faults and [len(one.blocks) for one in found.launches] == [3, 3]
    assert [bool(one.kernels_us) for one in found.launches] == [case is GPU, False]
    asked = [what.partition(" ")[0] for _, what in world.asked("launch 1")]
    order = ["first_step", "count", "block", *["profile"] * (case is GPU), "locate", "exit"]
    at = [asked.index(what) for what in order]
    assert at == sorted(at) and "park" in asked[asked.index("count") : asked.index("block")]
    assert [label for label, what in world.events if what == "count"] == ["launch 1"]


def test_a_launch_of_one_tree_that_the_eager_step_ended_is_started_anew_and_timed(world, alone):
    """The other one runs the same steps, without the one that does not fit."""
    world.fails_once["launch 1", "count_eager"] = "OUT_OF_MEMORY"
    found = alone(replace(GPU, launches=2))
    assert not found.faults and len(found.launches) == 2
    assert [what for _, what in world.asked("launch 1")].count("count") == 2


@pytest.mark.parametrize("enough", [1, 2])
def test_launches_that_are_not_needed_do_not_run(world, alone, enough):
    """One that has imported in vain is ended."""
    found = alone(replace(GPU, launches=3), [Need(launch=True)] * enough + [NOTHING])
    assert len(found.launches) == found.planned_launches == enough
    unused = {what for _, what in world.asked(f"launch {enough + 1}")}
    assert unused <= {"start", "release", "imported", "ready", "close"}
    assert all(group.closed for group in world.groups.values())
