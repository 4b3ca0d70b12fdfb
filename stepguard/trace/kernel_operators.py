"""Which operator a kernel runs: the compiler names its kernels after their operators."""

import re

# An operator's name, and the part of it that operators of both passes share: aten.addmm and
# aten::mm, aten._scaled_dot_product_efficient_attention and aten::_efficient_attention_backward.
_OPERATOR = re.compile(
    r"\w+(?:\.|::)(?P<name>(?:_scaled_dot_product(?=_)|add(?=mm)|badd(?=bmm))?(?P<common>\w+?)"
    r"(?:_forward|(?:_dense)?_backward(?:_data)?)?)(?:\[.*\])?(?:\.\w+)?"
)


def operator_in(place: str, operator: str) -> str:
    """Return the name of an ``operator``, without its pass, if the kernel with this ``place`` runs
    it; else "". The place is an operator, or a kernel of the compiler, which is named after its
    operators.
    """
    launches, called = _OPERATOR.fullmatch(place), _OPERATOR.fullmatch(operator)
    if not called:
        return ""
    same = called["common"] == launches["common"] if launches else f"_{called['name']}_" in place
    return called["common"] if same else ""
