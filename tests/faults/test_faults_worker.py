"""Workers that raise, die, hang or run out of memory, for real: each is named, nothing is left."""

import re

import pytest

PAIR = "factories:pair"  # two ranks that reduce a value in every step
OK = '    Case("ok", "factories:linear", device="cpu", launches=1),\n'


def case(name, factory="factories:faulty", world_size=1, **params):
    """Return a case of a faulty workload as source text."""
    return (
        f"    Case({name!r}, {factory!r}, {params}, device='cpu', launches=1,"
        f" world_size={world_size}, time_limit_s=3600),\n"
    )


PLACES = {"build": 0, "block": 60}  # the step that fails
# A rank's position is noted in the same way however it fails: one fault is tried everywhere.
PLACES_OF = {"raise": ("build", "block"), "kill": ("block",)}
PLACES_OF |= {"hang": ("build", "block"), "oom": ("block",)}
WHERE = {"build": r"prepare", "block": r"block, step \d+, phase backward"}  # fmt: skip
MESSAGE = {
    "raise": r"rank 0 in {}: ValueError: planted",
    "kill": r"rank 0 was killed by SIGKILL in {}",
    "hang": r"no answer \d+ s into the launch: rank 0 in {}",
    "oom": r"rank 0 in {}: OutOfMemoryError: planted: tried to allocate 1000 GiB",
}
CODE = {"raise": "RAISED", "kill": "KILLED", "hang": "NO_ANSWER", "oom": "OUT_OF_MEMORY"}
OTHERS = {
    "host-memory": ("OUT_OF_MEMORY", r"rank 0 in prepare: RuntimeError: .*can't allocate memory"),
    "none": ("BAD_WORKLOAD", r"rank 0 in prepare: factories:returns_none returned None"),
    "syntax": ("RAISED", r"rank 0 in prepare: SyntaxError: "),
    "agent": ("KILLED", r"(torchrun|launcher) .* rank 0 .* block, step \d+"),
    "exit": ("KILLED", r"rank 0 ended by itself in block, step \d+, phase backward"),
    "pair-raise": ("RAISED", r"rank 1 in first step, phase backward: ValueError: planted"),
    "pair-exit": ("KILLED", r"rank 1 ended by itself in block, step \d+, phase backward"),
    "absorbed-status": ("KILLED", r"rank 1 ended by itself with status 3 in .*phase backward"),
    "absorbed-kill": ("KILLED", r"rank 1 was killed by SIGKILL in .*step \d+, phase backward"),
    "absorbed-raise": ("RAISED", r"rank 1 in .*step \d+, phase backward: ValueError: planted"),
    "pair-leave-hang": (
        "NO_ANSWER",
        r"no answer \d+ s into the launch: rank 0 in block, step \d+, phase all_reduce; rank 1 "
        r"in block",
    ),
    "pair-hang": (
        "NO_ANSWER",
        r"rank 0 in block, step \d+, phase all_reduce; rank 1 in block, step \d+, phase backward",
    ),
    "import-hang": ("NO_ANSWER", r"no answer \d+ s into the launch: rank 0 in start"),
}
EXPECTED = {
    f"{how}-{place}": (CODE[how], MESSAGE[how].format(WHERE[place]))
    for how in MESSAGE
    for place in PLACES_OF[how]
} | OTHERS


def faults(how):
    """Return the cases that fail in one way, each at another place."""
    places = PLACES_OF[how]
    return "".join(case(f"{how}-{place}", how=how, at_step=PLACES[place]) for place in places)


@pytest.fixture(scope="module")
def runs(gate_run):
    """Two runs of faulty cases side by side, each with a sound case at its end."""
    one_rank = faults("raise") + faults("kill") + faults("oom")
    one_rank += case("none", "factories:returns_none") + case("agent", how="agent", at_step=60)
    one_rank += case("host-memory", how="host-memory", at_step=0)
    one_rank += case("syntax", "broken:factory")
    one_rank += case("exit", how="exit", at_step=60)
    pairs = case("pair-raise", world_size=2, how="raise", rank=1)
    pairs += case("pair-exit", PAIR, world_size=2, how="exit", rank=1, at_step=40)
    for how in ("status", "kill", "raise"):
        pairs += case(f"absorbed-{how}", "factories:absorbed", world_size=2, how=how, rank=1)
    pairs += case("pair-eager", PAIR, world_size=2, how="eager", rank=1)
    one_rank += case("one-eager", how="eager")
    hanging = case("pair-leave-hang", PAIR, world_size=2, how="leave", rank=1, at_step=40)
    hanging += case("pair-hang", PAIR, world_size=2, how="hang", rank=1, at_step=40)
    hanging += faults("hang") + case("import-hang", "sleeper:factory")
    started = [gate_run(cases + OK) for cases in (one_rank + pairs, hanging)]
    for run in started:
        assert run.finish() == 1, run.text
    return started


