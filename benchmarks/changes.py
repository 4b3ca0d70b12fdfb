"""Slowdowns of the training step by size, honest optimizations, and slowdowns that no kernel shows.

A change is a list of replacements in files of ``model/``. Its base may have replacements, too.
"""

from dataclasses import replace

from benchmarks.shared import GPT, WORKLOADS, Change, Edit

SLOWER, FASTER, SAME = "SLOWER", "FASTER", "same"
EITHER = "SLOWER or same"  # a size between the margins, where both answers are right
RED = "red"  # by whatever finding, since no kernel shows it
_GEMM = "nvjet|gemm|cutlass|xmma"
IMPORTED = "from model.config import GPTConfig\n"
LAYERS = '        self.ln_f = nn.LayerNorm(config.n_embd, device="meta")\n'
_PROJECT = "        return self.c_proj(mixed.transpose(1, 2).reshape(batch, seq, width))\n"
GELU = '        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))\n'
ATTEND = "        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)\n"
_PRODUCT = "            for part in self.c_attn(x).split(width, dim=2)\n"
_THREE = "            for part in self._parts(x, width)\n"
_PARTS = """
    def _parts(self, x: Tensor, width: int) -> tuple[Tensor, ...]:
        if not getattr(self, "planted", False):
            return self.c_attn(x).split(width, dim=2)
        weights, biases = self.c_attn.weight.chunk(3), self.c_attn.bias.chunk(3)
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases))

"""
_MLP = '\n\nclass MLP(nn.Module):\n    """Two linear'
_CLIP = "self._grad_clip, foreach=True\n"
_LOSS = "        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
_CALL = "            return self._network(inputs, targets)\n"
_ZEROED = "            self.optimizer.zero_grad("
_SETTLED = "        self._network = settings.compiled(self._fast or self.model)\n"


def in_layers(layers: int, *edits: tuple[str, str]) -> tuple[Edit, ...]:
    """Return edits of gpt.py that the first ``layers`` blocks are marked for."""
    mark = (
        f"        for block in self.h[:{layers}]:\n"
        "            block.mlp.planted = block.attn.planted = True\n"
    )
    return tuple((GPT, old, new) for old, new in ((LAYERS, LAYERS + mark), *edits))


def where_planted(lines: str) -> str:
    return '        if getattr(self, "planted", False):\n' + lines


def gelu_twice(layers: int) -> Change:
    """Return a change of a Triton kernel: the first ``layers`` apply GELU twice."""
    new = (
        '        hidden = F.gelu(self.c_fc(x), approximate="tanh")\n'
        + where_planted('            hidden = F.gelu(hidden, approximate="tanh")\n')
        + "        return self.c_proj(hidden)\n"
    )
    return Change(in_layers(layers, (GELU, new)), SLOWER, "gelu")


def clones(layers: int) -> Change:
    """Return copies within the graph: the first ``layers`` clone query, key and value."""
    new = where_planted(
        "            query, key, value = query.clone(), key.clone(), value.clone()\n"
    )
    return Change(in_layers(layers, (ATTEND, new + ATTEND)), SLOWER, "clone|copy")


def slow_attention(layers: int) -> Change:
    """Return another attention kernel, PyTorch's memory-efficient one, in the first ``layers``."""
    new = (
        where_planted(
            "            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):\n"
            "                mixed = F.scaled_dot_product_attention(\n"
            "                    query, key, value, is_causal=True\n"
            "                )\n"
        )
        + "        else:\n"
        + ATTEND.replace("        mixed", "            mixed")
    )
    named = "attention|fmha|flash|sdp"
    return Change(in_layers(layers, (ATTEND, new)), SLOWER, named, needs_gpu=True)


def three_products(layers: int) -> Change:
    """Return other GEMM shapes with equal FLOPs: query, key and value in a product each."""
    edits = ((_PRODUCT, _THREE), (_MLP, _PARTS.rstrip("\n") + "\n" + _MLP))
    return Change(in_layers(layers, *edits), SLOWER, _GEMM)


