"""The name of `bertlib.compat.tensorflow_1` in programs."""

import sys

from bertlib.compat import tensorflow_1

sys.modules[__name__] = tensorflow_1
