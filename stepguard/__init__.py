"""stepguard: a performance gate for GPT training steps, as a pytest plugin.

python -m stepguard run -- train.py --batch_size=12     # a training script, as it is
pytest perf_tests                                       # the suite
"""

from stepguard.core.case import Case, Loop
from stepguard.core.metrics import default_gates
from stepguard.core.source_marks import allow_sync, step

__all__ = ["Case", "Loop", "__version__", "allow_sync", "default_gates", "step"]
__version__ = "0.1.0"
