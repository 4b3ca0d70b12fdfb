"""Refactors of a step in nanoGPT's manner: all of them are `same`.

Counted in this process, as a launch counts, and judged against the step as it was. A text that is
no longer there once is an error: then a refactor has to be written anew.
"""

import gc
import importlib
import re
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from builders import cpu_evidence, entry, epoch
from whole_pass import count

from stepguard.core.comparison import Question
from stepguard.core.evidence import Counts
from stepguard.core.status import Status
from stepguard.judge.rule_book import judge
from stepguard.judge.summarise_evidence import stored
from stepguard.report.verdict_text import evidence_lines, headline
from stepguard.worker.counters import sync_candidates
from stepguard.worker.counters.tally import RankStep
from stepguard.worker.counters.tensor_devices import Placement

ROOT = Path(__file__).resolve().parents[2]
Edits = tuple[tuple[str, str], ...]  # what stands once in the source, and what comes for it


@pytest.fixture(autouse=True, scope="module")
def quick(own_heap):
    """Two steps in which nothing waits are as good as ten; what the tests hold is put aside."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sync_candidates, "CANDIDATE_STEPS", 2)
        yield


def counted(folder, factory, **params):
    """The evidence of a factory that is imported from ``folder``; it leaves no module behind."""
    before = set(sys.modules)
    module, _, name = factory.partition(":")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    placement, torch_state = Placement(), torch.get_rng_state()
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.chdir(folder)
            for known in [
                n for n in sys.modules if n.partition(".")[0] == module.partition(".")[0]
            ]:
                monkeypatch.delitem(sys.modules, known)
            with placement.observed():
                workload = getattr(importlib.import_module(module), name)(device="cpu", **params)
            workload.step()
            step = RankStep(workload.step, torch.device("cpu"), placement=placement)
            found = msgspec.convert(count(step), Counts)
            del workload, step
    finally:
        sys.path.remove(str(folder))
        torch.set_rng_state(torch_state)
        for new in set(sys.modules) - before:
            if new.partition(".")[0] == module.partition(".")[0]:
                del sys.modules[new]
        gc.collect()
    assert not found.unstable, found.unstable
    return cpu_evidence(counts=found)


def rewritten(text, edits):
    """The source with what the edits say."""
    for old, new in edits:
        assert text.count(old) == 1, f"not once there: {old!r}"
        text = text.replace(old, new)
    return text


def baseline(base):
    """A recording of the step as it was."""
    return entry(case=base.case, epochs=[epoch(recordings=[stored(base)])])


def assert_same(found, base):
    """The gate stays green, and has nothing to say."""
    verdict = judge(Question(found, baseline(base)))
    assert verdict.status is Status.SAME, "\n".join([headline(verdict), *evidence_lines(verdict)])


SMALL: dict[str, Edits] = {
    "a local variable is renamed": (
        ("        ix = torch.randint(", "        starts = torch.randint("),
        ("for i in ix])\n", "for i in starts])\n"), ("for i in ix]\n", "for i in starts]\n")),
    "gradients are dropped at the beginning": (
        ("        self.opt.zero_grad(set_to_none=True)\n", ""),
        ("        lr = self.get_lr(self.iteration)\n",
         "        self.opt.zero_grad()\n        lr = self.get_lr(self.iteration)\n")),
    "a method is renamed": (
        ("def get_batch(self)", "def next_batch(self)"), ("self.get_batch()", "self.next_batch()")),
    "a class is renamed": (
        ("class Feed(", "class MLP("), ("self.mlp = Feed(config)", "self.mlp = MLP(config)")),
    "an expression is inlined": (
        ("        x = self.act(x)\n        x = self.down(x)\n        return x\n",
         "        return self.down(self.act(x))\n"),),
    "a helper is extracted": (
        (
            "        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)\n"
            "        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)\n"
            "        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)\n",
            "        q, k, v = self.heads(q), self.heads(k), self.heads(v)\n",
        ),
        (
            "        return self.resid_dropout(self.proj(y))\n",
            "        return self.resid_dropout(self.proj(y))\n\n    def heads(self, x):\n"
            "        b, t, c = x.size()\n"
            "        return x.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)\n",
        ),
    ),
    "independent lines are reordered": (
        ("        tok_emb = self.parts.wte(idx)\n        pos_emb = self.parts.wpe(pos)\n",
         "        pos_emb = self.parts.wpe(pos)\n        tok_emb = self.parts.wte(idx)\n"),),
    "another form of the loop": (
        (
            "        for block in self.parts.h:\n            x = block(x)\n",
            "        for index in range(len(self.parts.h)):\n"
            "            x = self.parts.h[index](x)\n",
        ),
    ),
    "a while loop": (
        ("        for _ in range(self.accumulation):\n",
         "        left = self.accumulation\n        while left:\n            left -= 1\n"),),
    "logging outside the step": (
        (
            "        self.iteration = 0\n",
            "        self.iteration = 0\n"
            "        norms = [p.norm().item() for p in self.model.parameters()]\n"
            '        print(f"largest norm {max(norms):.3f}")\n',
        ),
    ),
    "a check of shapes": (
        ("        b, t = idx.size()\n",
         "        b, t = idx.size()\n        assert t <= self.config.block_size\n"),),
    "a scalar lives longer": (
        ("        torch.nn.utils.clip_grad", "        self.norm = torch.nn.utils.clip_grad"),),
}  # fmt: skip


def small(folder, edits=()):
    """The small step with these edits, counted."""
    text = (ROOT / "tests/worker/small_gpt.py").read_text()
    (folder / "small_gpt.py").write_text(rewritten(text, edits))
    return counted(folder, "small_gpt:train_step")


@pytest.fixture(scope="module")
def small_base(tmp_path_factory):
    """The small step as it is."""
    return small(tmp_path_factory.mktemp("small"))


def test_refactors_of_a_small_gpt_are_the_same(small_base, tmp_path):
    """Other lines that do the same work change no counter, and no verdict: all at once."""
    edits = [edit for edits in SMALL.values() for edit in edits]
    assert_same(small(tmp_path, edits), small_base)


@pytest.mark.parametrize(("edit", "cause"), [
    (("        x = x + self.mlp(self.ln_2(x))\n",
      "        x = x + self.mlp(self.ln_2(self.ln_2(x)))\n"),
     "+2 aten.native_layer_norm in Layer.forward (small_gpt.py:"),
    (("        x = x + self.mlp(self.ln_2(x))\n",
      "        x = (x + self.mlp(self.ln_2(x))).clone()\n"),
     "+2 aten.clone in Layer.forward (small_gpt.py:"),
    (("            self.scaler.scale(loss).backward()\n",
      "            self.scaler.scale(loss).backward()\n" "            self.last = loss.item()\n"),
     "sync_candidates_per_step 0 -> 2 (+2 calls) small_gpt.py:"),
    (
        (
            "        self.iteration += 1\n",
            "        self.iteration += 1\n"
            "        self.__dict__.setdefault('losses', []).append(torch.ones(()))\n",
        ),
        "leaked_bytes_per_step 0 B -> 4 B (+4 B) small_gpt.py:",
    ),
    (
        (
            "            loss = loss / self.accumulation\n",
            "            loss = loss / self.accumulation\n"
            "            self.__dict__.setdefault('all', []).append(loss)\n",
        ),
        "leaked_graph_nodes_per_step 0 -> 86 (+86 nodes) small_gpt.py:",
    ),
    (("            loss = loss / self.accumulation\n",
      "            loss = loss.double() / self.accumulation\n"),
     "+2 aten._to_copy[float64] in Training.step (small_gpt.py:"),
    (("        self.act = nn.GELU()\n", "        self.act = nn.SiLU()\n"),
     "+2 aten.silu for aten.gelu in Feed.forward (small_gpt.py:"),
    (("        self.act = nn.GELU()\n", "        self.act = nn.GELU('tanh')\n"),
     "+2 aten.gelu[tanh] for aten.gelu in Feed.forward (small_gpt.py:"),
    (("            loss = F.cross", "            self.logits = logits\n            loss = F.cross"),
     "allocated_bytes_between_steps "),
])  # fmt: skip
def test_what_is_no_refactor_is_named_by_its_cause(edit, cause, small_base, tmp_path):
    """The same way finds a LayerNorm, a clone, a sync, lists that grow, a loss in fp64 and
    logits that outlive their step, each by its line.
    """
    verdict = judge(Question(small(tmp_path, (edit,)), baseline(small_base)))
    assert verdict.status is Status.CHANGED
    assert f": CHANGED: {cause}" in headline(verdict)
    assert re.search(r"small_gpt\.py:\d+", headline(verdict))


def test_attention_that_is_no_longer_fused_is_named(small_base, tmp_path):
    """Products in its place, which is fewer FLOPs by the formulas: with the lost operator."""
    old = """        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
"""
    new = """        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        y = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
"""
    verdict = judge(Question(small(tmp_path, ((old, new),)), baseline(small_base)))
    lost = "aten._scaled_dot_product_flash_attention_for_cpu[causal]"
    assert f": CHANGED: FLOPs -1.1 %: +2 aten.bmm for {lost} small_gpt.py:5" in headline(verdict)
