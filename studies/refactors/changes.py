"""Changes of a model.py in nanoGPT's manner, as edits of its text.

Twenty are refactors, five regressions.

A change is a sequence of (pattern, replacement, how often the pattern has to match); a pattern that
matches another number of times raises, so that no change is measured which was not made.
"""

import ast
import re
from collections.abc import Callable

Edit = tuple[str, str, int]
Change = Callable[[str], str]


def edits(*wanted: Edit) -> Change:
    """Return a change that substitutes each pattern, where ``^`` and ``$`` are a line's."""

    def change(text: str) -> str:
        for pattern, replacement, times in wanted:
            text, made = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            if made != times:
                raise ValueError(f"{pattern!r} is there {made} times, expected were {times}")
        return text

    return change


def unparsed(text: str) -> str:
    """Return the source as Python writes it, without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        named = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if named and ast.get_docstring(node) is not None and len(node.body) > 1:
            del node.body[0]
    return ast.unparse(tree) + "\n"


REFACTORS: dict[str, Change] = {
    "a local variable is renamed": edits((r"\btok_emb\b", "tokens", 2)),
    "a method is renamed": edits((r"\b_init_weights\b", "_reset", 2)),
    "a class is renamed": edits((r"\bMLP\b", "FeedForward", 2)),
    "comments and docstrings go, lines are laid out anew": unparsed,
    "an expression is inlined": edits(
        (r"^ +pos_emb = .*\n", "", 1),
        (r"tok_emb \+ pos_emb", "tok_emb + self.transformer.wpe(pos)", 1),
    ),
    "an expression becomes a variable": edits(
        (r"^( +)x = x \+ self\.mlp\((.*)\)$", r"\1normed = \2\n\1x = x + self.mlp(normed)", 1)
    ),
    "assignments become one expression": edits(
        (r"^ +x = self\.c_fc\(x\)\n", "", 1),
        (r"^ +x = self\.gelu\(x\)\n", "", 1),
        (r"^( +)x = self\.c_proj\(x\)$", r"\1x = self.c_proj(self.gelu(self.c_fc(x)))", 1),
    ),
    "a helper is extracted": edits(
        (r"^( +)([kqv]) = \2\.view\(.*$", r"\1\2 = self.heads(\2)", 3),
        (
            r"^class MLP\b",
            "    def heads(self, x):\n        b, t, c = x.size()\n"
            "        return x.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)\n\n"
            "class MLP",
            1,
        ),
    ),
    "a function moves to the top of the module": edits(
        (r"F\.cross_entropy\(.*", "loss_of(logits, targets)", 1),
        (
            r"^class LayerNorm\b",
            "def loss_of(logits, targets):\n    flat = logits.view(-1, logits.size(-1))\n"
            "    return F.cross_entropy(flat, targets.view(-1), ignore_index=-1)\n\n"
            "class LayerNorm",
            1,
        ),
    ),
    "summands change places": edits(
        (r"^( +tok_emb = .*\n)( +pos_emb = .*\n)", r"\2\1", 1),
        (r"tok_emb \+ pos_emb", "pos_emb + tok_emb", 1),
    ),
    "independent lines of the step are reordered": edits(
        (r"^( +k = .*\n)( +q = .*\n)", r"\2\1", 1)
    ),
    "independent lines of the constructor are reordered": edits(
        (r"^( +wte = .*\n)( +wpe = .*\n)", r"\2\1", 1)
    ),
    "a loop counts": edits(
        (
            r"^( +)for block in self\.transformer\.h:\n +x = .*$",
            r"\1for at in range(len(self.transformer.h)):\n\1    x = self.transformer.h[at](x)",
            1,
        )
    ),
    "a dataclass is frozen": edits((r"^@dataclass$", "@dataclass(frozen=True, slots=True)", 1)),
    "type hints": edits(
        (
            r"def forward\(self, x\):",
            "def forward(self, x: torch.Tensor) -> torch.Tensor:",
            3,
        )
    ),
    "f-strings and logging in place of print": edits(
        (r"^import math$", "import logging\nimport math", 1),
        (
            r"print\(\"number .*\)$",
            'logging.getLogger(__name__).info(f"{self.get_num_params() / 1e6:.2f}M parameters")',
            1,
        ),
    ),
    "logging where the model is made": edits(
        (
            r"^( +)(self\.apply\(.*)$",
            r"\1\2\n\1print(max(p.norm().item() for p in self.parameters()))",
            1,
        )
    ),
    "a branch returns early": edits(
        (
            r"^( +)if targets is not None:\n.*\n +(logits = .*\n) +(loss = .*\n)"
            r"( +)else:\n.*\n +logits = (.*?\]), :\]\).*\n.*\n",
            r"\1if targets is None:\n\1    return \5, :]), None\n\1\2\1\3",
            1,
        )
    ),
    "a constant has a name": edits(
        (r"self\.bias, 1e-5\)", "self.bias, EPSILON)", 1),
        (r"^class LayerNorm\b", "EPSILON = 1e-5\n\nclass LayerNorm", 1),
    ),
    "positional arguments are named": edits(
        (
            r"F\.layer_norm\(input, self\.weight\.shape, self\.weight, self\.bias, ",
            "F.layer_norm(input, normalized_shape=self.weight.shape, weight=self.weight, "
            "bias=self.bias, eps=",
            1,
        )
    ),
}

REGRESSIONS: dict[str, tuple[Change, str]] = {  # and what the first line has to name
    "a clone in each block": (
        edits((r"^( +)x = x \+ self\.mlp\(.*$", r"\g<0>.clone()", 1)),
        "aten.clone in Block.forward (model.py:",
    ),
    "the loss is read in each micro-step": (
        edits((r"^( +)loss = F\.cross_entropy\(.*$", r"\g<0>\n\1self.last = loss.item()", 1)),
        "sync_candidates_per_step 0 -> 2 (+2 calls) model.py:",
    ),
    "a product in fp32": (
        edits(
            (
                r"^( +)x = self\.c_fc\(x\)$",
                r"\1with torch.autocast(x.device.type, enabled=False):\n"
                r"\1    x = self.c_fc(x.float())",
                1,
            )
        ),
        "-8 aten._to_copy",  # what is no longer made bf16
    ),
    "a list grows": (
        edits(
            (
                r"^( +)loss = F\.cross_entropy\(.*$",
                r"\g<0>\n\1self.__dict__.setdefault('losses', []).append(loss)",
                1,
            )
        ),
        "leaked_bytes_per_step 0 B -> 8 B (+8 B) model.py:",
    ),
    "attention is no longer fused": (
        edits((r"^( +)self\.flash = .*$", r"\1self.flash = False", 1)),
        "-4 aten._scaled_dot_product_flash_attention_for_cpu in CausalSelfAttention.forward",
    ),
}
