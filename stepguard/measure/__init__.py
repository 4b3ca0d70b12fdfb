"""A run of cases. A case comes to its verdict in eight steps:

    1. ``perf(case)``, the fixture in plugin/__init__.py, or the command in cli/run.py
    2. ``Session.measure``, plugin/session.py: starts the suite, and records at the end
    3. ``Suite.run``, suite.py: by the stored baseline, or in pairs with another revision
    4. ``measure_launches``, launches.py, or ``measure_ab``, pair_run.py: which launches there are
    5. ``RunningLaunch``, running_launch.py: import, build, warm-up, timed blocks, end
    6. ``CaseWorkers``, case_workers.py: the worker groups and the monitor; their answers become
       ``Evidence``
    7. ``judge``, judge/rule_book.py: the evidence becomes a ``Verdict``
    8. ``Result``, suite.py: case, evidence and verdict, which report/ shows

Only two calls go back up: the progress, and the question whether another launch or pair is wanted.
"""
