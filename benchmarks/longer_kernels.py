"""One kernel that takes longer: GELU, an attention, or a product of the step's first layer.

Each is a Triton kernel that the compiler makes. The head's kernel does more multiply-adds on each
element, and reads and writes as much as the base's. The usual step runs attention by cuDNN, and
products by cuBLAS. So for an attention or a product the base has the Triton kernel, too, without
the added multiply-adds. It may be in several layers. If only some of them get longer, the head has
both kernels. Without the compiler, as in the steps that count FLOPs, attention and product are the
usual ones.
"""

from benchmarks.changes import ATTEND, GELU, IMPORTED, LAYERS, SLOWER, in_layers, where_planted
from benchmarks.shared import Change, Edit

_COMPILED = 'getattr(self, "planted", False) and torch.compiler.is_compiling()'


def _gelu(multiply_adds: int) -> tuple[Edit, ...]:
    """Return the edits that make the first layer's GELU do so many more multiply-adds on each
    element. The backward pass stays as it is.
    """
    new = (
        '        hidden = F.gelu(self.c_fc(x), approximate="tanh")\n'
        + where_planted(
            "            more = hidden.detach()\n"
            f"            for _ in range({multiply_adds}):\n"
            "                more = more * 0.999 + 0.001\n"
            "            hidden = hidden + 1e-9 * more\n"
        )
        + "        return self.c_proj(hidden)\n"
    )
    return in_layers(1, (GELU, new))


def _in_each(multiply_adds: tuple[int, ...], *edits: tuple[str, str]) -> tuple[Edit, ...]:
    """Return edits of gpt.py for the first layers, as many as there are numbers. Attention and MLP
    of each know their layer's number as ``more``.
    """
    mark = (
        f"        for block, more in zip(self.h, {multiply_adds}):\n"
        "            block.mlp.more = block.attn.more = more\n"
    )
    return in_layers(len(multiply_adds), (LAYERS, LAYERS + mark), *edits)


_WHOLE = "            mixed = flex_attention(query, key, value, score_mod=score)\n"
# A multiply-add in the attention of one layer is 0.19 % of a step, and in that of half the batch
# 0.08 % (an H100, 2026-11-26). So 11 of 16 sequences make 0.1 %.
_PART = """\
            size = 11 * len(query) // 16
            parts = (size, len(query) - size)
            own, usual = zip(*(part.split(parts) for part in (query, key, value)))
            usual = F.scaled_dot_product_attention(*usual, is_causal=True)
            mixed = torch.cat((flex_attention(*own, score_mod=score), usual))
"""


def _attention(*multiply_adds: int, mixed: str = _WHOLE) -> tuple[Edit, ...]:
    """Return the edits that make the compiler generate the attention of the first layers, in each
    with so many more multiply-adds on each score, in both passes. ``mixed`` are the lines that
    call it.
    """
    new = (
        f"        if {_COMPILED}:\n"
        "            more = self.more\n\n"
        "            def score(of: Tensor, *place: Tensor) -> Tensor:\n"
        "                for _ in range(more):\n"
        "                    of = of * 0.999 + 0.001\n"
        '                return torch.where(place[2] >= place[3], of, float("-inf"))\n\n'
        f"{mixed}        else:\n" + ATTEND.replace("        mixed", "            mixed")
    )
    flex = (IMPORTED, "from torch.nn.attention.flex_attention import flex_attention\n" + IMPORTED)
    return _in_each(multiply_adds, flex, (ATTEND, new))


