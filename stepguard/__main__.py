"""python -m stepguard"""

import os
import sys

from stepguard.cli import main

try:
    status = main()
    sys.stdout.flush()
except BrokenPipeError:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read what was printed, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    else:
        raise
raise SystemExit(status)
