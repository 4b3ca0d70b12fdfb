"""Our training step against the loop of karpathy/build-nanogpt, unmodified, on the same GPUs.

Both run as torchrun groups that are alive together; blocks of steps alternate, A B B A, and the
other group waits on the host meanwhile. Compared are wall times from a drained device to a drained
device over the block's steps, slowest rank, at equal tokens per step. Two comparisons, one after
the other, each an interval over its pairs:

    shipped   their file as it is; it does not compile (use_compile = False)
    switched  one switch changed: use_compile = True; all else as it is

Their step includes what their loop does each step: a synchronize, a print (into a file here), a
line in a log, blocking copies of pageable inputs. Our step compiles, queues its steps and waits at
the end of a block.

    git clone https://github.com/karpathy/build-nanogpt
    python -m studies.build_nanogpt.measure --source build-nanogpt --gpus 4 --out against.json

Their script gets no network: data shards are made from this repository's tokens, HellaSwag is one
made-up example a rank. See their_rank.py. The JSON is written after every pair; exit
status 1 says that something is missing from it.
"""

import argparse
import hashlib
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from model.data.manifest import verify
from stepguard.cli.workload import parse_params
from stepguard.git.revision import current
from studies.build_nanogpt.comparison import COMPARISONS, DATA, Comparison, result_table
from studies.build_nanogpt.groups import GroupError
from studies.common.results import ROOT, Document, command_line, default_path, machine

SCRIPT = "train_gpt2.py"
KNOWN_SHA256 = "6a033ddc2c4d092d291dc8825b75ad9e030659881ab0cd2d2935e392516d9226"
KNOWN_COMMIT = "6104ab1b53920f6e2159749676073ff7d815c1fa"
SWITCH = ("use_compile = False", "use_compile = True")
TOKENS_PER_STEP, BATCH, SEQ = 524_288, 64, 1024  # theirs
VALIDATES = 250  # their steps of this number and its multiples
VAL_TOKENS = 10_000_000  # they validate on 20 batches a rank, 5,242,880 tokens
SWITCHED_S = 115.0  # what the second comparison takes; the first leaves that much of the limit


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="The rest is explained at the top of this file.",
    )
    parser.add_argument("--source", type=Path, required=True, help=f"folder with their {SCRIPT}")
    parser.add_argument("--sha256", default=KNOWN_SHA256, help=f"of {SCRIPT}, if another version")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--gpus", "--ranks", dest="ranks", type=int, default=4)
    parser.add_argument("--only", choices=tuple(COMPARISONS), help="one of the two comparisons")
    parser.add_argument("--pairs", type=int, default=6, help="of each comparison (%(default)s)")
    parser.add_argument("--block-s", type=float, default=2.0, help="a block lasts (%(default)s)")
    parser.add_argument("--lead-in", type=int, default=2, help="untimed steps (%(default)s)")
    parser.add_argument("--warm-up-s", type=float, default=5.0, help="of load each (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=230.0, help="pairs stop in time for it")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, help="as their shards")
    parser.add_argument("--out", type=Path, help="(.stepguard/against_build_nanogpt.json)")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("params", nargs="*", metavar="key=value", help="of our train_step")
    options = parser.parse_args()
    options.out = options.out or default_path("against_build_nanogpt.json")
    if options.ranks < 1 or options.pairs < 1 or options.lead_in < 0:
        parser.error("--gpus and --pairs are 1 or more, --lead-in is 0 or more")
    for path in filter(None, (options.out, options.markdown)):
        if not path.resolve().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.resolve().parent}")
    return options


def their_source(options: argparse.Namespace) -> bytes:
    """The script's text; SystemExit unless it is the version that was asked for."""
    path = options.source / SCRIPT
    if not path.is_file():
        raise SystemExit(f"{path} is missing; --source wants a clone of karpathy/build-nanogpt")
    source = path.read_bytes()
    found = hashlib.sha256(source).hexdigest()
    if found != options.sha256:
        raise SystemExit(
            f"{path} has SHA-256 {found}, wanted is {options.sha256} (commit {KNOWN_COMMIT}); "
            f"to run another version: --sha256 {found}"
        )
    return source


