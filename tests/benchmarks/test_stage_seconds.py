"""stage_seconds: to which stage a second belongs."""

import json

from benchmarks import stage_seconds
from benchmarks.stage_seconds import Stages, stage_of
from stepguard.measure.case_workers import Ticker


def test_a_second_belongs_to_the_text_before_it():
    """A stage that comes again adds to its row; all seconds together are the run's."""
    clock = iter((0.0, 2.0, 3.0, 7.0, 8.0))
    stages = Stages(lambda: next(clock))
    for stage in ("count", "pair", "count", ""):
        stages.enter(stage)
    assert stages.seconds == {"start": 2.0, "count": 2.0, "pair": 4.0}
    assert sum(stages.seconds.values()) == 8.0


def test_pairs_share_a_row():
    """Numbers and the front of a confirmation are left out; names keep their digits."""
    texts = ("pair 1 head: block 1 of 2", "confirming, 5 min at most: pair 12 head: block 2 of 2")
    assert {stage_of(text) for text in texts} == {"pair N head: block N of N"}
    assert stage_of("train_step[124m]: start") == "train_step[124m]: start"


def test_a_run_has_its_table(pytester):
    """Each progress text is still shown; the table and the file have its stage; the ticker is as it
    was.
    """
    shown = Ticker.__call__
    pytester.makepyfile(
        """
        from stepguard.measure.case_workers import Ticker

        def test_case():
            seen = []
            Ticker(seen.append)("pair 3: start")
            assert seen == ["pair 3: start"]
        """
    )
    result = pytester.runpytest_inprocess("-p", "benchmarks.stage_seconds")
    result.stdout.re_match_lines([r" +\d+\.\d\d  start", r" +\d+\.\d\d  pair N: start"])
    seconds = json.loads((pytester.path / stage_seconds.OUT).read_text())
    assert list(seconds) == ["start", "pair N: start", "between cases and end"]
    assert Ticker.__call__ is shown
