"""Any loop as a workload: where its steps end, how its script runs, and how it ends."""

import json
import os
import subprocess
import sys
import types
from importlib.util import find_spec

import pytest
import torch
import torch._dynamo  # else each fork would import it, for its optimizer
from forks import in_a_fork
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from whole_pass import count

from stepguard.core.case import Case, Loop
from stepguard.core.metrics import PYTHON_LINES
from stepguard.worker.counters import sync_candidates
from stepguard.worker.counters.locate import raised_at
from stepguard.worker.counters.sync_candidates import count_candidates
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.loops.looped import LoopedWorkload, workload_of
from stepguard.worker.loops.step_borders import modes
from stepguard.worker.workload import BadWorkload

HEAD = """
import torch
from journal import note

def made(kind=torch.optim.SGD):
    model = torch.nn.Linear(4, 4)
    return model, kind(model.parameters(), lr=0.0)

def passes(model):
    model(torch.ones(2, 4)).square().mean().backward()

"""
TRY_OUT = """
def try_out(model, first):
    try:
        with torch.profiler.record_function("step"):
            passes(model)
            first.step()
            raise ValueError
    except ValueError:
        pass

"""
PLAIN = """
model, first = made()
for number in range(1000):
    passes(model)
    first.step()
    note("s")
    first.zero_grad()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A function that writes a script's text, and returns what makes it a workload."""
    monkeypatch.chdir(tmp_path)

    def written(text, args=(), **loop):
        (tmp_path / "train.py").write_text(text)
        case = Case("x", "train.py", device="cpu", launches=1, args=args, loop=Loop(**loop))
        return lambda: LoopedWorkload(case, "cpu", timed_s=1.0)

    return written


def journal_of(make, steps):
    """What the loop noted in each of so many steps, after those that it is built with."""
    noted = []
    sys.modules["journal"] = types.ModuleType("journal")
    sys.modules["journal"].note = noted.append
    workload = make()
    found = []
    for _ in range(steps):
        noted.clear()
        workload.step()
        found.append("".join(noted))
    return found


SECOND = "other, second = made(torch.optim.AdamW)\n"
OUTER = """
class Outer(torch.optim.Optimizer):
    def step(self, closure=None):
        inner.step()
"""
CLOSURE = """
def closure():
    first.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    return loss
"""
GREENLETS = """
def inner():
    while True:
        passes(model), first.step(), note('s')
        outer.switch()
from greenlet import greenlet, getcurrent
outer, task = getcurrent(), greenlet(inner)
"""


def loop(*body, model="model, first = made()\n", before=""):
    """A script that makes a model, runs ``before`` and then the lines of its loop."""
    lines = "".join(f"    {line}\n" for line in body)
    return f"{model}{before}for number in range(1000):\n{lines}"


