"""Text to token ids, through tiktoken, by an encoding that is always named.

Two encodings exist. ``gpt2`` is the one GPT-2 was trained with: tiktoken downloads its ranks once,
or they are read from the file that the environment variable GPT2_RANKS names: r50k_base.tiktoken,
whose ranks are GPT-2's. ``stdlib8k`` is this repository's own: 8192 ranks learned from the Python
standard library, kept in ``model/data/tokens/``, so it works on a machine without a network.
Neither ever stands in for the other: asking for one that cannot be loaded is an error.

    encoding = get_encoding("stdlib8k")
    ids = encoding.encode_ordinary("def step(self): ...")
    python -m model.data.tokenizer stdlib8k "def step(self): ..."
"""

from __future__ import annotations

import base64
import os
import sys
from functools import cache
from pathlib import Path

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from model.data import manifest
from model.data.manifest import TOKENS_FOLDER

ENCODINGS = ("gpt2", "stdlib8k")
END_OF_TEXT = "<|endoftext|>"
# Of r50k_base.tiktoken, as tiktoken itself checks it.
GPT2_RANKS_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"

# One alternative per kind of text in source code: a word, a short number or a run of punctuation,
# each with at most one space before it; a line break with the indentation after it; other blanks.
# Every character falls into one of them, so nothing is lost, and both Python's re (which the
# training uses) and tiktoken's Rust engine accept the syntax.
WORD_PATTERN = r" ?[^\W\d_]+| ?\d{1,3}| ?(?:[^\w\s]|_)+|\s*\n[ \t]*|\s+"


@cache
def get_encoding(name: str) -> tiktoken.Encoding:
    """Return the encoding called ``name``; its ``.name`` says which one it is.

    Args:
        name: ``"gpt2"`` (50257 ids) or ``"stdlib8k"`` (8193 ids, the last is end-of-text).

    Raises:
        ValueError: no such encoding, or the rank file is not the one that it should be.
        FileNotFoundError: the rank file is missing.
        RuntimeError: tiktoken could not load ``gpt2`` on this machine.
    """
    if name == "gpt2":
        return _gpt2()
    if name == "stdlib8k":
        return load_ranks(TOKENS_FOLDER / "stdlib8k.tiktoken")
    raise ValueError(f"encoding is {name!r}; possible: {', '.join(ENCODINGS)}")


def load_ranks(path: Path) -> tiktoken.Encoding:
    """Make an encoding of a verified rank file, named after the file.

    The file has tiktoken's format: one line per token, its bytes in base64, a space, its rank.
    tiktoken's own reader is not used because it would keep a copy in a temporary folder and go
    on reading that copy after the file has changed.

    Raises:
        FileNotFoundError, ValueError: as ``manifest.verify``.
    """
    manifest.verify(path)
    return make_encoding(path.stem, _read_ranks(path))


def _read_ranks(path: Path) -> dict[bytes, int]:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def make_encoding(
    name: str, ranks: dict[bytes, int], pattern: str = WORD_PATTERN
) -> tiktoken.Encoding:
    """Make a ``tiktoken.Encoding`` of ``ranks`` plus the end-of-text token, which comes last."""
    return tiktoken.Encoding(
        name,
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: len(ranks)},
    )


def _gpt2() -> tiktoken.Encoding:
    named = os.environ.get("GPT2_RANKS")
    if named:
        path = Path(named)
        if not path.is_file():
            raise FileNotFoundError(f"GPT2_RANKS is {named}: no such file")
        found = manifest.sha256_of(path)
        if found != GPT2_RANKS_SHA256:
            raise ValueError(
                f"GPT2_RANKS is {named} with SHA-256 {found}; possible: r50k_base.tiktoken, "
                f"{GPT2_RANKS_SHA256}"
            )
        return make_encoding("gpt2", _read_ranks(path), r50k_pat_str)
    try:
        return tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a bad hash a ValueError
        reason = str(error).splitlines()[0][:120] if str(error) else "no reason given"
        raise RuntimeError(
            f"encoding 'gpt2' cannot be loaded here ({type(error).__name__}: {reason}); "
            "give tiktoken a network, or GPT2_RANKS=r50k_base.tiktoken, or ask for 'stdlib8k'"
        ) from error


def main(arguments: list[str]) -> None:
    """Print the encoding's name and the tokens of a text."""
    name, text = arguments
    encoding = get_encoding(name)
    ids = encoding.encode_ordinary(text)
    print(f"{encoding.name}, {encoding.n_vocab} ids: {len(ids)} tokens for {len(text)} characters")
    print(" ".join(f"{i}:{encoding.decode_single_token_bytes(i)!r}" for i in ids))


if __name__ == "__main__":
    main(sys.argv[1:])
