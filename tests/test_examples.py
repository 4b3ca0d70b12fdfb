"""A property is tried on the same examples in every run: a run of the tests fails for a reason."""

import importlib

from hypothesis import given, settings
from hypothesis import strategies as st

ODD = 0.0123456789
MODULE = f"NUMBERS = {[ODD + number / 1000 for number in range(100)]}\n"


def examples():
    """What a test of its own draws, without any setting but its number."""
    drawn = []

    @settings(max_examples=200)
    @given(st.floats(0, 1), st.text(max_size=3))
    def draw(number, text):
        drawn.append((number, text))

    draw()
    return drawn


def test_examples_are_the_same_again(tmp_path, monkeypatch):
    """Also once a module with constants was loaded, as another test of the process may have."""
    first = examples()
    (tmp_path / "odd_numbers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("odd_numbers").NUMBERS[0] == ODD
    assert len(first) == 200 and examples() == first


def test_no_example_fails_for_its_time():
    """A busy machine takes longer, and no older failure is tried again."""
    assert settings().deadline is None and settings().database is None
