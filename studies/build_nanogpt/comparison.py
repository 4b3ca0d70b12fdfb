"""The two groups of measure.py, their blocks, and what their pairs say."""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.build_nanogpt.groups import Block, Group, GroupError
from studies.common.results import Document
from studies.common.series import clock_text, mirrored, ratio, table

DATA = "edu_fineweb10B"  # where their script looks for its shards
FIRST_S = 240.0  # the longest block: compiling, validating
COMPARISONS = {
    "shipped": "as shipped, use_compile = False",
    "switched": "one switch changed: use_compile = True",
}


class Comparison:
    """Both groups, their blocks, and what was found so far."""

    def __init__(
        self,
        options: argparse.Namespace,
        document: Document,
        folder: Path,
        scripts: Mapping[str, Path],
        most_steps: int,
    ) -> None:
        self.options, self.document, self.folder = options, document, folder
        self.scripts, self.most_steps = scripts, most_steps
        self.began = time.monotonic()
        self.env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if options.device == "cpu":
            self.env["CUDA_VISIBLE_DEVICES"] = ""
        self.ours = self._ours()
        self.our_step_s, self.tokens = 0.0, 0

    def say(self, text: str) -> None:
        """Progress, with the time since the command began."""
        print(f"[{clock_text(time.monotonic() - self.began)}] {text}", flush=True)

    def _ours(self) -> Group:
        params = json.dumps(self.document.content["params"])
        program = ["-m", "studies.build_nanogpt.our_rank", self.options.device, params]
        return Group("our step", program, self.options.ranks, self.folder / "ours", self.env)

    def _theirs(self, name: str) -> Group:
        folder = self.folder / name
        folder.mkdir()
        (folder / DATA).symlink_to(self.folder / DATA)
        script, most = str(self.scripts[name]), str(self.most_steps)
        program = ["-m", "studies.build_nanogpt.their_rank", script, most]
        return Group(f"their loop, {name}", program, self.options.ranks, folder, self.env)

    def warm_up(self, group: Group) -> float:
        """The first step, then load until the card is warm; seconds of a step."""
        self.say(f"{group.name}: first step")
        first = group.block(1, 0, FIRST_S)
        self.say(f"{group.name}: first step took {first.step_ms / 1e3:.1f} s")
        load_s, block = 0.0, group.block(2, 0, FIRST_S)  # the second may compile again
        while load_s < self.options.warm_up_s:
            block = group.block(3, 0, FIRST_S)
            load_s += block.wall_s
        self.say(
            f"{group.name}: {block.step_ms:.1f} ms a step, {block.tokens_per_step:,} tokens, "
            f"{block.reserved_bytes / 2**30:.1f} GiB a GPU at most"
        )
        self.tokens = self.tokens or block.tokens_per_step
        if block.tokens_per_step != self.tokens:
            raise GroupError(
                f"{group.name} has {block.tokens_per_step:,} tokens a step, the other "
                f"{self.tokens:,}: not comparable"
            )
        return block.step_ms / 1e3

    def run(self, name: str, reserve_s: float) -> None:
        """One comparison, all its pairs, while the limit less ``reserve_s`` allows."""
        theirs = self._theirs(name)
        try:
            self.say("both groups start: importing, building, joining")
            self.ours.hello()
            theirs.hello()
            self.our_step_s = self.our_step_s or self.warm_up(self.ours)
            their_step_s = self.warm_up(theirs)
            steps = {
                "ours": self._steps(self.our_step_s),
                "theirs": self._steps(their_step_s),
            }
            self._pairs(name, {"ours": self.ours, "theirs": theirs}, steps, reserve_s)
        finally:
            theirs.close()

    def _steps(self, step_s: float) -> int:
        return max(2, round(self.options.block_s / step_s))

    def _pairs(
        self, name: str, groups: dict[str, Group], steps: dict[str, int], reserve_s: float
    ) -> None:
        pairs: list[dict[str, Any]] = []
        wanted = self.options.pairs
        for index in range(-1, wanted):  # the first pair takes up the pause before, uncounted
            began = time.monotonic()
            order = mirrored(["ours", "theirs"], index % 2)
            blocks = {who: self._block(groups[who], steps[who]) for who in order}
            took = time.monotonic() - began
            if index < 0:
                continue
            measured = {who: _block_data(block) for who, block in blocks.items()}
            pairs.append({"order": order, **measured})
            self._note(name, pairs, steps, blocks)
            left = took * (wanted - index - 1)
            said = ", ".join(f"{who} {block.step_ms:.1f}" for who, block in blocks.items())
            self.say(
                f"{name}, pair {index + 1}/{wanted}: {said} ms a step; "
                f"about {clock_text(left)} left of this comparison"
            )
            passed = time.monotonic() - self.began
            if left and passed + took + reserve_s > self.options.limit_s and index >= 2:
                self.say(f"time is short: {index + 1} of {wanted} pairs are all there will be")
                break

    def _block(self, group: Group, steps: int) -> Block:
        return group.block(steps, self.options.lead_in, FIRST_S)

    def _note(
        self,
        name: str,
        pairs: list[dict[str, Any]],
        steps: dict[str, int],
        blocks: dict[str, Block],
    ) -> None:
        times = [(pair["theirs"]["step_ms"], pair["ours"]["step_ms"]) for pair in pairs]
        found = {
            "what": COMPARISONS[name],
            "steps_per_block": steps,
            "pairs": pairs,
            "theirs_over_ours": ratio(times),
            "mean_ms": {
                "theirs": sum(theirs for theirs, _ in times) / len(times),
                "ours": sum(ours for _, ours in times) / len(times),
            },
            "reserved_bytes": {who: block.reserved_bytes for who, block in blocks.items()},
        }
        known = self.document.content["comparisons"]
        self.document.update(comparisons={**known, name: found}, tokens_per_step=self.tokens)


def _block_data(block: Block) -> dict[str, Any]:
    return {
        "step_ms": round(block.step_ms, 4),
        "rank_ms": [round(ms, 4) for ms in block.rank_ms],
    }


def result_table(content: dict[str, Any]) -> str:
    """Both comparisons, a row each."""
    header = ["their loop", "theirs, ms/step", "ours, ms/step", "theirs / ours", "95 % interval"]
    rows = []
    for one in content["comparisons"].values():
        found, mean = one["theirs_over_ours"], one["mean_ms"]
        interval = "one pair: none"
        if found["interval_95_pct"]:
            low, high = (1 + bound / 100 for bound in found["interval_95_pct"])
            interval = f"[{low:.3f}, {high:.3f}] of {found['pairs']} pairs"
        cells = [f"{mean['theirs']:.1f}", f"{mean['ours']:.1f}", f"{found['ratio']:.3f}", interval]
        rows.append([one["what"], *cells])
    return table(header, rows)
