"""A run of cases. A case comes to its verdict in seven steps:

    1. ``perf(case)``, the fixture in plugin/__init__.py, or the command in cli/run.py
    2. ``Session.measure``, plugin/session.py: starts the suite, and records at the end
    3. ``Suite.run``, suite.py: by the stored baseline, or in pairs with another revision
    4. ``measure``, driver.py: asks the judge's ``need``, plan.py's ``next_action``, and does it
    5. ``RunningLaunch``, running_launch.py: import, build, counts, warm-up, timed blocks, end
    6. ``judge``, judge/rule_book.py: the evidence becomes a ``Verdict``
    7. ``Result``, suite.py: case, evidence and verdict, which report/ shows

Only the progress, and the pairs that are kept, go back up.
"""
