"""What became of every case in one pytest run: measured, or why not."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from stepguard.case import Case
from stepguard.document import CaseState, State
from stepguard.plugin.collection import Collected, CollectedTest

NO_TURN = "the run ended before its turn"
NO_RESULT = "its test came to no result"


class Selection:
    """The tests that take ``perf``, from their collection to the end of the run. ``option`` has
    the values of pytest's options.
    """

    def __init__(self, option: Any, collection: Collected) -> None:
        self._option, self._collection = option, collection
        self._kept: set[str] = set()  # what was left after deselection, by node id
        self._unsuited: dict[str, str] = {}  # why this machine is not for it
        self._skipped: dict[str, str] = {}
        self._ran: set[str] = set()
        self._measured: dict[str, Case] = {}

    def kept(self, items: Sequence[pytest.Item]) -> None:
        """Take the tests that are left."""
        self._kept = {item.nodeid for item in items} & self._collection.tests.keys()

    def unsuited(self, item: pytest.Item, reason: str) -> None:
        """Note that this machine is not for a test's case."""
        self._unsuited[item.nodeid] = reason

    def ran(self, item: pytest.Item, skipped: bool, why: str) -> None:
        """Note that a test ran, or that it was ``skipped`` and why."""
        if item.nodeid in self._collection.tests:
            self._ran.add(item.nodeid)
            if skipped:
                self._skipped[item.nodeid] = self._unsuited.get(item.nodeid, why)

    def measured(self, item: pytest.Item, case: Case) -> None:
        """Note which case a test measured."""
        self._measured[item.nodeid] = case

    @property
    def asked(self) -> bool:
        """Tell whether a test that takes ``perf`` is left after deselection."""
        return bool(self._kept)

    @property
    def skips(self) -> Counter[str]:
        """Return how many tests were skipped, by reason."""
        return Counter(self._skipped.values())

    def states(self, recorded: Collection[str], whole: bool) -> list[CaseState]:
        """Return what became of every case: of those collected, and of those ``recorded`` for
        this machine. Only of ``whole`` folders one that was not collected is nowhere.
        """
        found = [self._state(node, test) for node, test in self._collection.tests.items()]
        state = State.ABSENT if whole else State.LEFT_OUT
        why = "; ".join(["no test of it was collected", *self._collection.modules])
        why = why if whole else "no test of it was selected"
        absent = sorted(set(recorded) - {one.case for one in found})
        return found + [CaseState(state=state, case=case_id, why=why) for case_id in absent]

    def _state(self, node: str, test: CollectedTest) -> CaseState:
        case = self._measured.get(node, test.case)
        state, why = self._became(node)
        return CaseState(
            state=state,
            case=case.id if case else "",
            why=why,
            test=node,
            file=test.file,
            line=test.line,
            device=case.device if case else "",
            world_size=case.world_size if case else 0,
            extended=case.extended if case else False,
        )

    def _became(self, node: str) -> tuple[State, str]:
        if node in self._measured:
            return State.MEASURED, ""
        if node not in self._kept:
            return State.DESELECTED, self._why_deselected(node)
        if node in self._skipped:
            return State.SKIPPED, self._skipped[node]
        return State.UNMEASURED, NO_RESULT if node in self._ran else NO_TURN

    def _why_deselected(self, node: str) -> str:
        if node not in self._collection.deselected:
            return "a conftest or a plugin took it out"
        given: Mapping[str, Any] = {
            "-k": self._option.keyword,
            "-m": self._option.markexpr,
            "--deselect": self._option.deselect,
            "--lf": getattr(self._option, "lf", False),
        }
        said = [
            f"{name} {value!r}" if isinstance(value, str) else name
            for name, value in given.items()
            if value
        ]
        return f"deselected by {' or '.join(said) or 'a plugin'}"
