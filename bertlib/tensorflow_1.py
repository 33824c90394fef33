"""The name of `bertlib.compat.tensorflow_1` in programs.

It also gives `tensorflow_hub` its `Module` of TensorFlow 1 back, for BERT.
`python -m bertlib.tensorflow_1 SCRIPT.py` lists names that the script uses and
that TensorFlow 2 does not have, without running it.
"""

import contextlib
import sys
import warnings

from bertlib.cli import lazy_module
from bertlib.compat import script_names, tensorflow_1

# It imports `modeling` and `tokenization`, of which a script may have copies.
hub_module = lazy_module.load("bertlib.exchange.hub_module")


def _hub_module(*arguments, **more):
  """A `hub_module.Module`."""
  return hub_module.Module(*arguments, **more)


# Some versions cannot be imported without pkg_resources, or warn about it.
with contextlib.suppress(ImportError), warnings.catch_warnings():
  warnings.simplefilter("ignore")
  import tensorflow_hub

  tensorflow_hub.Module = _hub_module

if __name__ == "__main__":
  script_names.main()
else:
  sys.modules[__name__] = tensorflow_1
