"""A run of cases. A case comes to its verdict in seven steps:

    1. ``perf(case)``, the fixture in plugin/__init__.py, or the command in cli/run.py
    2. ``PerfSession.measure``, plugin/session.py: starts the suite, and records at the end
    3. ``Suite.run``, suite.py: by the stored baseline, or in pairs with another revision, which
       also answer an alarm
    4. ``measure``, driver.py: asks the judge's ``need`` and plan.py's ``next_action``
    5. turns.py: what launches do that are alive at once; each is a ``RunningLaunch``
    6. ``judge``, judge/rule_book.py: the evidence becomes a ``Verdict``
    7. ``Result``, suite.py: case, evidence and verdict, which report/ shows

Two callbacks lead back up: ``progress`` and ``keep``.
"""
