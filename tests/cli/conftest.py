"""The command line, for the tests in this folder."""

from command_line import shell as shell
