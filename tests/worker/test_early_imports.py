"""What a launch imports before torch, and a command before its work: as little as will do."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from stepguard.worker.agent import try_widest_instructions

HEAVY = ("msgspec", "numpy", "pytest", "scipy", "torch")


@pytest.mark.parametrize("name", ["worker.agent", "core.case"])
def test_beside_torch_a_rank_imports_little(name):
    """Before it has asked to die with its caller, and in a module of cases: nothing heavy."""
    assert imported(f"stepguard.{name}", HEAVY) == "[]"


def test_a_command_begins_at_once():
    """Nor does pytest or the command line, whose every command is loaded to parse one, import what
    most runs of it can do without.
    """
    heavy = ("matplotlib", "ruptures", "scipy", "torch")
    commands = "stepguard.cli.main; [*stepguard.cli.main.every_command()]"
    assert imported(f"stepguard.plugin.session, {commands}", heavy) == "[]"


def imported(modules, heavy):
    """Which of the heavy ones these import."""
    code = f"import sys, {modules}; print([n for n in {heavy!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Instructions:
    """A set of them that works or does not, and notes that it was tried."""

    def __init__(self, name, works, tried):
        self.name, self.works, self.tried = name, works, tried

    def __str__(self):
        return self.name

    def __bool__(self):
        self.tried.append(self.name)
        return self.works


@pytest.mark.parametrize(("cpu", "broken", "settings", "tried", "found"), [
    (["a", "b", "c"], [], {}, ["c b"], ["c b"]),
    (["a", "b", "c"], ["c b"], {}, ["c b", "b"], ["b"]),
    (["a", "b"], [], {}, ["b"], ["b"]),
    ([], [], {}, [], ["all"]),
    (["a", "b", "c"], ["c b", "b", "a"], {}, ["c b", "b", "a"], ["all"]),
    (["a", "b", "c"], [], {"simdlen": 256}, [], ["all"]),
    (["a", "b", "c"], [], {"ATEN_CPU_CAPABILITY": "avx2"}, [], ["all"]),
])  # fmt: skip
def test_the_compiler_tries_what_it_will_use(cpu, broken, settings, tried, found, monkeypatch):
    """The widest that the CPU has and that work, in torch's order; all of them where a setting may
    choose another one, or none works.
    """
    seen: list[str] = []
    if capability := settings.get("ATEN_CPU_CAPABILITY"):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    else:
        monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    module = SimpleNamespace(
        valid_vec_isa_list=lambda: ["all"],
        x86_isa_checker=lambda: cpu,
        supported_vec_isa_list=[
            Instructions(n, n not in broken, seen) for n in ("c b", "b", "a", "d")
        ],
        config=SimpleNamespace(cpp=SimpleNamespace(simdlen=settings.get("simdlen"))),
    )
    monkeypatch.setitem(sys.modules, "torch._inductor.cpu_vec_isa", module)
    try_widest_instructions()
    assert [str(one) for one in module.valid_vec_isa_list()] == found
    assert seen == tried


def test_a_torch_that_tries_otherwise_is_left_alone(monkeypatch):
    """What is private to it may go at any time; what is half there is not used."""
    monkeypatch.setitem(sys.modules, "torch._inductor.cpu_vec_isa", SimpleNamespace())
    try_widest_instructions()
    half = SimpleNamespace(valid_vec_isa_list=lambda: ["all"])
    monkeypatch.setitem(sys.modules, "torch._inductor.cpu_vec_isa", half)
    try_widest_instructions()
    assert half.valid_vec_isa_list() == ["all"]


def test_torch_has_what_is_asked_of_it():
    """The widest is the first of all that torch finds, which is the one it uses."""
    from torch._inductor import cpu_vec_isa

    names = {"valid_vec_isa_list", "x86_isa_checker", "supported_vec_isa_list", "config"}
    assert names <= vars(cpu_vec_isa).keys()
    assert cpu_vec_isa.get_isa_from_cpu_capability(None, ["widest", "other"], None) == "widest"
