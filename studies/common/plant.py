"""Plant a regression of known size into a copy of the tree, to prove that the gate can fail.

    python -m studies.common.plant COPY --step-ms 20            # every step 20 ms slower
    python -m studies.common.plant COPY --step-ms 20 --every 10 # every tenth step 200 ms slower

The slowdown is real work: in-place additions over a buffer that does not fit any cache, so many of
them, the last over a part of it, that CUDA events, timed when the workload is built, say the wanted
time. Only the copy's model/workloads.py is changed: its train_step is wrapped.
"""

import argparse
from pathlib import Path

_PLANTED = """

# Planted by studies.common.plant: {step_ms} ms a step on average, on every step number {every}.
def _planted(factory):
    import functools

    @functools.wraps(factory)
    def build(**params):
        workload = factory(**params)
        buffer = torch.zeros(1 << 28, device=params["device"])  # 1 GiB: read and written by add_

        def burn(passes, rest=0.0):
            for _ in range(passes):
                buffer.add_(1.0)
            if rest:
                buffer[: int(rest * buffer.numel())].add_(1.0)

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        burn(50)
        first.record()
        burn(200)
        last.record()
        torch.cuda.synchronize()
        pass_ms = first.elapsed_time(last) / 200
        whole = {step_ms} * {every} / pass_ms
        passes = int(whole)
        torch.cuda.synchronize()
        first.record()
        for _ in range(20):
            burn(passes, whole - passes)
        last.record()
        torch.cuda.synchronize()
        planted_ms = first.elapsed_time(last) / 20
        print(f"planted {{planted_ms:.4f}} ms every {every} steps", flush=True)
        step, done = workload.step, 0

        def slower():
            nonlocal done
            loss = step()
            done += 1
            if done % {every} == 0:
                burn(passes, whole - passes)
            return loss

        workload.step = slower
        return workload

    return build


train_step = _planted(train_step)
"""


def main() -> None:
    """Append the wrapper to the copy's workloads."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("copy", type=Path, help="root of a copy of this repository")
    parser.add_argument("--step-ms", type=float, required=True, help="average slowdown of a step")
    parser.add_argument("--every", type=int, default=1, help="only every Nth step (%(default)s)")
    options = parser.parse_args()
    target = options.copy / "model" / "workloads.py"
    if options.copy.resolve() == Path(__file__).resolve().parents[2]:
        parser.error("this is the tree itself: plant into a copy")
    if "_planted" in target.read_text():
        parser.error(f"{target} has a plant already")
    sizes = {"step_ms": options.step_ms, "every": options.every}
    with target.open("a") as file:
        file.write(_PLANTED.format(**sizes))


if __name__ == "__main__":
    main()
