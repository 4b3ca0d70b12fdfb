"""What makes a step slower by means that no kernel shows, or not in every step."""

from studies.planted_causes.faults import WORKLOADS
from studies.power.change import RED, Change

_IMPORT = "from typing import Any\n"
_STEP = "        self.grad_norm = None  # the last one's would count among this step's memory\n"
_COUNTED = "        self._ran = getattr(self, '_ran', 0) + 1\n"
_MADE = "        self._grad_clip = grad_clip\n"


def _before_each_step(lines: str) -> Change:
    """Return a change that runs these lines first in each step, which is numbered ``_ran``."""
    imported = (WORKLOADS, _IMPORT, "import threading\nimport time\n" + _IMPORT)
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

HIDDEN: dict[str, Change] = {
    "a sleep in each step": _before_each_step("        time.sleep(0.2)\n"),
    "a sleep in every 16th step": _before_each_step(
        "        time.sleep(0.6 if self._ran % 16 == 0 else 0)\n"
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
