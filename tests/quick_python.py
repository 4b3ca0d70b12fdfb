"""python -IS tests/quick_python.py -m pytest ...: a fork, where one can stand in (agent_forks)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from agent_forks import run_command

run_command(sys.argv[1:])
