"""The command line: measure one workload, check the machine, accept what was measured.

    python -m stepguard run model.workloads:train_step size=nano batch=4 seq=64 device=cpu
    python -m stepguard node --endpoint HOST:PORT
    python -m stepguard doctor
    python -m stepguard accept 'train_step[124m-bf16]' --reason 'fused the loss'
    python -m stepguard baselines list

Exit status: 0 when it worked, 1 when a measurement or a refusal says no, 2 for bad usage.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from stepguard import explain, node
from stepguard.case import Case, Scalar
from stepguard.doctor import examine
from stepguard.evidence import Evidence, from_json
from stepguard.host import baseline
from stepguard.host.baseline import BaselineError
from stepguard.host.machine import Gpu, MachineError, visible_gpus
from stepguard.host.nodes import Nodes, NodesError, gather, per_node
from stepguard.host.store import Store, StoreError
from stepguard.host.suite import Result, Suite
from stepguard.judge import judge, measurement_problem
from stepguard.report import documents, shell, table
from stepguard.report.live import Live
from stepguard.verdict import Status
from stepguard.wire import endpoint_of


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(options.call(options))
    except UsageError as error:
        print(f"stepguard: {error}", file=sys.stderr)
        return 2
    except (BaselineError, MachineError, NodesError, StoreError, ValueError) as error:
        print(f"stepguard: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stepguard: interrupted, nothing recorded", file=sys.stderr)
        return 130


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command that the first argument names.

    The command's own parser is called, since argparse offers intermixing only where there are no
    commands below: options and words may then stand in any order.
    """
    parser = argparse.ArgumentParser(prog="python -m stepguard", description=__doc__.split("\n")[0])
    commands = _commands(parser)
    if arguments and arguments[0] in commands:
        return commands[arguments[0]].parse_intermixed_args(arguments[1:])
    return parser.parse_args(arguments)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    root = root_of(Path.cwd())
    baselines = Path(os.path.relpath(root / "baselines"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="measure one workload, without a baseline")
    run.add_argument("factory", metavar="FACTORY", help="package.module:function")
    run.add_argument("params", nargs="*", metavar="key=value", help="the factory's parameters")
    run.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one")
    run.add_argument("--gpus", type=int, default=1, metavar="N", help="ranks (%(default)s)")
    run.add_argument("--nnodes", type=int, default=1, metavar="N", help="nodes (%(default)s)")
    run.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where other nodes find this one")
    run.add_argument("--launches", type=int, metavar="N", help="timed launches (3; 1 on a CPU)")
    run.add_argument("--json", metavar="PATH", help="write the result as one JSON document")
    run.set_defaults(call=_run)
    other = commands.add_parser("node", help="serve a run of several nodes on another node")
    other.add_argument("--endpoint", required=True, metavar="HOST:PORT", help="of the first node")
    other.set_defaults(call=_node)
    doctor = commands.add_parser("doctor", help="is this machine fit, and is there a baseline?")
    doctor.set_defaults(call=lambda options: examine(root, options.baselines))
    accept = commands.add_parser("accept", help="make the last run's evidence a recording")
    accept.add_argument("case", nargs="*", metavar="CASE", help="default: every case of that run")
    accept.add_argument("--reason", default="", help="why a new level is right")
    accept.set_defaults(call=_accept)
    again = commands.add_parser("judge", help="judge kept evidence against the baselines again")
    again.add_argument(
        "case", nargs="*", metavar="CASE", help="default: every case of the last run"
    )
    again.add_argument("--json", metavar="PATH", help="write the verdicts as one JSON document")
    again.set_defaults(call=_judge)
    shown = commands.add_parser("baselines", help="what is recorded")
    shown.add_argument("action", choices=("list", "show"))
    shown.add_argument("case", nargs="?", metavar="CASE")
    shown.set_defaults(call=_baselines)
    for command in (accept, again):
        command.add_argument(
            "--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run"
        )
    for command in (doctor, accept, again, shown):
        command.add_argument("--baselines", type=Path, default=baselines, metavar="DIR")
    return dict(commands.choices)


class UsageError(ValueError):
    """The command line itself is wrong."""


def root_of(folder: Path) -> Path:
    """The project's root: the nearest folder upwards with pytest.ini, pyproject.toml or .git."""
    for candidate in (folder, *folder.parents):
        if any((candidate / name).exists() for name in ("pytest.ini", "pyproject.toml", ".git")):
            return candidate
    return folder


def parse_params(pairs: list[str]) -> dict[str, Scalar]:
    """ "batch=64" -> {"batch": 64}. Values are JSON scalars, anything else is a string.

    Raises UsageError for an argument without "=" or a key given twice.
    """
    found: dict[str, Scalar] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r}: write key=value")
        if key in found:
            raise UsageError(f"{key} is given twice")
        try:
            value = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            value = text
        found[key] = value if isinstance(value, Scalar) else text
    return found


def _refuse_target(target: str | None) -> None:
    """Raise UsageError now, not when hours of measuring are over."""
    if target and (problem := documents.unwritable(Path(target))):
        raise UsageError(f"--json {target}: {problem}")


