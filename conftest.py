"""Makes the plugin work from a clone, installed or not."""

pytest_plugins = ["stepguard.plugin", "pytester"]