CASES = {  # the script, the loop, what is noted in each step
    "plain": (PLAIN, {}, ["s"] * 3),
    "accumulated": (
        loop("passes(model), note('p')", "if number % 4 == 3: first.step()"), {}, ["pppp"] * 3),
    "two optimizers": (
        loop("passes(model), passes(other)", "first.step(), note('a')", "second.step(), note('b')",
             before=SECOND), {}, ["ba"] * 3),  # it rests as second has stepped, before the note
    "a critic that steps twice": (
        loop("for _ in range(2):", "    passes(model), note('c'), first.step()",
             "passes(other), note('g'), second.step()", before=SECOND), {}, ["ccg"] * 3),
    "one that steps ten times before the other": (
        loop("for _ in range(10):", "    passes(model), note('c'), first.step()",
             "passes(other), note('g'), second.step()", before=SECOND), {},
        ["c"] * 2 + (["gc"] + ["c"] * 9) * 10),
    "one that steps ten times after the other": (
        loop("passes(other), note('g'), second.step()", "for _ in range(10):",
             "    passes(model), note('c'), first.step()", before=SECOND), {},
        ["c" * 10 + "g"] * 6),
    "an optimizer that never steps": (
        "idle, never = made()\n" + PLAIN.replace("1000", "5000"), {}, ["s"] * 3),
    "an optimizer in the place of another": (
        loop("passes(model), note('f'), first.step()", "if number == 4:",
             "    first = torch.optim.AdamW(model.parameters(), lr=0.0)"), {}, ["f"] * 9),
    "an optimizer after another one, which is kept": (
        loop("passes(model), note('f'), first.step()").replace("1000", "5")
        + loop("passes(other), note('s'), second.step()", model=SECOND),
        {}, ["f"] * 3 + ["s" * 8] + ["s"] * 3),
    "two optimizers, of which one is made anew": (
        loop("if number % 3 == 2:", "    first = torch.optim.SGD(model.parameters(), lr=0.0)",
             "passes(model), passes(other), note('n')", "first.step(), second.step()",
             before=SECOND), {}, ["n"] * 12),
    "an optimizer in another thread": (
        loop("passes(model), passes(other)", "beside = threading.Thread(target=second.step)",
             "beside.start(), beside.join(), note('b')", "first.step(), note('a')",
             before=f"import threading\n{SECOND}"), {}, ["ab"] * 3),
    "an optimizer around another one, after steps of its own": (
        loop("if number == 5: outer = Outer(model.parameters(), {})",
             "passes(model), note('o'), (outer if number > 5 else inner).step()",
             model="model, inner = made()", before=OUTER), {}, ["o"] * 6),
    "a closure": (
        loop("note('l')", "first.step(closure)", model="model, first = made(torch.optim.LBFGS)",
             before=CLOSURE), {}, ["l"] * 3),
    "a scaler and a schedule": (
        loop("note('s')", "scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()",
             "scaler.step(first), scaler.update(), schedule.step()",
             before="schedule = torch.optim.lr_scheduler.LambdaLR(first, lambda step: 1.0)\n"
             "scaler = torch.amp.GradScaler('cpu')\n"), {}, ["s"] * 3),
    "an optimizer around another one": (
        loop("passes(model), note('o'), outer.step()", model="model, inner = made()",
             before=f"{OUTER}        inner.step()\nouter = Outer(model.parameters(), {{}})\n"),
        {}, ["o"] * 3),
    "in a range of the loop's own": (
        loop("with torch.profiler.record_function('whole step'):",
             "    passes(model), first.step(), note('s')"), {}, ["s"] * 3),
    "marks": (
        loop("passes(model), first.step(), note('s')", "passes(model), note('t')",
             "stepguard.step()", before="import stepguard\n"), {}, ["st"] * 3),
    "marks without an optimizer": (
        loop("note('i'), step()", model="from stepguard import step\n"), {}, ["i"] * 3),
    "a function that ends a step": (
        loop("passes(model), first.step(), note('s'), first.step()",
             "utils.clip_grad_norm_(model.parameters(), 1.0)",
             before="import torch.nn.utils as utils\n"),
        {"step_at": "torch.nn.utils:clip_grad_norm_"}, ["s"] * 3),
    "every third": (PLAIN, {"every": 3}, ["sss"] * 3),
    "a generator's own greenlets": (loop("task.switch()", before=GREENLETS), {}, ["s"] * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_where_a_step_ends(script, name):
    """Each time the last of the optimizers has stepped, or where the loop says so."""
    text, loop, expected = CASES[name]
    make = script(HEAD + text, **loop)
    assert in_a_fork(lambda: journal_of(make, len(expected))) == {"is": expected}


def test_marks_that_come_late_are_refused(script):
    """What a step is must not change while it is measured."""
    text = PLAIN.replace("    note", "    if number == 4:\n        stepguard.step()\n    note")
    found = in_a_fork(lambda: journal_of(script(HEAD + "import stepguard\n" + text), 9))
    assert found["raised"] == "BadWorkload" and "--step-at stepguard:step" in found["says"]


@pytest.mark.parametrize("module", ["train", "__main__"])
def test_a_function_of_the_script_itself_is_refused_at_once(script, tmp_path, monkeypatch, module):
    """Its module would be imported, which trains to the end before a step is seen."""
    monkeypatch.syspath_prepend(tmp_path)
    make = script("import time\ntime.sleep(1000)\n", step_at=f"{module}:step")
    found = in_a_fork(lambda: journal_of(make, 1))
    assert found["raised"] == "BadWorkload" and "call stepguard.step() at the" in found["says"]


IN_A_MODE = """
import contextlib
from torch.utils.flop_counter import FlopCounterMode

kept = FlopCounterMode(display=False)
model, first = made()
for number in range(1000):
    with MODE:
        passes(model)
        first.step()
"""


@pytest.mark.parametrize("mode", ["FlopCounterMode(display=False)", "torch.device('cpu')"])
def test_a_step_that_ends_inside_of_a_mode_is_refused(script, mode):
    """Its next round would leave the mode that counts: no operator of it would be seen, before a
    change as after it.
    """
    found = in_a_fork(lambda: journal_of(script(HEAD + IN_A_MODE.replace("MODE", mode)), 3))
    assert found["raised"] == "BadWorkload" and "mark the end of each step" in found["says"]


def test_modes_live_until_they_are_compared():
    """Else a mode that is made anew could get the address of one that is gone."""
    with torch.device("cpu"):
        (before,) = modes()
    assert isinstance(before, TorchFunctionMode)
    with torch.device("cpu"):
        assert modes() != [before]


def test_a_mode_that_is_entered_again_is_refused_when_it_hides_the_count(script):
    """One object for all steps, which looks the same at each border."""

    def counted():
        workload = script(HEAD + IN_A_MODE.replace("MODE", "kept"))()
        with FlopCounterMode(display=False):
            workload.step()

    sys.modules["journal"] = types.ModuleType("journal")
    sys.modules["journal"].note = len
    found = in_a_fork(counted)
    assert found["raised"] == "BadWorkload" and "FlopCounterMode" in found["says"]


def test_a_loop_may_run_inside_of_a_mode(script):
    """One that it enters once, before its first step."""
    text = PLAIN.replace("\n", "\n    ").replace(
        "\n    model", "with torch.device('cpu'):\n    model"
    )
    assert in_a_fork(lambda: journal_of(script(HEAD + text), 3)) == {"is": ["s"] * 3}


def test_a_process_that_the_script_forks_does_not_measure(script):
    """It has a copy of the rank, and would answer in its place."""
    child = "if (child := os.fork()) == 0:\n"
    body = PLAIN.replace("1000", "9").replace("\n", "\n    ")
    make = script(HEAD + "import os\n" + child + body + "\n    os._exit(0)\nos.wait()\n")
    found = in_a_fork(lambda: journal_of(make, 3))
    assert found["raised"] == "BadWorkload" and "before the end of a step was seen" in found["says"]


FACTS = """
import json, os, sys
facts = [sys.argv, __file__, __name__, os.getcwd(), sys.path[:1], "RANK" in os.environ,
         __package__, __spec__, sys.modules["__main__"].__dict__ is globals()]
"""


def test_a_script_runs_as_python_runs_it(script, tmp_path):
    """Its arguments, its name, its file, its folder: as of ``python train.py``."""
    script("")
    args = ("--lr=1", "a b")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "main.py").write_text(FACTS + "print(json.dumps(facts))\n")
    command = [sys.executable, "inner/main.py", *args]
    plain = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    (tmp_path / "inner" / "main.py").write_text(
        FACTS + "import journal, stepguard\njournal.note(facts)\nstepguard.step()\n"
    )
    case = Case("x", "inner/main.py", device="cpu", launches=1, args=args)

    def facts():
        found = []
        sys.modules["journal"] = types.ModuleType("journal")
        sys.modules["journal"].note = found.append
        os.environ["RANK"] = os.environ["WORLD_SIZE"] = "1"
        LoopedWorkload(case, "cpu", 1.0)
        return found[0]

    assert in_a_fork(facts) == {"is": plain}


def test_a_module_runs_as_python_runs_it(script, tmp_path):
    """With its package and its spec: what ``python -m`` gives it."""
    script("")
    (tmp_path / "inner").mkdir()
    module = tmp_path / "inner" / "main.py"
    told = FACTS.replace("__spec__", "__spec__.name").replace("sys.path[:1]", "None")
    module.write_text(told + "print(json.dumps(facts))\n")
    command = [sys.executable, "-m", "inner.main", "--lr=1"]
    plain = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    module.write_text(told + "import journal, stepguard\njournal.note(facts)\nstepguard.step()\n")
    case = Case("x", "-m inner.main", device="cpu", launches=1, args=("--lr=1",))

    def facts():
        found = []
        sys.modules["journal"] = types.ModuleType("journal")
        sys.modules["journal"].note = found.append
        sys.path.insert(0, os.getcwd())  # where ranks have it
        LoopedWorkload(case, "cpu", 1.0)
        return found[0]

    assert in_a_fork(facts) == {"is": plain}


ENDS = {
    "ends": (PLAIN.replace("1000", "5"), "train.py ended after 5 steps, and a launch needs about "),
    "leaves with 0": (
        PLAIN.replace("    passes", "    if number == 3:\n        raise SystemExit\n    passes"),
        "train.py ended after 3 steps, and a launch needs about "),
    "ends after one": (
        PLAIN.replace("1000", "1"),
        "train.py ended after 1 step, and a launch needs several hundred: let it train longer, by ",
    ),
    "ends in a range around all steps": (
        "with torch.profiler.record_function('all'):\n    " + PLAIN.replace("\n", "\n    "),
        "train.py ends its steps inside of a record_function that it does not leave after each "),
    "leaves its ranges by an error": (
        TRY_OUT + PLAIN.replace("passes(model)", "try_out(model, first)").replace("first.", "#"),
        "train.py ends its steps inside of a record_function that it does not leave after each "),
    "without a step": ("print('done')\n", "train.py ended before the end of a step was seen: no"),
    "inside of backward": (
        "model, first = made()\n"
        "model.weight.register_post_accumulate_grad_hook(lambda one: first.step())\n"
        "for number in range(20):\n"
        "    passes(model)\n",
        "train.py ended before the end of a step was seen: no optimizer",
    ),
    "leaves with a word": (
        PLAIN.replace("    passes", "    if number > 2: raise SystemExit('no data')\n    passes"),
        "train.py left in step 4: no data"),
    "asks": (PLAIN.replace("    passes", "    number == 3 and input('Go on?')\n    passes"),
             "train.py asks for input in step 4 (train.py:15), where nobody can answer: give it"),
    "asks for a password": (
        "import getpass\ngetpass.getpass('key: ')\n",
        "train.py asks for input before its first step had ended (train.py:13), where nobody can"),
    "finds no GPU": (
        "print('two GPUs are needed. Exiting.')\nraise SystemExit\n",
        "train.py left before its first step had ended with status 0, its last line: two GPUs are ",
    ),
    "bad arguments": (
        "import argparse\nargparse.ArgumentParser().parse_args(['--no-such'])\n",
        "train.py left before its first step had ended with status 2, its last line: "
        "train.py: error: unrecognized arguments: --no-such",
    ),
}  # fmt: skip


GROUP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@pytest.mark.parametrize(
    ("line", "needs"), [("rank = int(os.environ['LOCAL_RANK'])\n", "LOCAL_RANK"), (GROUP, "RANK")]
)
def test_a_script_for_torchrun_says_what_to_add(script, line, needs):
    """Not only that a variable is missing, which the user never sets."""
    found = in_a_fork(lambda: journal_of(script(HEAD + "import os\n" + line + PLAIN), 3))
    said = f"train.py needs {needs}, which torchrun sets (train.py:"
    assert found["raised"] == "BadWorkload" and found["says"].startswith(said)
    assert "add --torchrun, in a test loop=Loop(torchrun=True)" in found["says"]


@pytest.mark.parametrize("name", ENDS)
def test_a_loop_that_ends_says_when_and_why(script, tmp_path, monkeypatch, name):
    """One sentence: what happened, at which step, and what to pass."""
    text, expected = ENDS[name]
    make = script(HEAD + text)
    monkeypatch.setenv("STEPGUARD_RUN_DIR", str(tmp_path))

    def run():
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(tmp_path / f"{name}-0.log", os.O_WRONLY | os.O_CREAT), number)
            setattr(sys, name, os.fdopen(number, "w"))
        sys.stdin = os.fdopen(0)
        return journal_of(make, 20)

    found = in_a_fork(run)
    assert found["raised"] == "BadWorkload" and "\n" not in found["says"]
    assert found["says"].startswith(expected)


