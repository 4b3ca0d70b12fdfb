"""python -m stepguard"""

from stepguard.cli import main

raise SystemExit(main())
