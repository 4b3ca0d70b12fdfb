"""Find the nodes of autograd's graph that outlive their step, and who keeps them.

``total = total + loss`` keeps the graph of every step so far. The backward pass frees its tensors,
so no byte of a tensor leaks. But the nodes take host memory, which nothing else counts.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from stepguard.core.metrics import GRAPH_NODES
from stepguard.core.site import Site
from stepguard.worker.counters.collector import live_objects, of_classes
from stepguard.worker.counters.locate import locate, qualified, site_at
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, Tally, per_step

PLACES = 5  # those that keep most
# Attributes of a node: torch's record of where it was made (in anomaly mode), and ours.
_MADE_AT, _STEP = "traceback_", "stepguard.step"
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


def nodes_alive(frozen: int) -> int:
    """Return the number of nodes that living tensors and living Python objects lead to."""
    return len(_reachable(frozen))


def locate_graph_nodes(tally: Tally, counted: RankStep) -> None:
    """Add the lines that made graphs that grow, in nodes a step, without the compiler."""
    if not counted.any_rank(tally.values.get(GRAPH_NODES, 0) > 0):
        return
    with torch.compiler.set_stance("force_eager"):
        for number in range(LEAK_STEPS):
            with torch.autograd.set_detect_anomaly(True, check_nan=False):
                counted.step()
            for node in _reachable(counted.frozen).values():
                node.metadata.setdefault(_STEP, number)
        counted.run_period()  # it replaces what is not kept for good
    kept = [n for n in _reachable(counted.frozen).values() if _MADE_AT in n.metadata]
    if sites := _places(kept):
        tally.sites[GRAPH_NODES] = tuple(sites)


def _reachable(frozen: int) -> dict[int, Any]:
    """Return, by id(), the nodes that living tensors and Python objects lead to."""
    nodes: dict[int, Any] = {}
    waiting = list(_held(live_objects(frozen)))
    while waiting:
        node = waiting.pop()
        if id(node) not in nodes:
            nodes[id(node)] = node  # keeps the node alive, so that its identity is not reused
            waiting += _following(node)
    return nodes


def _held(things: list[Any]) -> Iterator[Any]:
    with torch._C.DisableTorchFunctionSubclass():
        for thing in of_classes(things, _may_hold):
            if not issubclass(type(thing), torch.Tensor):
                yield thing
            elif (node := thing.grad_fn) is not None:
                yield node


def _may_hold(kind: Any) -> bool:
    return issubclass(kind, torch.Tensor) or hasattr(kind, "next_functions")


def _following(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _places(kept: Sequence[Any]) -> list[Site]:
    """Return where the last node of each step's graph was made. A Site's count is in nodes a step:
    those of its own step that the last node leads to. In a sum over steps the last node is the
    addition. In a list of losses it is the loss.
    """
    sites: list[Site] = []
    of_steps: dict[int, list[Any]] = {}
    for node in kept:
        of_steps.setdefault(node.metadata.get(_STEP, LEAK_STEPS), []).append(node)
    for nodes in of_steps.values():
        inside = {id(node) for node in nodes}
        followed = {id(following) for node in nodes for following in _following(node)}
        for last in (node for node in nodes if id(node) not in followed):
            if count := _take(last, inside):
                sites.append(_site(last, count))
    return per_step(sites)[:PLACES]


def _take(last: Any, inside: set[int]) -> int:
    """Remove the nodes that ``last`` leads to, and itself. Return how many they are."""
    waiting, taken = [last], 0
    while waiting:
        node = waiting.pop()
        if id(node) in inside:
            inside.remove(id(node))
            taken += 1
            waiting += _following(node)
    return taken


def _site(node: Any, count: int) -> Site:
    """Return where a node was made. torch's record of the stack ends with the innermost frame."""
    called = [frame for text in reversed(node.metadata[_MADE_AT]) for frame in _FRAME.findall(text)]
    stack = [(file, int(line), name) for file, line, name in called]
    place = locate((file, line, qualified(file, line, name)) for file, line, name in stack)
    return site_at(f"graph kept by {node.name()}", place, count=count)