def switched(source: bytes) -> bytes:
    """The source with the one switch changed; SystemExit where it is not there exactly once."""
    before, after = (text.encode() for text in SWITCH)
    if source.count(before) != 1:
        raise SystemExit(f"{SCRIPT} has {source.count(before)} times {SWITCH[0]!r}, wanted is one")
    return source.replace(before, after)


def make_data(folder: Path, tokens: int) -> None:
    """One shard to train on and one to validate on, from this repository's tokens, repeated."""
    path = ROOT / "model" / "data" / "tokens" / "stdlib8k.bin"
    verify(path)
    ours = np.fromfile(path, dtype="<u2")
    folder.mkdir()
    np.save(folder / "edufineweb_val_000000.npy", np.resize(ours, min(tokens, VAL_TOKENS)))
    np.save(folder / "edufineweb_train_000001.npy", np.resize(ours, tokens))


def most_steps(options: argparse.Namespace) -> int:
    """Return the number of equal steps: later ones validate, or load the next shard."""
    if options.device == "cpu":
        return VALIDATES - 1
    return min(VALIDATES, options.shard_tokens // TOKENS_PER_STEP) - 1


def scripts(options: argparse.Namespace, source: bytes, folder: Path) -> dict[str, Path]:
    """By comparison, the file that is run: theirs in its place, and a copy with the switch."""
    changed = folder / "changed" / SCRIPT
    changed.parent.mkdir()
    changed.write_bytes(switched(source))
    return {"shipped": (options.source / SCRIPT).resolve(), "switched": changed}


def our_params(options: argparse.Namespace) -> dict[str, Any]:
    """Parameters of our step: on GPUs those that make their number of tokens."""
    given = parse_params(options.params)
    if options.device == "cpu" or "micro_steps" in given:
        return given
    a_micro_step = BATCH * SEQ * options.ranks
    if TOKENS_PER_STEP % a_micro_step:
        raise SystemExit(f"{options.ranks} GPUs do not divide {TOKENS_PER_STEP} tokens a step")
    fixed = {"size": "124m", "batch": BATCH, "seq": SEQ, "precision": "bf16"}
    return {**fixed, "micro_steps": TOKENS_PER_STEP // a_micro_step, **given}


def compare(options: argparse.Namespace, document: Document, source: bytes) -> list[str]:
    """Run what was asked for; what went wrong."""
    names = [options.only] if options.only else list(COMPARISONS)
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="against-") as folder:
        root = Path(folder).resolve()
        make_data(root / DATA, options.shard_tokens)
        runnable = scripts(options, source, root)
        comparison = Comparison(options, document, root, runnable, most_steps(options))
        try:
            for at, name in enumerate(names):
                print(f"--- {name}: {COMPARISONS[name]}", flush=True)
                comparison.run(name, SWITCHED_S if at + 1 < len(names) else 0.0)
        except GroupError as error:
            print(error, file=sys.stderr)
            faults.append(str(error).partition("\n")[0])
        except KeyboardInterrupt:
            faults.append("interrupted")
        finally:
            comparison.ours.close()
    found = document.content["comparisons"]
    faults += [f"no pair of {name}" for name in names if name not in found]
    faults += [f"{name}: one pair, no interval" for name in found if len(found[name]["pairs"]) < 2]
    return faults


def main() -> int:
    """Compare, then say what was found."""
    options = arguments()
    source = their_source(options)
    switched(source)
    version = f"commit {KNOWN_COMMIT}" if options.sha256 == KNOWN_SHA256 else "another version"
    print(f"{options.source / SCRIPT}: SHA-256 {options.sha256}, {version}", flush=True)
    document = Document(
        options.out,
        {
            "benchmark": "against_build_nanogpt",
            "command": command_line(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": current(ROOT, ROOT / "baselines").commit,
            "machine": machine(options.device, options.ranks),
            "source_sha256": options.sha256,
            "source_commit": KNOWN_COMMIT if options.sha256 == KNOWN_SHA256 else "",
            "params": our_params(options),
            "lead_in_steps": options.lead_in,
            "comparisons": {},
        },
    )
    document.update()
    missing = compare(options, document, source)
    document.update(missing=missing)
    found = result_table(document.content)
    print("\n" + found)
    if options.markdown:
        options.markdown.write_text(found, encoding="utf-8")
    for one in missing:
        print(f"MISSING: {one}", file=sys.stderr)
    print(f"raw figures: {options.out}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
