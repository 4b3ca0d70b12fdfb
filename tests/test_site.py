"""Sites: matched without their line, told as a person reads them, found from a call stack."""

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec
import pytest
import torch
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import stepguard
from stepguard.core.reasons import Reason
from stepguard.core.site import Site, added, merge
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.report.verdict_text import block, headline, page_of
from stepguard.worker.counters.locate import Place, frames, locate, site_at

ITEM = Site(".item()", "model/gpt.py", 88, "GPT.forward", "n = loss.item()", "forward")
SITES = st.lists(
    st.builds(Site, st.sampled_from([".item()", "nonzero"]), st.sampled_from(["", "a.py", "b.py"]),
              st.integers(0, 9), st.sampled_from(["f", "g"]), st.sampled_from(["x.item()", "y"]),
              st.sampled_from(["", "forward", "backward"]), st.integers(1, 4)),
    max_size=12)  # fmt: skip


def counts(sites):
    """How often, by what makes two sites the same."""
    found = {}
    for site in sites:
        found[site.key] = found.get(site.key, 0) + site.count
    return found


# merge


@PROPERTY
@given(SITES)
def test_merge_keeps_every_count(sites):
    """One site a key, in order of appearance, with the sum of its counts and its first line."""
    merged = merge(sites)
    assert [site.key for site in merged] == list(dict.fromkeys(site.key for site in sites))
    assert {site.key: site.count for site in merged} == counts(sites)
    for site in merged:
        assert site.line == next(one.line for one in sites if one.key == site.key)
    assert merge(merged) == merged


def test_merge_joins_phases():
    """Each phase once; sites without one add none."""
    phases = ("forward", "", "backward", "forward")
    (found,) = merge([structs.replace(ITEM, phase=phase) for phase in phases])
    assert (found.phase, found.count) == ("forward, backward", 4)


# added


@PROPERTY
@given(SITES, SITES)
def test_added_is_the_difference(old, new):
    """For every key what the new ones have more of, and never a count below one."""
    before, after = counts(old), counts(new)
    expected = {
        key: count - before.get(key, 0)
        for key, count in after.items()
        if count > before.get(key, 0)
    }
    assert {site.key: site.count for site in added(old, new)} == expected


@PROPERTY
@given(SITES, SITES)
def test_what_one_side_adds_the_other_takes_away(old, new):
    """Old plus what was added less what went is new."""
    total = counts(old)
    for site in added(old, new):
        total[site.key] = total.get(site.key, 0) + site.count
    for site in added(new, old):
        total[site.key] -= site.count
    assert {key: count for key, count in total.items() if count} == counts(new)


@pytest.mark.parametrize(
    "change",
    [{"what": "nonzero"}, {"file": "x.py"}, {"function": "f"}, {"text": "loss.item()"}],
)
def test_another_place_is_added(change):
    """Another file, function, text or happening is another site, with its own line."""
    other = structs.replace(ITEM, line=5, **change)
    assert added([ITEM], [ITEM, other]) == (other,)
    assert added([ITEM, other], [ITEM]) == ()


# In words


@pytest.mark.parametrize(("site", "words"), [
    (ITEM, "n = loss.item() in GPT.forward (model/gpt.py:88), forward"),
    (structs.replace(ITEM, phase=""), "n = loss.item() in GPT.forward (model/gpt.py:88)"),
    (structs.replace(ITEM, text=""), ".item() in GPT.forward (model/gpt.py:88), forward"),
    (Site(".item() in IndexBackward0"), ".item() in IndexBackward0"),
    (Site(".item()", phase="backward"), ".item(), backward"),
])  # fmt: skip
def test_a_site_in_words(site, words):
    """Source, function, file and line, phase; what is not known is left out."""
    assert site.location() == words


@pytest.mark.parametrize(("length", "shown"), [(60, "x" * 60), (61, "x" * 57 + "...")])
def test_long_source_is_cut(length, shown):
    """Sixty characters of the line are enough to find it."""
    words = structs.replace(ITEM, text="x" * length).location()
    assert words == f"{shown} in GPT.forward (model/gpt.py:88), forward"


def rise(*sites):
    """The verdict of a step with one more host sync."""
    metric = MetricVerdict(
        "host_syncs_per_step", Status.CHANGED, Reason.COUNTER_ROSE, old=0, new=1, sites=sites
    )
    return Verdict("step[nano]", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(metric,))


# locate

