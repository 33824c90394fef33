"""The name of `bertlib.compat.tensorflow_1` in programs.

It also gives `tensorflow_hub` its `Module` of TensorFlow 1 back, for BERT.
"""

import contextlib
import sys
import warnings

from bertlib.compat import tensorflow_1
from bertlib.exchange import hub_module

# Some versions cannot be imported without pkg_resources, or warn about it.
with contextlib.suppress(ImportError), warnings.catch_warnings():
  warnings.simplefilter("ignore")
  import tensorflow_hub

  tensorflow_hub.Module = hub_module.Module

sys.modules[__name__] = tensorflow_1
