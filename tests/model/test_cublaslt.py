"""Which of cuBLASLt's kernels a product takes: timed once, and kept where torch keeps kernels.

python -m pytest tests/model/test_cublaslt.py
"""

import math
from pathlib import Path

import pytest
import torch

from model import cublaslt

OFFERED = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """Each call of the timing, which finds the second kernel."""
    calls = []
    monkeypatch.setattr(cublaslt, "_fastest", lambda enqueues: calls.append(len(enqueues)) or 1)
    return calls


def chosen(kept_in, enqueue=lambda kernel: None):
    return cublaslt._chosen(enqueue, OFFERED, kept_in)


def test_a_choice_is_timed_once_and_kept(tmp_path, timed):
    """A later process takes the kernel of the first, and leaves no file but the choice."""
    kept_in = tmp_path / "cublaslt" / "product"
    assert [chosen(kept_in) for _ in range(3)] == ["b"] * 3
    assert timed == [3]
    assert [path.name for path in kept_in.parent.iterdir()] == ["product"]


@pytest.mark.parametrize("damaged", [b"", b"3", b"-1", b"one", b"\xff"])
def test_a_choice_that_cannot_be_is_timed_anew(tmp_path, timed, damaged):
    """An empty file, or a kernel that is not offered, is replaced."""
    kept_in = tmp_path / "product"
    kept_in.write_bytes(damaged)
    assert chosen(kept_in) == "b"
    assert timed == [3]
    assert kept_in.read_text() == "1"


def test_a_kept_kernel_that_refuses_is_timed_anew(tmp_path, timed):
    """A kernel that does not run on this GPU does not end every later training run."""

    def enqueue(kernel):
        if kernel == "c":
            raise cublaslt._Refused

    kept_in = tmp_path / "product"
    kept_in.write_text("2")
    assert chosen(kept_in, enqueue) == "b"
    assert (timed, kept_in.read_text()) == ([3], "1")


def test_processes_that_choose_at_once_agree(tmp_path, monkeypatch):
    """A choice that another process kept during the timing is taken, and stays."""
    kept_in = tmp_path / "product"
    monkeypatch.setattr(cublaslt, "_fastest", lambda enqueues: kept_in.write_text("2"))
    assert [chosen(kept_in) for _ in range(2)] == ["c", "c"]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["2"]


def test_nothing_is_left_where_a_choice_cannot_be_kept(tmp_path):
    """A folder in a choice's place stays the only thing there."""
    (tmp_path / "product").mkdir()
    assert chosen(tmp_path / "product") == "b"
    assert [path.name for path in tmp_path.iterdir()] == ["product"]


def test_a_comment_keeps_the_choice(tmp_path, monkeypatch):
    """A choice is made anew after an edit of the code, not of comments and docstrings."""
    text = Path(cublaslt.__file__).read_text()
    other = tmp_path / "cublaslt.py"

    def code_of(edited):
        other.write_text(edited)
        monkeypatch.setattr(cublaslt, "__file__", str(other))
        return cublaslt._code.__wrapped__()

    assert code_of(text) == cublaslt._code()
    edited = text.replace('"""Matrix products', '"""\n\nProducts').replace("# cublasLtCreate", "")
    assert edited != text and code_of(edited) == cublaslt._code()
    assert code_of(text.replace("NEAR = 1.02", "NEAR = 1.5")) != cublaslt._code()


def test_a_choice_that_cannot_be_kept_is_timed(tmp_path, timed):
    """Without a folder, or where it cannot be written, training goes on."""
    (tmp_path / "file").touch()
    assert [chosen(None), chosen(tmp_path / "file" / "product")] == ["b", "b"]
    assert timed == [3, 3]


def test_only_a_refusal_rules_a_kernel_out(monkeypatch):
    """Memory that is short for now does not rule a kernel out for good: it ends the run."""

    class Event:
        def __init__(self, enable_timing):
            pass

    def enqueue(raised):
        raise raised

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert cublaslt._time_ms(lambda: enqueue(cublaslt._Refused()), 1) == math.inf
    with pytest.raises(torch.OutOfMemoryError):
        cublaslt._time_ms(lambda: enqueue(torch.OutOfMemoryError()), 1)


@pytest.mark.parametrize("first_ms, medians, expected", [
    ([3.0, 2.0, 2.1], {0: 1.0, 1: 2.0, 2: 2.0}, 1),  # the first is too slow to be timed again
    ([2.0, 2.0, 2.0], {0: 2.041, 1: 2.04, 2: 2.0}, 1),  # the first of those within 2 %
    ([2.0, 2.0, 2.0], {0: 2.0, 1: 1.0, 2: 1.0}, 1),
    ([math.inf, 2.0, 2.0], {1: 2.0, 2: 1.0}, 2),  # the first refuses
])  # fmt: skip
def test_fastest(monkeypatch, first_ms, medians, expected):
    """The first kernel within 2 % of the fastest is chosen. A kernel that is far slower in single
    runs is not timed again. One disturbed run of each kernel does not count.
    """
    monkeypatch.undo()
    asked = []

    def time_ms(kernel, runs):
        asked.append(kernel)
        round_of = asked.count(kernel)
        if len(asked) <= cublaslt.FIRST_ROUNDS * len(first_ms):
            return first_ms[kernel] * (50 if round_of == 1 + kernel % 3 else 1)
        return medians[kernel] * (50 if round_of == 5 else 1)

    monkeypatch.setattr(cublaslt, "_time_ms", time_ms)
    assert cublaslt._fastest([0, 1, 2]) == expected
