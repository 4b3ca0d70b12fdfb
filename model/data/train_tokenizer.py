"""Learn a byte-pair encoding from the Python standard library.

Byte-pair encoding (Sennrich et al. 2016, on bytes as in GPT-2) starts from the 256 bytes and
again and again joins the pair of neighbours that occurs most often. Counting all pairs anew for
each of the 7936 joins would take hours; here a join touches only the words that contain the pair,
and a heap with out-of-date entries finds the next one, so the whole run takes about a minute.

    python -m model.data.train_tokenizer            # writes model/data/tokens/stdlib8k.tiktoken
    python -m model.data.train_tokenizer --ranks 1024 --output /tmp/small.tiktoken
"""

from __future__ import annotations

import argparse
import base64
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from model.data import manifest
from model.data.corpus import stdlib_name, stdlib_texts
from model.data.manifest import TOKENS_FOLDER
from model.data.tokenizer import WORD_PATTERN

Pair = tuple[int, int]


class PairTable:
    """Words as lists of token ids, with the count of every pair of neighbours kept up to date."""

    def __init__(self, word_counts: Counter[str]) -> None:
        self.token_bytes = [bytes([value]) for value in range(256)]
        self._words = [list(word.encode()) for word in word_counts]
        self._weights = list(word_counts.values())
        self._counts: Counter[Pair] = Counter()
        self._words_with: defaultdict[Pair, set[int]] = defaultdict(set)
        for index, word in enumerate(self._words):
            self._add(index, word, self._weights[index])
        self._heap: list[tuple[int, bytes, bytes, Pair]] = []
        self._push(self._counts)

    def most_frequent(self) -> Pair | None:
        """The pair that occurs most often, ties broken by its bytes; None when none is left."""
        while self._heap:
            negative_count, _, _, pair = heapq.heappop(self._heap)
            # An entry is out of date when the pair's count has moved since; it was pushed again.
            if -negative_count == self._counts.get(pair, 0):
                return pair
        return None

    def join(self, pair: Pair, token: int) -> None:
        """Replace ``pair`` by ``token`` in every word that contains it."""
        touched: set[Pair] = set()
        for index in self._words_with.pop(pair):
            old, weight = self._words[index], self._weights[index]
            new = _joined(old, pair, token)
            touched |= self._add(index, old, -weight)
            touched |= self._add(index, new, weight)
            self._words[index] = new
        self._counts.pop(pair, None)
        touched.discard(pair)
        self._push(touched)

    def _add(self, index: int, word: list[int], weight: int) -> set[Pair]:
        """Count the word's pairs ``weight`` times (negative: take them away)."""
        pairs = list(zip(word, word[1:], strict=False))
        for pair in pairs:
            self._counts[pair] += weight
        changed = set(pairs)
        for pair in changed:
            # set.add and set.discard differ by sign; a negative weight leaves the word's set.
            if weight > 0:
                self._words_with[pair].add(index)
            elif pair in self._words_with:
                self._words_with[pair].discard(index)
        return changed

    def _push(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            count = self._counts.get(pair, 0)
            if count > 0:
                left, right = self.token_bytes[pair[0]], self.token_bytes[pair[1]]
                heapq.heappush(self._heap, (-count, left, right, pair))


def _joined(word: list[int], pair: Pair, token: int) -> list[int]:
    joined: list[int] = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) == pair:
            joined.append(token)
            position += 2
        else:
            joined.append(word[position])
            position += 1
    return joined


def train(texts: Iterable[str], num_ranks: int) -> dict[bytes, int]:
    """Learn ``num_ranks`` tokens, the 256 bytes included.

    The result depends on the texts only, not on their order: words are counted first, and equal
    counts are decided by the bytes of the pair.

    Raises:
        ValueError: ``num_ranks`` is below 256, or the texts hold too few pairs for it.
    """
    if num_ranks < 256:
        raise ValueError(f"num_ranks is {num_ranks}; possible: 256 (the bytes) or more")
    splitter = re.compile(WORD_PATTERN)
    word_counts: Counter[str] = Counter()
    for text in texts:
        word_counts.update(splitter.findall(text))
    table = PairTable(word_counts)
    ranks = {token: rank for rank, token in enumerate(table.token_bytes)}
    while len(ranks) < num_ranks:
        pair = table.most_frequent()
        if pair is None:
            raise ValueError(f"the texts give only {len(ranks)} ranks, {num_ranks} were asked for")
        token = table.token_bytes[pair[0]] + table.token_bytes[pair[1]]
        # "ab"+"c" and "a"+"bc" are one token: tiktoken joins by bytes, so the rank is shared.
        if token not in ranks:
            ranks[token] = len(ranks)
            table.token_bytes.append(token)
        table.join(pair, ranks[token])
    return ranks


def write_ranks(path: Path, ranks: dict[bytes, int], *, command: str, source: str) -> None:
    """Write a rank file in tiktoken's format and its manifest."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    path.write_text("".join(lines), encoding="ascii", newline="\n")
    manifest.write(path, command=command, encoding=path.stem, ranks=len(ranks), source=source)


def main() -> None:
    """Train on the standard library of the running interpreter and write the rank file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8192, help="tokens to learn (%(default)s)")
    default = TOKENS_FOLDER / "stdlib8k.tiktoken"
    parser.add_argument("--output", type=Path, default=default, help="rank file to write")
    options = parser.parse_args()
    ranks = train((text for _, text in stdlib_texts()), options.ranks)
    command = "python -m model.data.train_tokenizer"
    if options.ranks != 8192 or options.output != default:
        command += f" --ranks {options.ranks} --output {options.output}"
    write_ranks(options.output, ranks, command=command, source=stdlib_name())
    print(f"{options.output}: {len(ranks)} ranks from the {stdlib_name()}")


if __name__ == "__main__":
    main()
