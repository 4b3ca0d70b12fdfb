"""Documents that were edited at random: keys and values that are gone, doubled, swapped or
replaced, at any depth, by what a careless or a hostile editor might leave there.

Each loader is given FUZZED of them in every run of the tests; STEPGUARD_FUZZED=10000 gives it more.
"""

import copy
import json
import os
from datetime import date

from builders import PROPERTY
from hypothesis import settings
from hypothesis import strategies as st

FUZZED = int(os.environ.get("STEPGUARD_FUZZED", "100"))
FUZZ = settings(PROPERTY, max_examples=FUZZED)
NUMBERS = (0, -1, 1, 2, 1e-300, 1e-7, 0.5, -0.5, 250.1, 1e13, 10**18, 1e59, -1e59, -(10**30))
TEXTS = ("", "step_ms", "flops_per_step", "sync_overhead_pct", "cuda", "cpu", "RAISED", "same")
TEXTS += ("2026-11-22", "\x1b[2K\n::error::x", "../../x", "a" * 40, "Pageable", "\u202e")
PLANTED = (None, True, False, [], [[]], [None], [0.0], {}, {"": None}, {"step_ms": 1}, 10**400)
PLANTED += (1e300, *NUMBERS, *TEXTS)
VALUES = st.sampled_from(PLANTED) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (st.lists(inner, max_size=3) | st.dictionaries(
                       st.text(max_size=9), inner, max_size=3)), max_leaves=4)  # fmt: skip

HOW = ("alike",) * 8 + ("replace", "replace", "remove", "empty", "double", "rename", "nest", "copy")


def _places(value, path=()):
    """Yield the path of everything in a document, the document itself aside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*path, key)
        if isinstance(one, dict | list):
            yield from _places(one, (*path, key))


def _edit(document, path, how, other, value, text, number):
    """Edit one place of a document."""
    *above, key = path
    at = document
    for step in above:
        at = at[step]
    if how == "alike" and isinstance(at[key], str | int | float):
        # Of its type, so that the loader's own rules are asked and not only the types.
        at[key] = text if isinstance(at[key], str) else number
    elif how in ("alike", "replace"):
        at[key] = copy.deepcopy(value)
    elif how == "remove":
        del at[key]
    elif how == "empty" and isinstance(at[key], dict | list | str):
        at[key] = type(at[key])()
    elif how == "double" and isinstance(at, list):
        at.insert(key, copy.deepcopy(at[key]))
    elif how == "rename" and isinstance(at, dict):
        at[str(value)] = at.pop(key)
    elif how == "nest":
        at[key] = [at[key]]
    else:  # what is elsewhere in the document
        for step in other:
            document = document[step]
        at[key] = copy.deepcopy(document)


def mutated(sound):
    """Draw the text of a document that is ``sound`` but for one edit or two."""
    return _mutated(json.dumps(sound, default=date.isoformat))


@st.composite
def _mutated(draw, sound):
    document = json.loads(sound)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(document))
        if not places:
            break
        path, other = (places[draw(st.integers(0, len(places) - 1))] for _ in range(2))
        how = draw(st.sampled_from(HOW))
        new = (draw(one) for one in (VALUES, st.sampled_from(TEXTS), st.sampled_from(NUMBERS)))
        _edit(document, path, how, other, *new)
    text = json.dumps(document)
    whole = draw(st.integers(0, 19)) > 0
    return text if whole else text[: draw(st.integers(0, len(text)))]
