"""torchrun's log: who ended how, who was ended by torchrun, and whom the others follow from."""

import pytest

from stepguard.launch.diagnosis import ElasticLog

CLOSED = "W1122 05:10:53.100000 9 torch/x/api.py:1028] Sending process {} closing signal SIGTERM\n"
FAILED = (
    "E1122 05:10:53.200000 9 torch/x/api.py:1002] failed (exitcode: {}) local_rank: {} (pid: {})"
)
REPORT = """
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: {})  (SIGABRT)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {} (pid: {})
"""


def test_nothing_is_reported_of_a_clean_end():
    """An empty log, and one of other matters: nobody failed, nobody was ended."""
    assert ElasticLog.read("") == ElasticLog({}, frozenset())
    assert ElasticLog.read("W1122 05:10:53.1 9 OMP_NUM_THREADS is 1 (pid: 7)\n") == ElasticLog.read(
        ""
    )


def test_a_failure_and_its_victim():
    """As it stands before the report: one failed, the other was sent a signal."""
    log = ElasticLog.read(CLOSED.format(71) + FAILED.format(-9, 1, 72) + " of binary: python\n")
    assert log == ElasticLog({72: -9}, frozenset({71}))


def test_the_report():
    """Every failure with its status, a victim's too, and whose was seen first."""
    log = ElasticLog.read(CLOSED.format(71) + REPORT.format(-6, 71, 3, 72))
    assert log == ElasticLog({71: -6, 72: 3}, frozenset({71}), root=72)


def test_a_pid_is_no_part_of_a_time():
    """Small ones, as in a container, are in every line's time."""
    assert not ElasticLog.read(CLOSED.format(71)).victims & {5, 9, 10, 22, 53, 1028}


@pytest.mark.parametrize(
    ("statuses", "root", "first"),
    [
        ({1: -6, 2: 3}, 2, 2),  # the report knows
        ({1: -6, 2: -9}, 1, 2),  # but of what happens in one second the lower rank
        ({1: -6, 2: 3}, None, 1),
        ({1: 3, 2: -9}, 1, 2),  # killed before anything
        ({1: 3}, None, 1),  # a status before none
        ({}, None, 1),
    ],
)
def test_whom_the_others_follow_from(statuses, root, first):
    """Of ranks that nobody ended."""
    assert ElasticLog(statuses, frozenset(), root).first([1, 2]) == first
