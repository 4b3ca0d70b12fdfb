"""Our training step beside the loop of karpathy/build-nanogpt, unmodified, on the same GPUs.

    git clone https://github.com/karpathy/build-nanogpt
    python -m benchmarks.build_nanogpt --source build-nanogpt --gpus 2 --out against.json

Launches of the two under torchrun take turns, A B B A. Compared are wall times from a drained
device to a drained device, slowest rank, at equal tokens per step, once their file as it is, which
does not compile, and once with one switch changed: use_compile = True. Their step includes what
their loop does each step: a synchronize, a print, a line in a log, blocking copies of pageable
inputs. Our step compiles, queues its steps and waits at the end. Their script gets no network: data
shards are made of this repository's tokens, HellaSwag is one made-up example a rank. The JSON is
written after every pair; the exit status is 1 if something is missing from it.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import ROOT, Document, about, ratio, run_until

SCRIPT = "train_gpt2.py"
KNOWN_SHA256 = "6a033ddc2c4d092d291dc8825b75ad9e030659881ab0cd2d2935e392516d9226"
KNOWN_COMMIT = "6104ab1b53920f6e2159749676073ff7d815c1fa"
SWITCH = ("use_compile = False", "use_compile = True")
COMPARISONS = {"shipped": "as shipped", "switched": "one switch changed: use_compile = True"}
DATA = "edu_fineweb10B"  # where their script looks for its shards
TOKENS_PER_STEP, BATCH, SEQ = 524_288, 64, 1024  # theirs
MOST_STEPS = 189  # of a launch: later ones load the next shard, the 250th validates
SHARD_TOKENS, VAL_TOKENS = 100_000_000, 10_000_000  # as their shards; they validate on 5 million
LAUNCH_S = 400.0  # the longest launch: importing, compiling
LOG_CHARS = 4000  # of a launch that failed


class LaunchError(Exception):
    """A launch that ended in another way; with the end of its log."""


def their_source(folder: Path, sha256: str) -> bytes:
    """Return the script's text; raise SystemExit unless it is the version that was asked for."""
    path = folder / SCRIPT
    if not path.is_file():
        raise SystemExit(f"{path} is missing; --source wants a clone of karpathy/build-nanogpt")
    source = path.read_bytes()
    found = hashlib.sha256(source).hexdigest()
    if found != sha256:
        raise SystemExit(
            f"{path} has SHA-256 {found}, wanted is {sha256} (commit {KNOWN_COMMIT}); "
            f"to run another version: --sha256 {found}"
        )
    return source


def switched(source: bytes) -> bytes:
    """Return the source with the switch changed; raise SystemExit where it is not there once."""
    before, after = (text.encode() for text in SWITCH)
    if source.count(before) != 1:
        raise SystemExit(f"{SCRIPT} has {source.count(before)} times {SWITCH[0]!r}, wanted is one")
    return source.replace(before, after)


def make_data(folder: Path, tokens: int) -> None:
    """Make a shard to train on and one to validate on, of this repository's tokens, repeated."""
    known = np.fromfile(ROOT / "model" / "data" / "tokens" / "stdlib8k.bin", dtype="<u2")
    folder.mkdir()
    np.save(folder / "edufineweb_val_000000.npy", np.resize(known, min(tokens, VAL_TOKENS)))
    np.save(folder / "edufineweb_train_000001.npy", np.resize(known, tokens))


def our_params(device: str, ranks: int) -> dict[str, Any]:
    """Return the parameters of our step: on GPUs those that make their number of tokens."""
    if device == "cpu":
        tiny = {"size": "nano", "batch": 1, "seq": 32, "precision": "fp32", "compile": False}
        return tiny | {"micro_steps": 2, "device": device}
    if TOKENS_PER_STEP % (BATCH * SEQ * ranks):
        raise SystemExit(f"{ranks} GPUs do not divide {TOKENS_PER_STEP} tokens a step")
    micro_steps = TOKENS_PER_STEP // (BATCH * SEQ * ranks)
    fixed = {"size": "124m", "batch": BATCH, "seq": SEQ, "precision": "bf16"}
    return fixed | {"micro_steps": micro_steps, "device": device}


