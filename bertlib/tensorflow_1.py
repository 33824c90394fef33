"""The name of `bertlib.compat.tensorflow_1` in programs.

It also gives `tensorflow_hub` its `Module` of TensorFlow 1 back, for BERT.
`python -m bertlib.tensorflow_1 SCRIPT.py` lists names that the script uses and
that TensorFlow 2 does not have, without running it.
"""

import contextlib
import sys
import warnings

from bertlib.compat import script_names, tensorflow_1
from bertlib.exchange import hub_module

# Some versions cannot be imported without pkg_resources, or warn about it.
with contextlib.suppress(ImportError), warnings.catch_warnings():
  warnings.simplefilter("ignore")
  import tensorflow_hub

  tensorflow_hub.Module = hub_module.Module

if __name__ == "__main__":
  script_names.main()
else:
  sys.modules[__name__] = tensorflow_1