@pytest.fixture
def run_of(runs):
    """The run that a case is in."""
    return lambda name: next(run for run in runs if name in run.verdicts())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_fault_is_named(run_of, name):
    """BROKEN, with the reason's code and a message that names rank, command, step and phase."""
    run = run_of(name)
    verdict = run.verdicts()[name]
    code, message = EXPECTED[name]
    assert (verdict["status"], verdict["reason"]) == ("BROKEN", code), verdict["message"]
    assert re.search(message, verdict["message"]), verdict["message"]
    assert verdict["message"].startswith("launch 1: ")
    assert verdict["message"] in run.text, "the whole sentence is printed, cut nowhere"
    failed = run.failed_at(name)
    if failed is not None:
        print(f"{name}: reported after {run.aftermath()[name]['at'] - failed:.2f} s")


PLACED = {"raise-build": ("factories.py", 'raise ValueError("planted\\nsecond line")'),
          "host-memory": ("factories.py", "torch.empty(1 << 55, dtype=torch.uint8)"),
          "syntax": ("broken.py", "def factory(*, device:"), "kill-block": None}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_an_error_has_its_line(run_of, name):
    """An annotation stands there: where it was raised in the tree, or at what is no Python."""
    place = run_of(name).verdicts()[name]["place"]
    assert (place and (place["file"], place["text"])) == PLACED[name]


@pytest.mark.parametrize("name", [name for name in EXPECTED if "hang" in name])
def test_a_hang_carries_the_stack(run_of, name):
    """Whatever hangs, the block shows where it stands: file and line of the workload."""
    detail = run_of(name).verdicts()[name]["detail"]
    source = "sleeper.py" if name == "import-hang" else "factories.py"
    assert re.search(rf'File ".*{source}", line \d+ in ', detail), detail


@pytest.mark.parametrize("name", ["pair-hang", "pair-leave-hang"])
def test_the_rank_that_holds_up_the_others_is_shown(run_of, name):
    """Rank 1 sleeps and rank 0 waits for it: both stacks. Rank 1 left early, and only waits for
    the others' answers: rank 0's comes first.
    """
    detail = run_of(name).verdicts()[name]["detail"]
    assert detail.startswith("rank 0:\n") and "\nrank 1:\n" in detail
    of_0, _, of_1 = detail.partition("\nrank 1:\n")
    assert re.search(r'factories.py", line \d+ in step', of_0), of_0
    frame = "fail" if name == "pair-hang" else "gather"
    assert re.search(rf'\.py", line \d+ in {frame}', of_1), of_1


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith(("raise", "oom"))])
def test_what_was_raised_carries_its_trace(run_of, name):
    """The block shows the workload's own traceback, the message's second line included."""
    detail = run_of(name).verdicts()[name]["detail"]
    assert re.search(r'File ".*factories.py", line \d+, in fail', detail), detail
    if name.startswith("raise"):
        assert "second line" in detail


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_is_left(run_of, name):
    """No process, no temporary folder and no socket of the launch when its test is over."""
    record = run_of(name).aftermath()[name]
    assert record["tokens"], "the case did launch something"
    assert record["leftovers"] == []


@pytest.mark.parametrize(
    ("name", "known"), [("one-eager", "tokens"), ("pair-eager", "collectives")]
)
def test_ranks_without_memory_for_the_eager_step_are_measured(run_of, name, known):
    """The others wait for the rank that has too little, so the launch ends. What it timed and
    counted before stays, and what is missing says why.
    """
    run = run_of(name)
    verdict = run.verdicts()[name]
    assert (verdict["status"], verdict["reason"]) == ("INCONCLUSIVE", "COUNT_UNSTABLE")
    assert verdict["figures"]["why"] == "the eager step does not fit into memory"
    seen = {metric["metric"]: metric["new"] for metric in verdict["metrics"]}
    assert seen["step_ms"] > 0 and seen[f"{known}_per_step"] >= 1
    assert not seen.get("flops_per_step")
    assert run.aftermath()[name]["leftovers"] == []


def test_the_next_case_is_measured(runs):
    """After all of that the sound case of the same run is measured."""
    for run in runs:
        verdict = run.verdicts()["ok"]
        assert verdict["reason"] == "NOT_RECORDED"
        assert {m["metric"] for m in verdict["metrics"]} >= {"step_ms", "flops_per_step"}
        assert run.aftermath()["ok"]["leftovers"] == []


def test_every_case_has_a_verdict(runs):
    """No case is missing from a run's document, and none passed."""
    for run in runs:
        assert set(run.verdicts()) == set(run.aftermath())
        assert " passed" not in run.text.splitlines()[-1]


def test_the_temporary_directory_is_empty(runs):
    """When a run is over its TMPDIR holds nothing at all."""
    for run in runs:
        assert list(run.tmpdir.iterdir()) == []
