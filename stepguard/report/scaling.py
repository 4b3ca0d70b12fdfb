"""The scaling efficiency of a run's cases of several GPUs. It informs: nothing judges it."""

from collections.abc import Iterator, Sequence

from stepguard.core.device import is_gpu
from stepguard.measure.suite import Result


def scaling_lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each case of several GPUs that the run also measured on one: how many tokens
    a second each rank trains, in percent of what the one rank trains.
    """
    for result in results:
        case = result.case
        if case.world_size == 1 or not is_gpu(case.device):  # ranks of a CPU share its cores
            continue
        on_one = case.as_dict() | {"world_size": 1}
        alone = next((one for one in results if one.case.as_dict() == on_one), None)
        if alone and (of_all := _tokens_per_s(result)) and (of_one := _tokens_per_s(alone)):
            pct = 100 * of_all / case.world_size / of_one
            text = f"{pct:.1f} % of {alone.case.id} (tokens/s per rank)"
            yield f"scaling efficiency of {case.id}: {text}"


def _tokens_per_s(result: Result) -> float | None:
    metrics = result.verdict.metrics
    return next((metric.new for metric in metrics if metric.metric == "tokens_per_s"), None)
