"""Both parts of the counting pass, in this process."""

from stepguard.worker.count.counting import count_compiled, count_without_compiler


def count(counted):
    """What a rank says of a step after both parts, in the fields of a Tally."""
    first = count_compiled(counted, lambda text: None)
    both = count_without_compiler(counted, lambda text: None, first)
    return {
        name: known | both[name] if isinstance(both[name], dict) else known
        for name, known in first.items()
    }
