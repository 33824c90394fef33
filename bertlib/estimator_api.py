"""The name of `bertlib.compat.estimator_api` in programs."""

import sys

from bertlib.compat import estimator_api

sys.modules[__name__] = estimator_api