def launch(side: str, what: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one launch in ``folder``, which holds their data; return its figures, slowest rank.

    Raises LaunchError where a rank left none, or ranks disagree on the tokens of a step.
    """
    for old in folder.glob("rank*.json"):
        old.unlink()
    # The rendezvous stays on the loopback interface: a machine need not know its own name.
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1"]
    command += [f"--nproc-per-node={options.gpus}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command += ["-m", "benchmarks.build_nanogpt_rank", side, what]
    command += [str(options.lead_in), str(options.steps), str(folder)]
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    more |= {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    printed, ended = run_until(command, LAUNCH_S, cwd=folder, env=os.environ | more)
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    if len(ranks) != options.gpus or len({one["tokens_per_step"] for one in ranks}) != 1:
        why = "it took too long" if ended else f"{len(ranks)} of {options.gpus} ranks have figures"
        raise LaunchError(f"{side}: {why}; the end of its log:\n{printed[-LOG_CHARS:]}")
    return max(ranks, key=lambda one: float(one["step_ms"]))


def compare(
    name: str, script: Path, document: Document, options: argparse.Namespace, folder: Path
) -> None:
    """Run the pairs of one comparison, each of which is written."""
    sides = {"ours": json.dumps(document.content["params"]), "theirs": str(script)}
    pairs: list[dict[str, Any]] = []
    for index in range(options.pairs):
        order = ["ours", "theirs"] if index % 2 == 0 else ["theirs", "ours"]
        began = time.monotonic()
        pair = {side: launch(side, sides[side], options, folder) for side in order}
        tokens = {side: one["tokens_per_step"] for side, one in pair.items()}
        if len(set(tokens.values())) != 1:
            raise LaunchError(f"tokens of a step are {tokens}: not comparable")
        pairs.append({"order": order, **pair})
        times = [(one["theirs"]["step_ms"], one["ours"]["step_ms"]) for one in pairs]
        found = {"what": COMPARISONS[name], "pairs": pairs, "theirs_over_ours": ratio(times)}
        document.update(comparisons=document.content["comparisons"] | {name: found})
        ms = ", ".join(f"{side} {one['step_ms']:.1f}" for side, one in pair.items())
        took = time.monotonic() - began
        print(
            f"{name}, pair {index + 1}/{options.pairs}: {ms} ms a step ({took:.0f} s)", flush=True
        )


def result_table(content: dict[str, Any]) -> str:
    """Return a Markdown table with a row for each comparison."""
    lines = ["| their loop | theirs, ms/step | ours, ms/step | theirs / ours, 95 % interval |"]
    lines.append("|---|---:|---:|---:|")
    for one in content["comparisons"].values():
        found = one["theirs_over_ours"]
        means = [np.mean([pair[side]["step_ms"] for pair in one["pairs"]]) for side in
                 ("theirs", "ours")]  # fmt: skip
        interval = "one pair: none"
        if found["interval_95"]:
            low, high = found["interval_95"]
            interval = f"[{low:.3f}, {high:.3f}] of {found['pairs']} pairs"
        cells = [
            one["what"],
            f"{means[0]:.1f}",
            f"{means[1]:.1f}",
            f"{found['ratio']:.3f} {interval}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Compare, then say what was found; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--source", type=Path, required=True, help=f"folder with their {SCRIPT}")
    parser.add_argument("--sha256", default=KNOWN_SHA256, help=f"of {SCRIPT}, if another version")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--gpus", type=int, default=4, help="or ranks on a CPU (%(default)s)")
    parser.add_argument("--only", choices=tuple(COMPARISONS), help="one of the two comparisons")
    parser.add_argument("--pairs", type=int, default=4, help="of each comparison (%(default)s)")
    parser.add_argument("--lead-in", type=int, default=15, help="untimed steps (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps (%(default)s)")
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    options = parser.parse_args()
    if options.lead_in + options.steps > MOST_STEPS:
        parser.error(f"--lead-in and --steps: {MOST_STEPS} together at most")
    source = their_source(options.source, options.sha256)
    how = about(options.device, options.gpus) | {"source_sha256": options.sha256}
    how |= {"params": our_params(options.device, options.gpus), "comparisons": {}}
    document, faults = Document(options.out, how), []
    with tempfile.TemporaryDirectory(prefix="against-") as name:
        folder = Path(name).resolve()
        make_data(folder / DATA, options.shard_tokens)
        (folder / "changed").mkdir()
        scripts = {one: folder / "changed" / SCRIPT for one in COMPARISONS}
        scripts["switched"].write_bytes(switched(source))
        scripts["shipped"] = (options.source / SCRIPT).resolve()
        for one in [options.only] if options.only else list(COMPARISONS):
            try:
                compare(one, scripts[one], document, options, folder)
            except LaunchError as error:
                print(error, file=sys.stderr)
                faults.append(f"{one}: {str(error).splitlines()[0]}")
    document.update(missing=faults)
    print(result_table(document.content))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
