"""Files of token ids, read as one stream.

A shard is a file of uint16 token ids, memory-mapped, with a manifest that is checked when it is
opened. A folder of shards is read in the order of their names, as if they were one.

    tokens = Tokens.open(STDLIB_SHARD)
    learned, held_out = tokens.split(0.05)
    tokens.read(start=1000, count=65)       # (65,) uint16, from the beginning again at the end
    write_shard(Path("my.bin"), ["a text"], encoding="stdlib8k", max_tokens=100,
                command="by hand", source="a text")
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.data import manifest
from model.data.manifest import TOKENS_FOLDER

STDLIB_SHARD = TOKENS_FOLDER / "stdlib8k.bin"
_DTYPE = np.dtype("<u2")  # the byte order is part of the format
_COUNTED = 2**24  # tokens that are enough for frequencies


@dataclass(frozen=True)
class Tokens:
    """A stream of token ids, in memory-mapped parts.

    Attributes:
        parts: each (n,) uint16, read-only.
        vocab: one more than the largest id that the encoding can give.
        encoding: the name of the encoding that made it.

    Raises:
        ValueError: fewer than two tokens in all.
    """

    parts: tuple[np.ndarray, ...]
    vocab: int
    encoding: str

    def __post_init__(self) -> None:
        if len(self) < 2:
            raise ValueError(f"the shard has {len(self)} tokens; possible: 2 or more")

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @classmethod
    def open(cls, path: Path) -> Tokens:
        """Map the shard at ``path``, or all ``*.bin`` of a folder, after a check by manifest.

        Raises:
            FileNotFoundError: a shard or its manifest is missing, or a folder has none.
            ValueError: truncated, changed, not a token shard, or of unequal encodings; the message
                has the value found and the command that rebuilds it.
        """
        if not path.exists() and not manifest.manifest_path(path).exists():
            raise FileNotFoundError(f"there is no {path}; make shards with: python -m model.data")
        if not path.is_dir():
            return _open_shard(path)
        shards = [_open_shard(one) for one in sorted(path.glob("*.bin"))]
        if not shards:
            raise FileNotFoundError(f"{path} has no *.bin; make them with: python -m model.data")
        if len({(shard.encoding, shard.vocab) for shard in shards}) > 1:
            found = ", ".join(sorted({shard.encoding for shard in shards}))
            raise ValueError(f"{path} has shards of several encodings: {found}; possible: one")
        parts = tuple(part for shard in shards for part in shard.parts)
        return cls(parts, shards[0].vocab, shards[0].encoding)

    def read(self, start: int, count: int) -> np.ndarray:
        """Copy ``count`` tokens from ``start`` on, both taken round the end: (count,) uint16."""
        start %= len(self)
        pieces, wanted = [], count
        while wanted:
            for part in self.parts:
                piece = part[start : start + wanted]
                start = max(0, start - len(part))
                pieces.append(piece)
                wanted -= len(piece)
        return np.concatenate(pieces)

    def split(self, fraction: float) -> tuple[Tokens, Tokens]:
        """Cut off the last ``fraction`` of the stream: (the rest, the part cut off)."""
        at, before, after = round(len(self) * (1 - fraction)), [], []
        for part in self.parts:
            before.append(part[: max(0, at)])
            after.append(part[max(0, at) :])
            at -= len(part)
        first, second = (
            Tokens(tuple(part for part in parts if len(part)), self.vocab, self.encoding)
            for parts in (before, after)
        )
        return first, second

    def unigram_entropy(self) -> float:
        """Return the entropy in nats of how often each id occurs: what a model that knows nothing
        but frequencies would have as its loss. Counted over at most 16.8 million tokens.
        """
        ids = self.read(0, min(len(self), _COUNTED))
        counts = np.bincount(ids, minlength=self.vocab)
        shares = counts[counts > 0] / len(ids)
        return float(-(shares * np.log(shares)).sum())


def _open_shard(path: Path) -> Tokens:
    facts = manifest.verify(path)
    absent = {"encoding", "tokens", "vocab"} - set(facts)
    if absent:
        raise ValueError(f"{path} is not a token shard: its manifest lacks {sorted(absent)}")
    tokens = np.memmap(path, dtype=_DTYPE, mode="r")
    if len(tokens) != facts["tokens"]:
        raise ValueError(f"{path} holds {len(tokens)} tokens, its manifest says {facts['tokens']}")
    return Tokens((tokens,), facts["vocab"], facts["encoding"])


def write_shard(
    path: Path,
    texts: Iterable[str],
    *,
    encoding: str,
    max_tokens: int | None,
    command: str,
    source: str,
) -> int:
    """Encode ``texts`` into a shard, each behind an end-of-text token; return the tokens written.

    Args:
        path: the file to write; its manifest lands beside it.
        texts: documents, encoded in the order given.
        encoding: a name that ``get_encoding`` knows.
        max_tokens: where to cut; None: nowhere.
        command, source: for the manifest: how it was made, of what.

    Raises:
        ValueError: no token came out, or the encoding has more ids than 16 bits can hold.
    """
    # Imported here: reading a shard takes no tokenizer, so measuring needs no tiktoken.
    from model.data.tokenizer import END_OF_TEXT, get_encoding

    tokenizer = get_encoding(encoding)
    if tokenizer.n_vocab > 2**16:
        raise ValueError(f"encoding {encoding!r} has {tokenizer.n_vocab} ids; possible: 65536")
    separator = tokenizer.encode_single_token(END_OF_TEXT)
    ids = array("H")  # two bytes a token: a text may have hundreds of millions
    for text in texts:
        ids.append(separator)
        ids.extend(tokenizer.encode_ordinary(text))
        if max_tokens is not None and len(ids) >= max_tokens:
            break
    if len(ids) < 2:
        raise ValueError(f"the texts gave {len(ids)} tokens; possible: 2 or more")
    tokens = np.array(ids[:max_tokens], dtype=_DTYPE)
    tokens.tofile(path)
    manifest.write(
        path,
        command=command,
        encoding=tokenizer.name,
        source=source,
        tokens=len(tokens),
        vocab=tokenizer.n_vocab,
    )
    return len(tokens)
