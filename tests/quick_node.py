"""python -P tests/quick_node.py run FILE: a node's part of a launch, whose agent is forked."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from agent_forks import forking

from stepguard.launch import torchrun
from stepguard.launch.nodes import on_node

torchrun.spawn = forking(torchrun.spawn)
on_node.main()
