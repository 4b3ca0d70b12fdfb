"""Tell which two profiles cannot be explained by each other, and why."""

from collections import Counter

from stepguard.explanation import Refusal, Refused
from stepguard.profile import Profile, mean

LOST_AT_MOST = 0.05  # of the launches
COMMON_AT_LEAST = 0.3  # of the time of kernels, by class: below it these are two different programs


def refusals(before: Profile, after: Profile) -> tuple[Refused, ...]:
    """Return why two profiles cannot be compared, nothing where they can."""
    both = before, after
    found = []
    if before.gpu and after.gpu and before.gpu != after.gpu:
        found.append(Refused(Refusal.GPU, before.gpu, after.gpu))
    if before.ranks != after.ranks:
        found.append(Refused(Refusal.RANKS, str(before.ranks), str(after.ranks)))
    if any(one.lost_share > LOST_AT_MOST for one in both):
        found.append(Refused(Refusal.LOST, *(f"{100 * one.lost_share:.1f} %" for one in both)))
    if not before.steps or not after.steps:
        found.append(Refused(Refusal.NO_STEPS, str(before.steps), str(after.steps)))
    elif (common := _common(before, after)) < COMMON_AT_LEAST:
        found.append(Refused(Refusal.FOREIGN, f"{100 * common:.0f} %", ""))
    return tuple(found)


def _common(before: Profile, after: Profile) -> float:
    """Return the share of the kernels' time that is of the same classes on both sides."""
    one, other = _by_class(before), _by_class(after)
    most = max(one.total(), other.total())
    return (one & other).total() / most if most else 1.0


def _by_class(profile: Profile) -> "Counter[str]":
    found: Counter[str] = Counter()
    for row in profile.kernels:
        found[row.kind] += round(1e3 * mean(row.us))  # ns: a Counter's "&" wants whole numbers
    return found
