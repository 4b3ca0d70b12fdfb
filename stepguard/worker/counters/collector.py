"""Python's collector: when it runs, which objects it knows, and which ones it frees."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress, repeat
from operator import is_
from typing import Any


@contextmanager
def own_collections() -> Iterator[None]:
    """Let Python's collector run only where it is called inside the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def note_frozen() -> int:
    """Return a key for the objects that are frozen now. To count them would take 30 ms."""
    frozen = -1 - len(_marks)
    _marks[frozen] = _Mark()
    return frozen


def live_objects(frozen: int) -> list[Any]:
    """Return the objects that Python's collector knows, after a collection.

    A workload that freezes its garbage (``gc.freeze``) would hide its tensors. So if more objects
    are frozen than the key ``frozen`` stands for, all are unfrozen first, and frozen again later.
    """
    hidden = hides_more(frozen)
    if hidden:
        gc.unfreeze()
    gc.collect()
    things = gc.get_objects()
    if hidden:
        gc.freeze()
    return things


def collect() -> int:
    """Collect garbage. Return the number of objects that Python counts, or of objects with a
    finalizer that are gone, whichever is more.

    Python does not count what a finalizer frees. A suspended generator has a finalizer. So an
    object that keeps its own generator is freed by the generator, and is not counted.
    """
    before = {id(thing) for thing in with_finalizer()}
    counted = gc.collect()
    return max(counted, len(before - {id(thing) for thing in with_finalizer()}))


def with_finalizer() -> list[Any]:
    """Return the living objects with a finalizer; none if a thread may free some."""
    return of_classes(gc.get_objects() if threading.active_count() == 1 else [], _has_finalizer)


def of_classes(things: list[Any], wanted: Callable[[Any], bool]) -> list[Any]:
    """Return the objects whose class is wanted, which is asked once for each class."""
    # No object is made for each of them: while allocations are traced, that would take seconds.
    kinds = [*map(type, things)]
    if all(map(_is_plain, {*map(type, kinds)})):
        named = {kind for kind in {*kinds} if wanted(kind)}
        return [*compress(things, map(named.__contains__, kinds))]
    # By id: classes whose metaclass compares them may have no hash.
    keys = {key for key, kind in {id(kind): kind for kind in kinds}.items() if wanted(kind)}
    return [thing for thing, kind in zip(things, kinds, strict=True) if id(kind) in keys]


def _is_plain(metaclass: type) -> bool:
    """Tell whether classes of this metaclass are compared as all others are."""
    return all(getattr(metaclass, name) is getattr(object, name) for name in ("__eq__", "__hash__"))


def _has_finalizer(kind: type) -> bool:
    return any("__del__" in vars(base) for base in kind.__mro__)


def collect_frozen(frozen: int) -> int:
    """Collect garbage that was frozen since live_objects(). Return the number of objects."""
    gc.collect()
    if not hides_more(frozen):
        return 0
    gc.unfreeze()
    collected = collect()
    gc.freeze()
    return collected


def hides_more(frozen: int) -> bool:
    """Tell whether objects were frozen since note_frozen() returned this key. With the key 0 tell
    whether any objects are frozen.

    note_frozen() leaves an object as a mark. ``gc.freeze`` freezes it with all others, and then the
    collector no longer knows it. So does live_objects(), which freezes again what it found frozen.
    """
    if mark := _marks.get(frozen):
        # No object is made for each, as in of_classes().
        return not any(map(is_, gc.get_objects(), repeat(mark)))
    return gc.get_freeze_count() > 0


class _Mark:
    """An object that ``gc.freeze`` hides with all others."""


_marks: dict[int, _Mark] = {}  # by key