TORCH = str(Path(torch.__file__).parent / "_tensor.py")
STDLIB = str(Path(sysconfig.get_paths()["stdlib"]) / "contextlib.py")
ENGINE = str(Path(stepguard.__file__).parent / "worker" / "eager.py")
INSTALLED = str(Path(torch.__file__).parent.parent / "someones" / "library.py")
OTHER = str(Path(torch.__file__).parent.parent / "torchother" / "library.py")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The working directory: a tree with train.py of three lines."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "train.py").write_text("first\n    second  # why\nthird\n")
    monkeypatch.chdir(root)
    return root


def test_the_innermost_frame_of_the_tree_is_the_place(tree):
    """Relative to the tree, with its text stripped; frames further out do not matter."""
    stack = [(str(tree / "train.py"), 2, "inner"), (str(tree / "train.py"), 3, "outer")]
    assert locate(stack) == Place("train.py", 2, "inner", "second  # why")


@pytest.mark.parametrize(
    "file", [TORCH, STDLIB, ENGINE, INSTALLED, OTHER, "<string>", "<frozen x>"]
)
def test_what_the_tree_calls_is_not_the_place(tree, file):
    """torch, Python, the engine, installed libraries and generated code are stepped out of."""
    stack = [(file, 7, "theirs"), (file, 8, "theirs"), (str(tree / "train.py"), 3, "mine")]
    assert locate(stack)[:4] == Place("train.py", 3, "mine", "third")[:4]


@pytest.mark.parametrize(("files", "via"), [
    ((TORCH, STDLIB, ENGINE), ""),
    ((INSTALLED,), "someones/library.py:7 in theirs"),
    ((TORCH, INSTALLED, OTHER), "someones/library.py:8 in theirs"),
    ((OTHER, TORCH, INSTALLED), "torchother/library.py:7 in theirs"),
])  # fmt: skip
def test_a_librarys_line_is_named_beside_the_tree_s(tree, files, via):
    """The innermost one outside of torch, from its package on; torch's own lines are none."""
    stack = [(file, number, "theirs") for number, file in enumerate(files, 7)]
    found = locate([*stack, (str(tree / "train.py"), 3, "fit"), (INSTALLED, 9, "runner")])
    assert found == Place("train.py", 3, "fit", "third", via)
    assert site_at(".item()", found, "forward").location() == (
        f"third in fit (train.py:3){f' via {via}' if via else ''}, forward"
    )


def test_a_librarys_line_is_part_of_the_place_but_not_its_number(tree):
    """Two functions of a library that one line calls are two sites; a new version of it is none."""
    sites = [
        site_at(".item()", Place("a.py", 1, "fit", "train()", f"lib/trainer.py:{where}"))
        for where in ("7 in step", "9 in step", "9 in log", "9 in log")
    ]
    assert [site.count for site in merge(sites)] == [2, 2]
    assert "via" not in msgspec.to_builtins(site_at("x", Place("a.py", 1, "fit", "train()")))


def test_an_installed_library_is_better_than_nothing(tree):
    """Without a frame of the tree the innermost installed one, with its whole path."""
    stack = [(TORCH, 1, "item"), (OTHER, 2, "near"), (INSTALLED, 3, "far"), (STDLIB, 4, "run")]
    assert locate(stack) == Place(OTHER, 2, "near", "")


def test_a_file_beside_the_tree_is_better_than_nothing(tree):
    """A script outside the working directory has its whole path."""
    beside = tree.parent / "tree-2"
    beside.mkdir()
    (beside / "run.py").write_text("go()\n")
    assert locate([(str(beside / "run.py"), 1, "main")]) == Place(
        str(beside / "run.py"), 1, "main", "go()"
    )


@pytest.mark.parametrize("stack", [[], [(TORCH, 1, "f")], [(STDLIB, 1, "f"), (ENGINE, 2, "g")]])
def test_no_frame_of_anyone_is_no_place(tree, stack):
    """An autograd thread has none: an empty place, not torch's or the engine's."""
    assert locate(stack) == Place()


def test_a_virtual_environment_in_the_tree_is_not_the_tree(tree):
    """.venv/lib/.../site-packages lies below the tree and is still somebody else's."""
    installed = tree / ".venv" / "lib" / "python3" / "site-packages" / "library.py"
    stack = [(str(installed), 5, "theirs"), (str(tree / "train.py"), 1, "mine")]
    assert locate(stack) == Place("train.py", 1, "mine", "first", "library.py:5 in theirs")
    assert locate(stack[:1]) == Place(str(installed), 5, "theirs", "")


