"""Steps of a small model on a CPU whose change writes a checkpoint every eighth step."""

from builders import block_of, cpu_evidence, launch, replace

from stepguard.core.comparison import Comparison

# By pair and block: the steps before it, then the steps of HEAD and of the other tree, in ms.
PAIRS_MS = (
    (
        (10, (86.9, 85.6, 80.1, 91.2, 171.2, 107.4), (93.1, 82.1, 99.0, 96.6, 73.4, 53.2)),
        (19, (104.9, 119.9, 129.7, 162.2, 95.2, 94.2), (77.9, 76.2, 79.4, 71.5, 70.9, 75.5)),
    ),
    (
        (33, (78.1, 69.8, 74.3, 60.0, 57.1, 125.7), (72.0, 66.3, 89.3, 82.3, 82.0, 79.0)),
        (40, (73.8, 74.2, 68.2, 68.7, 68.3, 88.2), (75.6, 86.8, 87.3, 81.5, 83.2, 88.3)),
    ),
    (
        (
            12,
            (69.3, 69.1, 99.2, 70.0, 77.9, 53.4, 79.5),
            (59.0, 70.3, 72.8, 66.0, 68.8, 70.8, 61.4),
        ),
        (
            20,
            (78.1, 70.2, 108.3, 57.0, 60.3, 75.2, 72.6),
            (79.9, 82.5, 76.3, 63.9, 72.6, 67.4, 62.1),
        ),
    ),
    (
        (
            27,
            (60.2, 71.2, 60.5, 125.2, 74.4, 69.5, 69.5),
            (68.9, 63.8, 63.9, 63.2, 64.0, 66.3, 64.5),
        ),
        (
            35,
            (56.6, 60.6, 70.5, 126.5, 70.0, 74.7, 65.1),
            (48.7, 69.8, 60.6, 47.9, 53.7, 73.8, 75.5),
        ),
    ),
    (
        (
            15,
            (61.3, 56.3, 66.3, 78.7, 89.9, 67.4, 87.5),
            (55.6, 55.0, 67.8, 59.6, 71.2, 68.9, 60.8),
        ),
        (
            23,
            (87.2, 98.2, 57.7, 67.8, 72.8, 78.2, 61.3),
            (60.6, 71.6, 65.2, 81.6, 65.4, 66.7, 62.1),
        ),
    ),
    (
        (
            12,
            (63.6, 56.0, 95.0, 75.0, 60.6, 47.3, 58.9, 53.2),
            (60.2, 62.0, 74.9, 64.5, 60.7, 63.2, 44.5, 74.4),
        ),
        (
            22,
            (93.4, 60.2, 54.4, 52.6, 58.5, 67.2, 53.2, 69.1),
            (63.4, 61.6, 65.3, 60.4, 62.5, 64.0, 64.2, 51.4),
        ),
    ),
    (
        (20, (64.4, 61.0, 135.6, 90.5, 77.2, 80.8), (74.9, 70.3, 61.3, 79.6, 69.8, 64.2)),
        (27, (75.5, 76.8, 61.3, 102.4, 62.6, 76.4), (67.8, 78.2, 70.3, 60.4, 60.6, 52.0)),
    ),
    (
        (
            17,
            (67.3, 50.3, 73.6, 67.3, 44.2, 133.8, 77.2),
            (44.1, 45.5, 83.1, 36.5, 48.0, 43.0, 57.1),
        ),
        (
            25,
            (61.5, 71.6, 52.8, 44.8, 57.4, 110.4, 63.2),
            (71.8, 80.7, 55.6, 54.6, 55.6, 51.3, 58.8),
        ),
    ),
)


def checkpointing(count=8, swapped=False, **changes):
    """The first pairs; ``swapped``: HEAD no longer writes, and the other tree does."""
    sides = []
    for index in (2, 1) if swapped else (1, 2):
        launches = tuple(
            launch(index=number, blocks=tuple(block_of(one[index], one[0]) for one in blocks))
            for number, blocks in enumerate(PAIRS_MS[:count], start=1)
        )
        sides.append(
            cpu_evidence(
                launches=launches,
                planned_launches=1,
                gates=("step_ms", *cpu_evidence().gates),
                floor_flops_per_step=0.0,
            )
        )
    head, base = replace(sides[0], commit="f" * 40), replace(sides[1], commit="0" * 40)
    return Comparison("main", head, base, glance=True, **changes)
