"""python -m quick_stepguard: the command line, whose launches are short."""

import pytest
from quick_launches import shorten_launches

from stepguard.cli.main import main

shorten_launches(pytest.MonkeyPatch())
raise SystemExit(main())
