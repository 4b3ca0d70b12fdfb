"""From text to batches on the device, without ever making the GPU wait.

A shard is a file of uint16 token ids, memory-mapped, with a manifest that is checked when it is
opened. ``BatchLoader`` cuts it into consecutive batches; with W ranks, rank r takes every W-th one,
so that one step over W ranks reads exactly what one rank with a W times larger batch would.

A pageable ``.to(device)`` stops the host until the stream has drained (0.7 % of a step on four
H200s). So batches leave from pinned memory, and the copy of the next one is queued when the
current one is handed out.

    shard = Shard.open(STDLIB_SHARD)
    loader = BatchLoader(shard, batch=64, seq=1024, rank=0, world_size=1, device="cuda")
    inputs, targets = loader.next()
    python -m model.data --encoding gpt2 --output my.bin notes.txt more.txt
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model import manifest
from model.corpus import stdlib_name, stdlib_texts
from model.manifest import TOKENS_FOLDER

STDLIB_SHARD = TOKENS_FOLDER / "stdlib8k.bin"
_DTYPE = np.dtype("<u2")  # the byte order is part of the format


@dataclass(frozen=True)
class Shard:
    """A verified, memory-mapped token file.

    Attributes:
        tokens: (n,) uint16, read-only.
        vocab: one more than the largest id that the encoding can give.
        encoding: the name of the encoding that made it.
    """

    tokens: np.ndarray
    vocab: int
    encoding: str

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Map the shard at ``path`` after checking it against its manifest.

        Raises:
            FileNotFoundError: the shard or its manifest is missing.
            ValueError: truncated, changed, or not a token shard; the message has the value found
                and the command that rebuilds it.
        """
        facts = manifest.verify(path)
        absent = {"encoding", "tokens", "vocab"} - set(facts)
        if absent:
            raise ValueError(f"{path} is not a token shard: its manifest lacks {sorted(absent)}")
        tokens = np.memmap(path, dtype=_DTYPE, mode="r")
        if len(tokens) != facts["tokens"]:
            raise ValueError(
                f"{path} holds {len(tokens)} tokens, its manifest says {facts['tokens']}"
            )
        return cls(tokens=tokens, vocab=facts["vocab"], encoding=facts["encoding"])


class BatchLoader:
    """Consecutive batches of a shard, strided over the ranks, one copied ahead.

    Batch k of rank r starts at position ``(k * world_size + r) * batch * seq`` of the shard; it
    wraps round at the end. Targets are the inputs moved on by one token.

    Args:
        shard: where the tokens come from; all ranks must use the same one.
        batch, seq: shape of a batch, in sequences and in tokens.
        rank, world_size: this rank, and how many there are.
        device: where batches are wanted.

    Raises:
        ValueError: a number is out of range, or the shard holds fewer than two tokens.
    """

    def __init__(
        self,
        shard: Shard,
        batch: int,
        seq: int,
        rank: int,
        world_size: int,
        device: str | torch.device,
    ) -> None:
        for name, value in (("batch", batch), ("seq", seq), ("world_size", world_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}; possible: an int of 1 or more")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; possible: an int from 0 to {world_size - 1}")
        if len(shard.tokens) < 2:
            raise ValueError(f"the shard has {len(shard.tokens)} tokens; possible: 2 or more")
        self._shard = shard
        self._shape = (batch, seq)
        self._start = rank * batch * seq
        self._stride = world_size * batch * seq
        self._device = torch.device(device)
        self._ahead = self._send()

    def next(self) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), each (batch, seq) int64 on the device; never waits for it."""
        current = self._ahead
        self._ahead = self._send()
        return current

    def _send(self) -> tuple[Tensor, Tensor]:
        """Start copying the next batch to the device."""
        batch, seq = self._shape
        positions = self._start + np.arange(batch * seq + 1, dtype=np.int64)
        self._start = (self._start + self._stride) % len(self._shard.tokens)
        # "wrap" takes positions modulo the length, also for a shard shorter than a batch.
        tokens = self._shard.tokens.take(positions, mode="wrap")
        # Pinned memory is taken afresh for every batch. PyTorch's host allocator gives it out
        # again only after the copy from it has run, so nothing here has to wait or keep count.
        # The copies go to the compute stream: 1 MB takes about 20 us of a step of 250 ms, which
        # is not worth a second stream and its hazards.
        host = torch.empty(
            (2, batch, seq), dtype=torch.int64, pin_memory=self._device.type == "cuda"
        )
        host[0].view(-1).numpy()[:] = tokens[:-1]
        host[1].view(-1).numpy()[:] = tokens[1:]
        # Two copies into two tensors rather than two views of one: a view can start at an address
        # that is not aligned for vector loads, and compiled code would then copy it again.
        if self._device.type == "cpu":
            return host[0].clone(), host[1].clone()
        return (
            host[0].to(self._device, non_blocking=True),
            host[1].to(self._device, non_blocking=True),
        )


def write_shard(
    path: Path, texts: Iterable[str], *, encoding: str, max_tokens: int, command: str, source: str
) -> int:
    """Encode ``texts`` into a shard, each behind an end-of-text token; return the tokens written.

    Args:
        path: the file to write; its manifest lands beside it.
        texts: documents, encoded in the order given until ``max_tokens`` is reached.
        encoding: a name that ``get_encoding`` knows.
        max_tokens: where to cut.
        command, source: for the manifest: how it was made, of what.

    Raises:
        ValueError: no token came out, or the encoding has more ids than 16 bits can hold.
    """
    # Imported here: reading a shard takes no tokenizer, so measuring needs no tiktoken.
    from model.tokenizer import END_OF_TEXT, get_encoding

    tokenizer = get_encoding(encoding)
    if tokenizer.n_vocab > 2**16:
        raise ValueError(f"encoding {encoding!r} has {tokenizer.n_vocab} ids; possible: 65536")
    separator = tokenizer.encode_single_token(END_OF_TEXT)
    ids: list[int] = []
    for text in texts:
        ids.append(separator)
        ids.extend(tokenizer.encode_ordinary(text))
        if len(ids) >= max_tokens:
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


def main(arguments: list[str]) -> None:
    """Write a shard of the given text files, or of the standard library when none are given."""
    parser = argparse.ArgumentParser(prog="python -m model.data", description=main.__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="UTF-8 text files")
    parser.add_argument("--encoding", default="stdlib8k", help="gpt2 or stdlib8k (%(default)s)")
    parser.add_argument("--output", type=Path, default=STDLIB_SHARD, help="shard to write")
    parser.add_argument("--max-tokens", type=int, default=2**20, help="%(default)s")
    options = parser.parse_args(arguments)
    if options.files:
        texts: Iterable[str] = (path.read_text(encoding="utf-8") for path in options.files)
        source = ", ".join(path.name for path in options.files)
    else:
        texts, source = (text for _, text in stdlib_texts()), stdlib_name()
    command = shlex.join(["python", "-m", "model.data", *arguments])
    written = write_shard(
        options.output,
        texts,
        encoding=options.encoding,
        max_tokens=options.max_tokens,
        command=command,
        source=source,
    )
    print(f"{options.output}: {written} tokens of encoding {options.encoding} from {source}")


if __name__ == "__main__":
    main(sys.argv[1:])
