"""A stand-in for a scheduler's launcher: starts its arguments twice here, as on two nodes.

Like srun it ends what it has started when it is asked to end, and leaves it when it is killed.
"""

import os
import signal
import subprocess
import sys

command = sys.argv[1:]
tasks = [
    subprocess.Popen(command, env=os.environ | {"SLURM_NNODES": "2", "SLURM_NODEID": str(node)})
    for node in range(2)
]


def end(number, frame):
    """Kill what was started."""
    for task in tasks:
        task.kill()
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, end)
sys.exit(max(abs(task.wait()) for task in tasks))
