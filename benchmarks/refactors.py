"""Refactors of the model, ten kinds: what the step computes, and how, stays as it is. And a change
of files that no step opens.
"""

from benchmarks.changes import SAME
from benchmarks.shared import GPT, WORKLOADS, Change

_GELU = '        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))\n'
_ORDER = "        for block in self.h:\n            x = block(x)\n"
_POSITIONS = (
    "        positions = torch.arange(idx.shape[1], device=idx.device)\n"
    "        x = self.wte(idx) + self.wpe(positions)\n"
)
_LOSS = (
    "        if targets is None:\n"
    "            return logits\n"
    "        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
)
_TOTAL = (
    "        total = self._micro_step(0)\n"
    "        for index in range(1, len(self._micro_names)):\n"
    "            total = total + self._micro_step(index)\n"
)
_LINEAR = (
    "        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, device=device)\n"
    "        self.c_proj = nn.Linear(config.n_embd, config.n_embd, device=device)\n"
)


def _of(path: str, old: str, new: str) -> Change:
    return Change(((path, old, new),), SAME)


REFACTORS: dict[str, Change] = {
    "a helper extracted": Change(
        (
            (GPT, _GELU, "        return self.c_proj(self._hidden(x))\n"),
            (
                GPT,
                "\n\nclass Block(nn.Module):\n",
                "\n    def _hidden(self, x: Tensor) -> Tensor:\n"
                '        return F.gelu(self.c_fc(x), approximate="tanh")\n'
                "\n\nclass Block(nn.Module):\n",
            ),
        ),
        SAME,
    ),
    "an expression becomes a variable": _of(
        GPT,
        _GELU,
        '        hidden: Tensor = F.gelu(self.c_fc(x), approximate="tanh")  # as GPT-2 does\n'
        "        return self.c_proj(hidden)\n",
    ),
    "a local variable renamed": _of(
        GPT,
        "        x = x + self.attn(self.ln_1(x))\n        return x + self.mlp(self.ln_2(x))\n",
        "        stream = x + self.attn(self.ln_1(x))\n"
        "        return stream + self.mlp(self.ln_2(stream))\n",
    ),
    "a loop that counts": _of(
        GPT,
        _ORDER,
        "        for index in range(len(self.h)):\n            x = self.h[index](x)\n",
    ),
    "an expression inlined": _of(
        GPT,
        _POSITIONS,
        "        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))\n",
    ),
    "the other branch first": _of(
        GPT,
        _LOSS,
        "        if targets is not None:\n"
        "            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
        "        return logits\n",
    ),
    "a branch that is never taken": _of(
        GPT,
        _GELU,
        "        if x.dim() < 2:\n            return self.c_proj(x)\n" + _GELU,
    ),
    "a loop in place of the first call": _of(
        WORKLOADS,
        _TOTAL,
        "        losses = [self._micro_step(index) for index in range(len(self._micro_names))]\n"
        "        total = losses[0]\n"
        "        for loss in losses[1:]:\n"
        "            total = total + loss\n",
    ),
    "sizes in a dataclass": Change(
        (
            (
                GPT,
                "\n\nclass CausalSelfAttention(nn.Module):\n",
                "\n\n@dataclass(frozen=True)\n"
                "class _Widths:\n"
                "    into: int\n"
                "    out: int\n"
                "\n\nclass CausalSelfAttention(nn.Module):\n",
            ),
            (GPT, "import math\n", "import math\nfrom dataclasses import dataclass\n"),
            (
                GPT,
                _LINEAR,
                "        widths = _Widths(config.n_embd, 3 * config.n_embd)\n"
                "        self.c_attn = nn.Linear(widths.into, widths.out, device=device)\n"
                "        self.c_proj = nn.Linear(widths.into, widths.into, device=device)\n",
            ),
        ),
        SAME,
    ),
    "a function in another file": Change(
        (
            (GPT, _GELU, "        return self.c_proj(gelu(self.c_fc(x)))\n"),
            (
                GPT,
                "from model.config import GPTConfig\n",
                "from model.config import GPTConfig, gelu\n",
            ),
            (
                "model/config.py",
                "from dataclasses import dataclass, fields\n",
                "from dataclasses import dataclass, fields\n\n"
                "import torch.nn.functional as F\nfrom torch import Tensor\n\n\n"
                "def gelu(x: Tensor) -> Tensor:\n"
                '    return F.gelu(x, approximate="tanh")\n',
            ),
        ),
        SAME,
    ),
}
