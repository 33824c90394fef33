"""The name of `bertlib.compat.tensorflow_1` in programs.

`python -m bertlib.tensorflow_1 SCRIPT.py` lists names that the script uses and
that TensorFlow 2 does not have, without running it.
"""

import sys

from bertlib.compat import script_names, tensorflow_1

if __name__ == "__main__":
  script_names.main()
else:
  sys.modules[__name__] = tensorflow_1