@pytest.mark.parametrize("neighbour", ["stepguardian", "stepguard-fork"])
def test_a_longer_name_than_the_engines_is_not_the_engine(monkeypatch, neighbour):
    """A package beside the engine whose name begins like it is measured like any other."""
    root = Path(stepguard.__file__).parent.parent
    monkeypatch.chdir(root)
    found = locate([(str(root / neighbour / "train.py"), 1, "f")])
    assert found == Place(f"{neighbour}/train.py", 1, "f", "")


def test_a_link_into_the_tree_is_the_tree(tree):
    """A file reached through a link has the path that it has in the tree."""
    link = tree.parent / "link"
    link.symlink_to(tree)
    assert locate([(str(link / "train.py"), 1, "f")]).file == "train.py"


def test_frames_go_outwards_with_qualified_names(tree, monkeypatch):
    """From the innermost frame on: methods with their class, closures without <locals>."""
    (tree / "stacked.py").write_text(
        "import sys\n"
        "class Net:\n"
        "    def forward(self):\n"
        "        def inner():\n"
        "            return sys._getframe()\n"
        "        return inner()\n"
        "def run():\n"
        "    return Net().forward()\n"
    )
    monkeypatch.syspath_prepend(tree)
    importlib.invalidate_caches()
    frame = importlib.import_module("stacked").run()
    del sys.modules["stacked"]
    found = [(Path(file).name, line, name) for file, line, name in frames(frame)]
    assert found[:3] == [
        ("stacked.py", 5, "Net.forward.inner"),
        ("stacked.py", 6, "Net.forward"),
        ("stacked.py", 8, "run"),
    ]
    place = Place("stacked.py", 5, "Net.forward.inner", "return sys._getframe()")
    assert locate(frames(frame)) == place
    assert list(frames(None)) == []


# A device of Python's has a thread of autograd's, as a GPU has.
DEVICE = """
import os, sys, threading, torch
from torch.utils.checkpoint import checkpoint
from stepguard.worker.counters.locate import frames, locate
torch.utils.backend_registration._setup_privateuseone_for_python_backend("python")
torch.python.get_amp_supported_dtype = lambda: []

def new():
    return torch._C._acc.create_empty_tensor((1,), torch.float32)

class Told(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return new()

    @staticmethod
    def backward(ctx, grad):
        stack = frames(sys._getframe())
        print(*iter(lambda: locate(stack).function, ""))
        return new()

def once():
    Told.apply(new().requires_grad_()).backward(new())

def in_a_checkpoint():
    x = new().requires_grad_()
    checkpoint(Told.apply, x, use_reentrant=True, preserve_rng_state=False).backward(new())

def while_another_waits():
    begun, over = threading.Event(), threading.Event()
    leaf = torch.ones((), requires_grad=True)
    leaf.register_hook(lambda grad: begun.set() or over.wait() and None)
    threading.Thread(target=leaf.backward).start()
    begun.wait()
    once()
    over.set()

for step in once, in_a_checkpoint, while_another_waits:
    step()
sys.stdout.flush()
os._exit(0)  # torch does not end such a device
"""


def test_a_thread_of_autograds_goes_on_with_the_call_that_waits_for_it(tmp_path):
    """Also from a backward pass in a backward pass; not if several threads wait for one."""
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no device of Python's")
    (tmp_path / "device.py").write_text(DEVICE)
    environment = os.environ | {"PYTHONPATH": str(Path(stepguard.__file__).parents[1])}
    done = subprocess.run([sys.executable, "device.py"], cwd=tmp_path, env=environment,
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout.split("\n") == [
        "Told.backward once <module>",
        "Told.backward in_a_checkpoint <module>",
        "Told.backward",
        "",
    ], done.stderr


def test_a_sync_in_a_library_has_two_lines():
    """The user's, and the library's behind it."""
    via = "transformers/trainer.py:41 in Trainer.train"
    inside = structs.replace(ITEM, via=via)
    for site, behind in ((ITEM, ""), (inside, f" via {via}")):
        verdict = rise(site)
        assert headline(verdict).endswith(f"model/gpt.py:88{behind}")
        assert f"(model/gpt.py:88){behind}, forward" in block(page_of(verdict))


@pytest.mark.parametrize(("file", "shown"), [
    ("model/gpt.py", "model/gpt.py:7"),
    ("/env/lib/site-packages/numpy/linalg/a.py", "numpy/linalg/a.py:7"),
    ("/home/me/kit/src/fit.py", "src/fit.py:7"),
])  # fmt: skip
def test_no_place_is_an_absolute_path(file, shown):
    """A library's file begins with its package."""
    assert Site("what", file, 7).place == shown
