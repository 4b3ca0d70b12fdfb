"""Which of cuBLASLt's kernels a product takes: timed once, and kept where torch keeps kernels.

python -m pytest tests/model/test_cublaslt.py
"""

import pytest

from model import cublaslt

OFFERED = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """Each call of the timing, which finds the second kernel."""
    calls = []
    monkeypatch.setattr(cublaslt, "_fastest", lambda enqueues: calls.append(len(enqueues)) or 1)
    return calls


def chosen(kept_in):
    return cublaslt._chosen(lambda kernel: None, OFFERED, kept_in)


def test_a_choice_is_timed_once_and_kept(tmp_path, timed):
    """A later process takes the kernel of the first, and leaves no file but the choice."""
    kept_in = tmp_path / "cublaslt" / "product"
    assert [chosen(kept_in) for _ in range(3)] == ["b"] * 3
    assert timed == [3]
    assert [path.name for path in kept_in.parent.iterdir()] == ["product"]


@pytest.mark.parametrize("damaged", ["", "3", "one"])
def test_a_choice_that_cannot_be_is_timed_anew(tmp_path, timed, damaged):
    """An empty file, or a kernel that is not offered, is replaced."""
    kept_in = tmp_path / "product"
    kept_in.write_text(damaged)
    assert chosen(kept_in) == "b"
    assert timed == [3]
    assert kept_in.read_text() == "1"


def test_a_choice_that_cannot_be_kept_is_timed(tmp_path, timed):
    """Without a folder, or where it cannot be written, training goes on."""
    (tmp_path / "file").touch()
    assert [chosen(None), chosen(tmp_path / "file" / "product")] == ["b", "b"]
    assert timed == [3, 3]


@pytest.mark.parametrize("once_ms, medians, expected", [
    ([3.0, 2.0, 2.1], {0: 1.0, 1: 2.0, 2: 2.0}, 1),  # the first is too slow to be timed again
    ([2.0, 2.0, 2.0], {0: 2.041, 1: 2.04, 2: 2.0}, 1),  # the first of those within 2 %
    ([2.0, 2.0, 2.0], {0: 2.0, 1: 1.0, 2: 1.0}, 1),
])  # fmt: skip
def test_fastest(monkeypatch, once_ms, medians, expected):
    """The first kernel within 2 % of the fastest, of those that one run did not find far slower;
    a run in seven that something disturbs does not count.
    """
    monkeypatch.undo()
    asked = []

    def time_ms(kernel, runs):
        asked.append(kernel)
        if len(asked) <= 3:
            return once_ms[kernel]
        return medians[kernel] * (50 if asked.count(kernel) == 3 else 1)

    monkeypatch.setattr(cublaslt, "_time_ms", time_ms)
    assert cublaslt._fastest([0, 1, 2]) == expected