def _run(options: argparse.Namespace) -> int:
    params = parse_params(options.params)
    gpus = tuple(visible_gpus())
    device = str(params.pop("device", None) or options.device or ("cuda" if gpus else "cpu"))
    default = 3 if device == "cuda" else 1
    launches = default if options.launches is None else options.launches
    case = Case(
        "run", options.factory, params, device=device, world_size=options.gpus, launches=launches
    )
    _refuse_target(options.json)
    root = root_of(Path.cwd())
    nodes = _nodes(options, root, gpus)
    if nodes:
        per_node(case, nodes)
    typed = ["python", "-m", "stepguard", *sys.argv[1:]]
    suite = Suite(root, root / "baselines", gpus, typed, nodes)
    live = _live(suite)
    live.plan([(case.id, device)])
    live.begin(case.id)
    try:
        result = suite.run(case, live.stage)
    finally:
        live.end()
        if nodes:
            nodes.close()
    for line in shell.figures(result):
        print(line)
    if not _measured(result):
        print(explain.block(result.verdict, str(result.evidence_path)), file=sys.stderr)
    shell.put_json(documents.result_document(result), options.json, result.evidence_path)
    return 0 if _measured(result) else 1


def _nodes(options: argparse.Namespace, root: Path, gpus: tuple[Gpu, ...]) -> Nodes | None:
    if options.nnodes < 1 or (options.nnodes > 1) != bool(options.rdzv_endpoint):
        raise UsageError("--nnodes and --rdzv-endpoint go together; see docs/several-nodes.md")
    if options.nnodes == 1:
        return None
    return gather(options.nnodes, options.rdzv_endpoint, root, gpus, dict(os.environ), _say)


def _node(options: argparse.Namespace) -> int:
    """Obey the first node until its run is over."""
    endpoint = endpoint_of(options.endpoint)
    return node.serve(root_of(Path.cwd()), endpoint, visible_gpus(), _say)


def _say(text: str) -> None:
    print(f"stepguard: {text}", file=sys.stderr, flush=True)


def _measured(result: Result) -> bool:
    """Whether there is a sound measurement; what a baseline says of it is not asked here."""
    return measurement_problem(result.evidence) is None


def _live(suite: Suite) -> Live:
    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return Live(
        write,
        terminal=sys.stderr.isatty(),
        verbose=True,
        width=100,
        expected_s=suite.store.last_wall_s(),
    )


def _accept(options: argparse.Namespace) -> int:
    refused = 0
    for evidence in _wanted(options):
        try:
            path = baseline.path_of(options.baselines, evidence)
            print(baseline.accept(path, evidence, options.reason))
        except BaselineError as error:
            print(f"stepguard: {error}", file=sys.stderr)
            refused += 1
    return 1 if refused else 0


def _judge(options: argparse.Namespace) -> int:
    """The verdicts that kept evidence gets from today's baselines; nothing is measured."""
    _refuse_target(options.json)
    verdicts = []
    for evidence in _wanted(options):
        path = baseline.path_of(options.baselines, evidence)
        content = baseline.load_for(path, baseline.machine_of(evidence))
        entry = content.cases.get(evidence.case_id) if content else None
        verdicts.append(judge(evidence, entry))
        commit = evidence.commit[:10] or "no commit"
        print(f"{evidence.case_id}: measured {evidence.date} on {commit}, {path.name}")
    for text, _ in table.lines(table.rows(verdicts)):
        print(text)
    for verdict in verdicts:
        if verdict.status is not Status.SAME:
            print("\n".join([explain.headline(verdict), *explain.evidence_lines(verdict)]))
    shell.put_json([documents.verdict_document(verdict) for verdict in verdicts], options.json)
    return 0 if all(verdict.status.outcome == "passed" for verdict in verdicts) else 1


def _wanted(options: argparse.Namespace) -> list[Evidence]:
    """The evidence that is meant, all of it: a case may have been measured on several machines.

    Raises ValueError when there is none, or a case is unknown.
    """
    if options.evidence:
        path = Path(options.evidence)
        paths = sorted(path.rglob("evidence.json")) if path.is_dir() else [path]
        source = str(path)
    else:
        store = Store(root_of(Path.cwd()))
        paths = list(store.newest().values()) if options.case else store.last_run()
        source = str(store.runs)
    try:
        found = [from_json(path.read_bytes(), str(path)) for path in paths]
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None
    if not found:
        here = "the last run left no evidence; measure: pytest perf_tests"
        there = "no evidence.json is below it"
        raise ValueError(f"{source}: {there if options.evidence else here}")
    known = {evidence.case_id for evidence in found}
    for case_id in options.case:
        if case_id not in known:
            has = ", ".join(sorted(known))
            raise ValueError(f"no evidence of {case_id!r} in {source}; it has: {has}")
    return [evidence for evidence in found if evidence.case_id in (options.case or known)]


def _baselines(options: argparse.Namespace) -> int:
    folder = options.baselines
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"{folder}: no baseline file; record one: pytest perf_tests --perf-update")
    shown = 0
    for path in paths:
        content = baseline.load(path)
        for case_id, entry in sorted(content.cases.items()) if content else ():
            if options.case not in (None, case_id):
                continue
            shown += 1
            print(shell.recorded(path, case_id, entry))
            if options.action == "show":
                print(json.dumps(baseline.as_builtins(entry), indent=1, sort_keys=True))
    if options.case and not shown:
        raise ValueError(f"{folder} has no baseline of {options.case!r}")
    return 0
