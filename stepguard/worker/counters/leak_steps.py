"""Run steps, and count what they leave: nodes of autograd's graph, and garbage.

Bytes are counted over the same steps (memory_counters.py), since a step of a GPU takes a part of a
second.
"""

import gc
from collections.abc import Callable

from stepguard.core.metrics import GARBAGE, GRAPH_NODES
from stepguard.worker.counters.collector import collect, collect_frozen, own_collections
from stepguard.worker.counters.graph_nodes import nodes_alive
from stepguard.worker.counters.tally import ACTIVE_STEPS, LEAK_STEPS, PERIOD, RankStep, Tally


class LeakSteps:
    """LEAK_STEPS steps, and the nodes and the garbage that they leave."""

    def __init__(self, counted: RankStep) -> None:
        self._counted = counted
        self._collected: list[int] = []
        self._hidden = 0  # objects of garbage that gc.freeze() hid
        self._nodes = 0

    def run(self, border: Callable[[], object] = lambda: None) -> None:
        """Run the steps, and call ``border`` before the first and after the last one. Python's
        collector runs after each period only. What is garbage before is not counted. PERIOD steps
        have run before, since a step may keep the graph of the step before.
        """
        frozen = self._counted.frozen
        with own_collections():
            # Counting nodes unfreezes what steps froze, and frees it. Bytes are counted between the
            # borders. So nodes are counted outside of them.
            before = nodes_alive(frozen)
            border()
            gc.collect()  # torch.cuda.memory_stats() leaves 128 objects
            self._collected = [self._left() for _ in range(ACTIVE_STEPS)]
            border()
            self._hidden = collect_frozen(frozen)
            self._nodes = nodes_alive(frozen) - before

    def _left(self) -> int:
        """Run PERIOD steps. Return how many objects they leave to the collector. Objects that it
        frees during the steps count, too.
        """
        before = _collected()
        self._counted.run_period()
        left = collect()
        return max(left, _collected() - before)

    def add_to(self, tally: Tally) -> None:
        """Add garbage_objects_per_step, the objects that are collected after PERIOD steps, and
        leaked_graph_nodes_per_step, the growth of the graphs that living tensors lead to. Both are
        divided by the steps and rounded up, so that a single one counts as one a step.
        """
        collected, steps = self._collected, PERIOD
        if self._hidden:  # nothing says which steps left it
            collected, steps = [sum(collected) + self._hidden], LEAK_STEPS
        tally.add(GARBAGE, [-(-count // steps) for count in collected])
        tally.add(GRAPH_NODES, [-(-max(0, self._nodes) // LEAK_STEPS)])


def _collected() -> int:
    """Return the number of objects that Python's collector has freed in this process."""
    return sum(generation["collected"] for generation in gc.get_stats())
