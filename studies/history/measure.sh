#!/usr/bin/env bash
# Makes sixty commits of a small step, measures each once and keeps the history; the step does 10 %
# more from commit 40 on. In an empty folder, with stepguard installed:
#
#     bash measure.sh && python -m stepguard history 'train_step[cpu]'
set -euo pipefail
git init -q .
printf '[pytest]\n' > pytest.ini
printf '__pycache__/\n.stepguard/\n' > .gitignore
mkdir -p perf_tests
cat > perf_tests/test_small.py <<'TEST'
from stepguard import Case
from stepguard.plugin import cases


@cases(Case("cpu", "small:train_step", device="cpu", launches=1))
def test_small(perf, case):
    perf(case)
TEST
for number in $(seq 0 59); do
    products=$((number < 40 ? 20 : 22))
    cat > small.py <<STEP
import torch

PRODUCTS = $products  # change $number


class Step:
    tokens_per_step = 64

    def __init__(self, device):
        torch.set_num_threads(1)
        self.a = torch.randn(192, 192, device=device)

    def step(self):
        x = self.a
        for _ in range(PRODUCTS):
            x = (x @ self.a).tanh()
        return x


def train_step(device):
    return Step(device)
STEP
    git add -A
    git -c user.name=a -c user.email=a@b commit -qm "change $number"
    # Without a recording each run says NO BASELINE: its evidence is kept all the same.
    python -m pytest perf_tests -q --perf-no-strict || true
    if [ $((number % 10)) = 9 ]; then python -m stepguard history; fi # 20 runs are kept
done
