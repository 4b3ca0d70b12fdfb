"""Runs files of tests beside each other: ``pytest --workers 3`` collects once and forks workers.

A worker runs whole files, in the order of collection, and takes the next file when it is done. What
was imported for the collection is there already: three workers that collect by themselves, as
those of pytest-xdist do, take 10 s of a CPU each. Hooks of reports run in the first process, so
that --durations, --lf, -x and --junitxml work. A test that did not run to its end, because its
worker died, has failed.
"""

import contextlib
import itertools
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
from _pytest.reports import TestReport

SIZE = 2  # bytes of a file's number in the queue


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--workers", type=int, default=0, help="run files of tests beside each other, in N forks"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers, if they are asked for and the collection is sound."""
    count, only_collect = session.config.option.workers, session.config.option.collectonly
    if not count or only_collect or session.testsfailed:
        return None
    files = [list(group) for _, group in itertools.groupby(session.items, lambda one: one.path)]
    tasks = _queue(len(files))
    workers: dict[Connection, int] = {}
    try:
        for number in range(min(count, len(files))):
            ours, theirs = Pipe(duplex=False)
            if (pid := os.fork()) == 0:
                _work(session, files, tasks, theirs, number)
            theirs.close()
            workers[ours] = pid
        _report(session, workers)
    finally:
        os.close(tasks)
        for connection, pid in workers.items():
            os.kill(pid, signal.SIGINT)
            os.waitpid(pid, 0)
            connection.close()
    return True


def _queue(length: int) -> int:
    """Return a pipe to read the numbers from 0 to ``length`` from, each once."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as queue:
        queue.writelines(number.to_bytes(SIZE) for number in range(length))
    return reading


def _taken(tasks: int) -> int | None:
    """Return the next number of a queue, which no other process gets."""
    number = os.read(tasks, SIZE)
    return int.from_bytes(number) if number else None


def _report(session: pytest.Session, workers: dict[Connection, int]) -> None:
    """Call the hooks that workers ask for, until all have ended. What no worker finished fails."""
    hooks, missing = session.config.hook, {item.nodeid: item for item in session.items}
    ends = []
    while workers:
        for connection in wait([*workers]):
            assert isinstance(connection, Connection)
            try:
                name, given = connection.recv()
            except EOFError:
                _, status = os.waitpid(workers.pop(connection), 0)
                ends.append(os.waitstatus_to_exitcode(status))
                continue
            if name == "pytest_runtest_logreport":
                data = given["report"]
                given["report"] = hooks.pytest_report_from_serializable(
                    config=session.config, data=data
                )
            if name == "pytest_runtest_logfinish":
                missing.pop(given["nodeid"])
            if name == "pytest_warning_recorded":
                hooks.pytest_warning_recorded.call_historic(kwargs=given)
            else:
                getattr(hooks, name)(**given)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    for item in missing.values():
        said = f"not run to its end: workers ended with {ends}"
        where = (item.nodeid, item.location, {}, "failed", said, "call")
        hooks.pytest_runtest_logreport(report=TestReport(*where))
    if any(ends):
        session.shouldfail = f"workers ended with {ends}"
        raise session.Failed(session.shouldfail)


def _work(
    session: pytest.Session,
    files: list[list[pytest.Item]],
    tasks: int,
    connection: Connection,
    number: int,
) -> NoReturn:
    """Be a worker: run files of the queue until it is empty."""
    status = 1
    try:
        _become_worker(session.config, connection, number)
        while (taken := _taken(tasks)) is not None:
            items = files[taken]
            # Behind a file, all ends but what belongs to the session: who knows which file is next?
            for item, next_item in zip(items, [*items[1:], session], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        session._setupstate.teardown_exact(None)
        status = 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(BaseException):
            session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


def _become_worker(config: pytest.Config, connection: Connection, number: int) -> None:
    """Let this fork heed SIGINT, which a shell's background jobs ignore. Give it files of its own
    for what it captures, and a folder for what tests write.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(_Sender(config, connection))
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.mktemp(f"worker{number}", numbered=False)


class _Sender:
    """Has the first process call the hooks of reports, with what a worker calls them with."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hand on what became of a part of a test."""
        to_data = self._config.hook.pytest_report_to_serializable
        data = to_data(config=self._config, report=report)
        self._connection.send(("pytest_runtest_logreport", {"report": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        """Hand on that a test has ended."""
        given = {"nodeid": nodeid, "location": location}
        self._connection.send(("pytest_runtest_logfinish", given))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        """Hand on a warning; of one that cannot be pickled the text."""
        try:
            pickle.dumps(warning_message)
        except Exception:
            warning_message.message = Warning(str(warning_message.message))
            warning_message.category, warning_message.source = Warning, None
        given = {"warning_message": warning_message, "when": when, "nodeid": nodeid}
        given["location"] = location
        self._connection.send(("pytest_warning_recorded", given))
