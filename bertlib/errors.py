"""The name of `bertlib.cli.errors` in programs."""

import sys

from bertlib.cli import errors

sys.modules[__name__] = errors
