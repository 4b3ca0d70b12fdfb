"""Settings of these tests, which the lab's tests share."""

from suite_settings import *  # noqa: F403  # its hooks and fixtures