def test_a_script_may_leave_the_working_directory(script):
    """As some do for each run's outputs: its lines are the tree's all the same."""
    text = "import os\nos.makedirs('out')\nos.chdir('out')\n" + PLAIN.replace(
        "    passes", "    assert number < 3\n    passes"
    )
    make = script(HEAD + text)

    def raised():
        try:
            journal_of(make, 9)
        except AssertionError as error:
            return list(raised_at(error))

    place = ["train.py", 18, "<module>", "assert number < 3", ""]
    assert in_a_fork(raised) == {"is": place}


@pytest.mark.parametrize(("line", "raised", "says"), [
    ("assert number < 3, 'too far'", "AssertionError", "too far"),
    # A file that is cut off is no question.
    ("number < 3 or __import__('pickle').loads(b'')", "EOFError", "Ran out of input"),
])  # fmt: skip
def test_what_a_script_raises_is_its_own(script, line, raised, says):
    """The error stays what it is; a note says in which step it came."""
    text = PLAIN.replace("    passes", f"    {line}\n    passes")
    found = in_a_fork(lambda: journal_of(script(HEAD + text), 9))
    assert (found["raised"], found["says"]) == (raised, says)
    assert found["notes"] == ["raised by train.py in step 4"]


class Factory:
    """The step of PLAIN, as a factory makes it."""

    tokens_per_step = 8

    def __init__(self):
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def step(self):
        self.model(torch.ones(2, 4)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def noting_nothing(make):
    """A workload, whose script calls note()."""
    sys.modules["journal"] = types.ModuleType("journal")
    sys.modules["journal"].note = len
    return make()


@pytest.mark.usefixtures("own_heap")
def test_a_script_is_counted_as_its_step_is(script):
    """All counts of a script's step are those of the same step, called from a factory's object: the
    profiler, dispatch modes and memory see through the rest.
    """
    names = ("flops_per_step", "operator_calls_per_step", "compiled_operator_calls_per_step")
    names += ("sync_candidates_per_step", "leaked_bytes_per_step", "graph_breaks")

    def counted(make):
        workload = noting_nothing(make)
        workload.step()
        counts = count(RankStep(workload.step, torch.device("cpu")))
        return {name: counts["values"][name] for name in names} | counts["information"]

    whole, factory = (
        in_a_fork(lambda make=make: counted(make))["is"] for make in (script(HEAD + PLAIN), Factory)
    )
    # A round of the loop, its call of passes(), and the optimizer's call of the step's border.
    assert 3 <= whole.pop(PYTHON_LINES) - factory.pop(PYTHON_LINES) < 9
    assert whole == factory
    # It can fail: a loss that is read.
    reading = PLAIN.replace("first.step()", "first.step(), model.weight.norm().item()")
    moved = in_a_fork(lambda: counted(script(HEAD + reading)))["is"]
    assert moved[names[3]] == whole[names[3]] + 1


def test_a_function_runs_a_loop(script, monkeypatch):
    """With its parameters, and the device if it takes one; another parameter is refused."""
    script(HEAD + PLAIN)
    sys.modules["fits"] = types.ModuleType("fits")
    sys.modules["journal"] = types.ModuleType("journal")
    exec(
        HEAD.replace("from journal import note", "taken = []") + "def fit(width, device):\n"
        "    taken.append((width, device))\n"
        "    model, first = made()\n"
        "    while True:\n"
        "        passes(model), first.step()\n",
        sys.modules["fits"].__dict__,
    )
    case = Case("x", "fits:fit", {"width": 3}, "cpu", launches=1, loop=Loop(tokens_per_step=7))

    def run():
        workload = workload_of(case, "cpu")
        workload.step()
        return [sys.modules["fits"].taken, workload.tokens_per_step]

    assert in_a_fork(run) == {"is": [[[3, "cpu"]], 7]}
    wrong = Case("x", "fits:fit", {"with": 3}, "cpu", launches=1, loop=Loop())
    with pytest.raises(BadWorkload, match="fits:fit"):
        workload_of(wrong, "cpu")


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        return {"input_ids": torch.arange(8), "labels": torch.arange(8)}


size = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
arguments = TrainingArguments(
    "out", max_steps=1000, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", logging_steps=2, use_cpu=True, disable_tqdm=True,
)
Trainer(GPT2LMHeadModel(GPT2Config(**size)), arguments, train_dataset=Tokens()).train()
"""


def test_a_trainer_of_a_library_is_measured_as_it_is(script, monkeypatch):
    """Its optimizer ends its steps; what it waits for has the line of its own, by the user's."""
    monkeypatch.setattr(sync_candidates, "CANDIDATE_STEPS", 3)  # each is two of the trainer's
    make = script(TRAINER, every=2)

    def counted():
        tally = Tally()
        count_candidates(tally, RankStep(make().step, torch.device("cpu")))
        sites = tally.sites["sync_candidates_per_step"]
        return [[site.file, site.line, site.via or ""] for site in sites]

    sites = in_a_fork(counted)["is"]
    assert {(file, line) for file, line, _ in sites} == {("train.py", 19)}
    assert any(via.startswith("transformers/trainer.py:") for _, _, via in sites)


# Loops of libraries, as their guides write them: each notes a pass of its model.
MODULE = """
import torch
from journal import note

batches = [torch.ones(2, 4)] * 2000

class Net(torch.nn.Linear):
    def forward(self, batch):
        note("p")
        return super().forward(batch).square().mean()

"""
LIBRARIES = {
    "accelerate": MODULE
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Net(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
model, optimizer = accelerator.prepare(model, optimizer)
for batch in batches:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
""",
    "lightning": MODULE
    + """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(4, 4)
    def training_step(self, batch, number):
        return self.net(batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

lightning.Trainer(
    accelerator="cpu", max_steps=1000, accumulate_grad_batches=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
""",
    "fabric": MODULE
    + """
import lightning

fabric = lightning.Fabric(accelerator="cpu")
model = Net(4, 4)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.0))
for number, batch in enumerate(batches):
    accumulates = number % 2 == 0
    with fabric.no_backward_sync(model, enabled=accumulates):
        fabric.backward(model(batch))
    if not accumulates:
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize(
    ("package", "libraries"),
    [("accelerate", ["accelerate"]), ("lightning", ["fabric", "lightning"])],
)
def test_a_library_s_loop_needs_no_adapter(script, package, libraries):
    """Its optimizer's step ends a step, in which two passes are accumulated."""
    # Not imported here: lightning sets a variable, and later launches of this process start cold.
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    found = in_a_fork(lambda: {one: journal_of(script(LIBRARIES[one]), 3) for one in libraries})
    assert found == {"is": dict.fromkeys(libraries, ["pp"] * 3)}


def test_a_mark_costs_nothing_and_imports_no_torch():
    """Outside of a measurement stepguard.step() is a call that returns."""
    code = "import sys, stepguard; stepguard.step(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
