"""Turn text into token shards: python -m model.data --output my.bin notes.txt more.txt"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from model.data.corpus import stdlib_name, stdlib_texts
from model.data.shards import STDLIB_SHARD, write_shard
from model.data.tokenizer import ENCODINGS

STDLIB_TOKENS = 2**20


def files(paths: list[Path]) -> list[Path]:
    """Return the files named, and for a folder all ``*.txt`` and ``*.md`` below it, by name."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(one for end in ("txt", "md") for one in path.rglob(f"*.{end}"))
        found += inside if path.is_dir() else [path]
    return found


def texts(paths: list[Path]) -> Iterator[str]:
    """Yield the text of each file; ValueError with its name for one that is not UTF-8."""
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from None


def main(arguments: list[str]) -> int:
    """Write a shard of the given text files, or of the standard library when none are given."""
    parser = argparse.ArgumentParser(prog="python -m model.data", description=main.__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="UTF-8 text files, or folders of them")
    listed = " or ".join(ENCODINGS)
    parser.add_argument("--encoding", default="stdlib8k", help=f"{listed} (%(default)s)")
    parser.add_argument("--output", type=Path, help="shard to write; needed where files are given")
    text = f"where to cut (the standard library at {STDLIB_TOKENS:,}, given files nowhere)"
    parser.add_argument("--max-tokens", type=int, help=text)
    options = parser.parse_args(arguments)
    if options.max_tokens is not None and options.max_tokens < 2:
        parser.error(f"--max-tokens {options.max_tokens}: at least 2 are needed")
    if options.files:
        if options.output is None:
            parser.error("--output is missing: without it the suite's own shard would be replaced")
        named = files(options.files)
        content: Iterable[str] = texts(named)
        source = ", ".join(path.name for path in named)
    else:
        content, source = (text for _, text in stdlib_texts()), stdlib_name()
    output = options.output or STDLIB_SHARD
    most = options.max_tokens or (None if options.files else STDLIB_TOKENS)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        written = write_shard(
            output,
            content,
            encoding=options.encoding,
            max_tokens=most,
            command=shlex.join(["python", "-m", "model.data", *arguments]),
            source=source,
        )
    except (OSError, RuntimeError, ValueError) as error:
        print(f"model.data: {error}", file=sys.stderr)
        return 1
    print(f"{output}: {written} tokens of encoding {options.encoding} from {source}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