def projection_in_parts(layers: int) -> Change:
    """Return slower GEMM shapes with equal FLOPs: the first ``layers`` project in six products, and
    add them up.
    """
    new = where_planted(
        "            parts = mixed.transpose(1, 2).reshape(batch, seq, width).chunk(6, dim=2)\n"
        "            products = map(F.linear, parts, self.c_proj.weight.chunk(6, dim=1))\n"
        "            return sum(products, self.c_proj.bias)\n"
    )
    return Change(in_layers(layers, (_PROJECT, new + _PROJECT)), SLOWER, _GEMM)


def optimizer_passes(count: int) -> Change:
    """Return more work of the optimizer: all parameters are multiplied by 1, ``count`` times."""
    old = "            self._scaler.step(self.optimizer)\n"
    new = (
        f"            for _ in range({count}):\n"
        "                torch._foreach_mul_([p.data for p in self.model.parameters()], 1.0)\n"
    )
    return Change(((WORKLOADS, old, new + old),), SLOWER, "multi_tensor_apply|foreach_mul")


def parameter_copies(count: int) -> Change:
    """Return copies outside the graph: all parameters are cloned ``count`` times before the
    optimizer's step. A clone of a contiguous tensor is a copy from device to device.
    """
    old = "            self._scaler.step(self.optimizer)\n"
    new = (
        f"            for _ in range({count}):\n"
        "                _ = [p.detach().clone() for p in self.model.parameters()]\n"
    )
    return Change(((WORKLOADS, old, new + old),), SLOWER, "clone|copy|Memcpy")


def _undone(change: Change) -> Change:
    return replace(change, edits=(), base_edits=change.edits, expected=FASTER, named="")


FOREACH = Change(
    ((WORKLOADS, "betas=(0.9, 0.95), fused=True)", "betas=(0.9, 0.95), foreach=True)"),),
    SLOWER,
    "multi_tensor_apply|optimizer",
)
LOGITS_TOO = Change(
    (
        (GPT, _LOSS, _LOSS.replace("return F", "return logits, F")),
        (WORKLOADS, _CALL, _CALL.replace("targets)", "targets)[1]")),
    ),
    SLOWER,
)
_BF16 = "        self.model.bfloat16()\n" + _SETTLED
BF16_WEIGHTS = Change(((WORKLOADS, _SETTLED, _BF16),), FASTER)
FLASH = Change(
    ((GPT, '"default": None,  #', '"default": SDPBackend.FLASH_ATTENTION,  #'),),
    SLOWER,  # where PyTorch prefers cuDNN, as on H100 and H200
    "flash",
    needs_gpu=True,
)
CUDNN_OFF = Change(  # of all settings the one that no source of the step names
    ((GPT, IMPORTED, IMPORTED + "\ntorch.backends.cuda.enable_cudnn_sdp(False)\n"),),
    SLOWER,
    "cudnn|flash",
    needs_gpu=True,
)
_ZERO = (f"{_ZEROED}set_to_none=True)", f"{_ZEROED}set_to_none=False)")
KEPT_GRADIENTS = Change(((WORKLOADS, *_ZERO),), SLOWER)
SEPARATE_NORMS = Change(((WORKLOADS, _CLIP, _CLIP.replace("True", "False")),), SLOWER)
_MICRO_LOSS = "            loss = self._forward(*self._loader.next()) / count\n"
_NORM = "        x = self.ln_f("
SYNC = Change(
    ((WORKLOADS, _MICRO_LOSS, f"{_MICRO_LOSS}            self.last_loss = loss.item()\n"),), SLOWER
)
PAGEABLE = Change(
    (("model/data/loader.py", 'pin_memory=self._device.type == "cuda"', "pin_memory=False"),),
    SLOWER,
)
GRAPH_BREAK = Change(((GPT, _NORM, "        torch._dynamo.graph_break()\n" + _NORM),), SLOWER)