# The compiler makes only this product from its template, with one tile size, and tries no others.
# The multiply-adds are in the operator, so the compiler fuses them with the product: they run
# before the result is stored. "addmm" is in the kernel's name, so stepguard takes it for a product.
_OPERATOR = """
_ONE_TILE = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "test_configs.autotune_choice_desc_regex": "BLOCK_K=64, BLOCK_M=128, BLOCK_N=128"
    ".*num_stages=3, num_warps=4",
}
_SCHEMA = "(Tensor bias, Tensor x, Tensor weight, int multiply_adds) -> Tensor"


def _longer(product, multiply_adds, add=torch.add, mul=torch.mul):
    more = product
    for _ in range(multiply_adds):
        more = add(mul(more, 0.999), 0.001)
    return add(product, mul(more, 1e-9))


@torch.library.custom_op("planted::addmm", mutates_args=(), schema=_SCHEMA)
def _addmm(bias, x, weight, multiply_adds):
    return _longer(torch.addmm(bias, x, weight), multiply_adds)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:3])


def _gradients(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad.sum(0), grad @ weight.t(), x.t() @ grad, None


_addmm.register_fake(lambda bias, x, weight, _: x.new_empty(x.shape[0], weight.shape[1]))
_addmm.register_autograd(_gradients, setup_context=_keep)


@register_lowering(torch.ops.planted.addmm.default, type_promotion_kind=None)
def _by_template(bias, x, weight, multiply_adds):
    aten = torch.ops.aten
    with inductor_config.patch(_ONE_TILE):
        product = lowerings[aten.addmm.default](bias, x, weight)
    add, mul = lowerings[aten.add.Tensor], lowerings[aten.mul.Tensor]
    product = _longer(product, multiply_adds, add, mul)
    product.realize()
    return product
"""
_METHOD = f"""
    def _product(self, x: Tensor) -> Tensor:
        if not ({_COMPILED}):
            return self.c_fc(x)
        kind = torch.bfloat16 if x.is_cuda else x.dtype
        bias, weight = self.c_fc.bias.to(kind), self.c_fc.weight.to(kind)
        product = _addmm(bias, x.flatten(0, 1).to(kind), weight.t(), self.more)
        return product.unflatten(0, x.shape[:2])
"""
_INDUCTOR = """\
from torch._inductor import config as inductor_config
from torch._inductor.lowering import lowerings, register_lowering
"""
_MLP, _BLOCK = "\n\nclass MLP(nn.Module):\n", "\n\nclass Block(nn.Module):\n"


def _product(*multiply_adds: int) -> tuple[Edit, ...]:
    """Return the edits that make the compiler generate the first product of the first layers' MLPs
    from its template, in each with so many more multiply-adds on each element of the result. The
    backward pass stays as it is.
    """
    return _in_each(
        multiply_adds,
        (IMPORTED, _INDUCTOR + IMPORTED),
        (_MLP, _OPERATOR + _MLP),
        (_BLOCK, _METHOD + _BLOCK),
        (GELU, GELU.replace("self.c_fc(x)", "self._product(x)")),
    )


AS_IT_IS = "as it is"
OWN_ATTENTION, OWN_PRODUCT = _attention(0), _product(0)
PART_ATTENTIONS, OWN_PRODUCTS = _attention(0, 0, mixed=_PART), _product(0, 0, 0)
# What the base of a longer kernel is, and the edits that make it.
BASES: dict[str, tuple[Edit, ...]] = {
    AS_IT_IS: (),
    "own attention": OWN_ATTENTION,
    "own product": OWN_PRODUCT,
    "own part attention in 2 layers": PART_ATTENTIONS,
    "own product in 3 layers": OWN_PRODUCTS,
}
# About 0.1, 0.2 and 0.3 % of a step: 30 multiply-adds were 0.171 %, and 70 were 0.400 % (two H200s,
# 2026-11-26).
LONGER_GELU: dict[str, Change] = {
    f"{count} multiply-adds in one gelu": Change(_gelu(count), SLOWER, "gelu")
    for count in (18, 35, 52)
}
# About 0.15 and 0.3 % of a step: 2 multiply-adds were 0.297 %, of which 0.04 % forward (an H100,
# 2026-11-26). These kernels, and no others of the step, are made from a template, so their names
# begin with triton_tem.
LONGER_ATTENTION: dict[str, Change] = {
    f"{count} multiply-adds in own attention": Change(
        _attention(count), SLOWER, "triton_tem", base_edits=OWN_ATTENTION, needs_gpu=True
    )
    for count in (1, 2)
}
# About 0.11, 0.22 and 0.33 % of a step: 35 multiply-adds were 0.219 % (an H100, 2026-11-26).
LONGER_PRODUCT: dict[str, Change] = {
    f"{count} multiply-adds in own product": Change(
        _product(count), SLOWER, "triton_tem", base_edits=OWN_PRODUCT, needs_gpu=True
    )
    for count in (18, 35, 52)
}
# The other layers keep the base's kernel, so the head has both. About 0.1 and 0.3 % of a step. 52
# multiply-adds in one product are 0.63 %.
LONGER_IN_PART: dict[str, Change] = {
    "1 multiply-adds in own part attention, 1 of 2 layers": Change(
        _attention(1, 0, mixed=_PART),
        SLOWER,
        "triton_tem",
        base_edits=PART_ATTENTIONS,
        needs_gpu=True,
    ),
    "25 multiply-adds in own product, 2 of 3 layers": Change(
        _product(25, 25, 0), SLOWER, "triton_tem", base_edits=OWN_PRODUCTS, needs_gpu=True
    ),
}
LONGER: dict[str, Change] = LONGER_GELU | LONGER_ATTENTION | LONGER_PRODUCT | LONGER_IN_PART
