"""The command line: measure one workload, check the machine, accept what was measured.

    python -m stepguard run -- train.py --batch_size=12
    python -m stepguard init -- train.py --batch_size=12
    python -m stepguard doctor
    python -m stepguard accept 'train_step[124m-bf16]' --reason 'fused the loss'
    python -m stepguard gate perf.json --commit 4f2a91c0d3e7...

Exit status: 0 when it worked, 1 when a measurement or a refusal says no, 2 for bad usage.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import get_terminal_size
from textwrap import dedent, fill, indent
from types import ModuleType

from stepguard import __version__
from stepguard.cli import (
    accept,
    bisect,
    comment,
    doctor,
    explain_code,
    gate,
    init,
    judge,
    run,
    waive,
)
from stepguard.cli.common import UsageError, complain
from stepguard.core import former
from stepguard.machine.git.resolve import TreeError
from stepguard.machine.gpu import MachineError
from stepguard.machine.lifeline import ends_as_interrupts, notice_ends
from stepguard.machine.packages import commands_of_packages, to_install_lab
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import root_of

COMMANDS = (  # modules with add_command(), which adds the parser
    init,
    run,
    doctor,
    accept,
    judge,
    bisect,
    waive,
    comment,
    gate,
    explain_code,
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    notice_ends()
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
        with ends_as_interrupts():
            return int(options.call(options))
    # UsageError is a ValueError, so it has to come first.
    except UsageError as error:
        complain(error)
        return 2
    except BrokenPipeError:  # see __main__.py
        raise
    except (FileError, MachineError, OSError, TreeError, ValueError) as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130  # 128 + SIGINT, as shells return it


def every_command(first: str = "") -> Iterator[ModuleType]:
    """Yield the modules of all commands: that of ``first``, then the gate's, then others."""
    own = {module.__name__.rpartition(".")[2].replace("_", "-"): module for module in COMMANDS}
    if first in own:  # to look up other packages takes 50 ms
        yield own[first]
    others, known = commands_of_packages(), {own.get(first)}
    # An older package may still name a command that is gone.
    names = [name for name in (*own, *others) if name not in former.COMMANDS]
    for name in sorted(names, key=lambda name: name != first):
        module = own.get(name) or others[name].load()
        if module not in known:  # it may add several commands
            known.add(module)
            yield module


def _describe(parser: argparse.ArgumentParser, text: str) -> None:
    """Give a command's help the text and the examples of its module, unless its parser has a
    description. Let it take whole options only: --gpu 2 would be --gpus 2.
    """
    parser.allow_abbrev = False
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    text = parser.description or text.partition(": ")[2]
    parser.description = "\n\n".join(_block(paragraph) for paragraph in text.strip().split("\n\n"))


def _block(text: str) -> str:
    if text.lstrip().startswith(("python ", "pytest ")):
        return indent(dedent(text), "  ")
    return fill(text, get_terminal_size().columns - 2)


def _options(command: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Return a command's options. If it runs workloads, all that follows -- belongs to a script."""
    script: list[str] = []
    if command.get_default("script") is not None and "--" in arguments:
        border = arguments.index("--")
        arguments, script = arguments[:border], arguments[border + 1 :]
        if not script:
            command.error("a script is missing behind --")
    parsed: argparse.Namespace = command.parse_intermixed_args(arguments)
    if script:
        parsed.script = tuple(script)
        # As with ``python train.py``, a script's paths are relative to the current folder. That may
        # be below the repository's root.
        parsed.root = Path.cwd()
    elif command.get_default("needs_workload") and parsed.factory is None:
        command.error("name a workload: -- train.py, package.module:function, or a case")
    return parsed


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command that the first argument names.

    The command's own parser is called: argparse accepts options and words in any order only in a
    parser without subcommands.
    """
    if instead := former.COMMANDS.get(next(iter(arguments), "")):
        raise UsageError(f"{arguments[0]} is no command any more: {instead}")
    parser = argparse.ArgumentParser(prog="python -m stepguard", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"stepguard {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    root = root_of(Path.cwd())
    for command in every_command(*arguments[:1]):
        known = set(commands.choices)
        command.add_command(commands, root)
        for name in commands.choices.keys() - known:
            _describe(commands.choices[name], command.__doc__ or "")
            former.add_options(name, commands.choices[name].add_argument)
        # Other commands are neither imported nor described.
        if arguments and arguments[0] in commands.choices:
            return _options(commands.choices[arguments[0]], arguments[1:])
    if not commands_of_packages():
        parser.epilog = to_install_lab()
        if arguments and not arguments[0].startswith("-"):
            parser.error(f"no command {arguments[0]!r}; {to_install_lab()}")
    if not arguments:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    return parser.parse_args(arguments)