# By worth: one of each kind at about one percent first, then other sizes.
SLOWDOWNS: dict[str, Change] = {
    "gelu twice in 3 layers": gelu_twice(3),
    "attention in 1 layer": slow_attention(1),
    "clones in 8 layers": clones(8),
    "optimizer of 10 more passes": optimizer_passes(10),
    "three products in 12 layers": three_products(12),
    "projection in 6 parts in 3 layers": projection_in_parts(3),
    "gelu twice in 1 layer": replace(gelu_twice(1), expected=EITHER),  # 0.3 %
    "gelu twice in 6 layers": gelu_twice(6),
    "flash attention by name": FLASH,
    "cudnn attention switched off": CUDNN_OFF,
    "optimizer of 5 more passes": optimizer_passes(5),
    "clones in 4 layers": clones(4),
    "projection in 6 parts in 1 layer": replace(projection_in_parts(1), expected=EITHER),  # 0.4 %
    "attention in 4 layers": slow_attention(4),
    "optimizer of 20 more passes": optimizer_passes(20),
    "gelu twice in 12 layers": gelu_twice(12),
    "clones in 12 layers": clones(12),
    "foreach optimizer": FOREACH,
    "projection in 6 parts in 9 layers": projection_in_parts(9),
    "optimizer of 40 more passes": optimizer_passes(40),
    "parameters cloned 30 times": parameter_copies(30),
}
OPTIMIZATIONS: dict[str, Change] = {
    "bf16 weights": BF16_WEIGHTS,
    "loss alone": _undone(LOGITS_TOO),
    "fused optimizer": _undone(FOREACH),
    "one projection": _undone(projection_in_parts(4)),
    "no clones": _undone(clones(12)),
    "default attention": replace(_undone(slow_attention(2)), needs_gpu=True),
    "one gelu": _undone(gelu_twice(4)),
    "pinned input": _undone(PAGEABLE),
    "no sync": _undone(SYNC),
    "no graph break": _undone(GRAPH_BREAK),
    "norms at once": _undone(SEPARATE_NORMS),
    "gradients set to None": _undone(KEPT_GRADIENTS),
}

_TYPING = "from typing import TYPE_CHECKING, Any\n"
_STEP = "        self.grad_norm = None  # the last one's would count among this step's memory\n"
_COUNTED = "        self._ran = getattr(self, '_ran', 0) + 1\n"
_MADE = "        self._grad_clip = grad_clip\n"


def _before_each_step(lines: str) -> Change:
    """Return a change that runs these lines first in each step, which is numbered ``_ran``."""
    imported = (WORKLOADS, _TYPING, "import threading\nimport time\n" + _TYPING)
    return Change((imported, (WORKLOADS, _STEP, _COUNTED + lines + _STEP)), RED)


# One call of C holds the interpreter for a quarter of a second, in each second.
_BUSY = (
    "        if self._ran == 1:\n"
    "            hold = lambda: [(sum(range(10**7)), time.sleep(0.75)) for _ in iter(int, 1)]\n"
    "            threading.Thread(target=hold, daemon=True).start()\n"
)
_ASIDE = (
    "        with torch.cuda.stream(self._aside):\n            torch.mm(self._wide, self._wide)\n"
)
_ASIDE_MADE = (
    "        self._aside = torch.cuda.Stream()\n"
    "        self._wide = torch.ones(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
)

_CYCLES = (
    "        for _ in range(4096):\n"
    "            left: dict[str, object] = {'names': []}\n"
    "            left['self'] = left\n"
)
_TOTAL = (
    "        last = [*self.model.parameters()][-1].sum()\n"
    "        self._total = getattr(self, '_total', 0.0) + last\n"
)

HIDDEN: dict[str, Change] = {
    "garbage of 4,096 cycles in each step": replace(
        _before_each_step(_CYCLES), named="garbage_objects_per_step"
    ),
    "a running total that is not detached": replace(
        _before_each_step(_TOTAL), named="leaked_graph_nodes_per_step"
    ),
    "a sleep in each step": _before_each_step("        time.sleep(0.2)\n"),
    "a sleep in every 16th step": _before_each_step(
        "        time.sleep(0.6 if self._ran % 16 == 0 else 0)\n"
    ),
    "a sleep in every 11th step": _before_each_step(
        "        time.sleep(0.35 if self._ran % 11 == 0 else 0)\n"
    ),
    "a sleep from step 30 on": _before_each_step(
        "        time.sleep(0.2 if self._ran > 30 else 0)\n"
    ),
    "a thread that holds the interpreter": _before_each_step(_BUSY),
    "a forward pass more in every 8th step": _before_each_step(
        "        if self._ran % 8 == 0:\n            self._forward(*self._loader.next())\n"
    ),
    "a product in another stream": Change(
        ((WORKLOADS, _MADE, _ASIDE_MADE + _MADE), (WORKLOADS, _STEP, _ASIDE + _STEP)),
        RED,
        needs_gpu=True,
    ),
}
