#!/usr/bin/env bash
# A float32 product has other bits with one intra-op thread than with two.
#
# Versions: tensorflow-cpu 2.21.0, TF_ENABLE_ONEDNN_OPTS=0.
# Expected: threads divide the rows and columns of a result among them; each
#   value is one dot product in one order. So bits do not depend on the number
#   of threads, least of all with
#   tf.config.experimental.enable_op_determinism().
# Happens: most values differ in their last bits (presumably the inner dimension
#   is cut into other blocks). Runs with equal numbers of threads are equal.
# Matters: TensorFlow takes the number of usable cores, so `taskset`, a
#   container's quota or another allocation of a cluster changes the weights of
#   a training whose seeds are fixed. Set the number of threads where bits
#   count. With oneDNN (TF_ENABLE_ONEDNN_OPTS=1) the bits were equal; that it is
#   on by default depends on the processor.
# Seen on x86 with AVX2 and with AVX-512; not tried on others, where this script
#   only says so.
# Output:
#   1 thread: two runs equal
#   2 threads: two runs equal
#   1 and 2 threads: 90.9% of the values differ, by at most 1.1e-04
set -euo pipefail
if ! grep -q -w avx2 /proc/cpuinfo; then
  echo "not tried on a processor without AVX2"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 || exit 2
cat > "$folder/product.py" <<'PYTHON'
import sys

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
tf.config.experimental.enable_op_determinism()
random = np.random.RandomState(0)
left = random.standard_normal([512, 768]).astype(np.float32)
right = random.standard_normal([768, 3072]).astype(np.float32)
np.save(sys.argv[2], tf.matmul(left, right).numpy())
PYTHON
cat > "$folder/finding.py" <<'PYTHON'
import sys

import numpy as np

folder = sys.argv[1]
one, one_again, two, two_again = (
  np.load(f"{folder}/{name}.npy") for name in ("1a", "1b", "2a", "2b")
)


def equal(first, second):
  return "equal" if np.array_equal(first, second) else "different"


print(f"1 thread: two runs {equal(one, one_again)}")
print(f"2 threads: two runs {equal(two, two_again)}")
print(
  f"1 and 2 threads: {100 * np.mean(one != two):.1f}% of the values differ, "
  f"by at most {np.abs(one - two).max():.1e}"
)
repeated = np.array_equal(one, one_again) and np.array_equal(two, two_again)
if not repeated or np.array_equal(one, two):
  sys.exit("changed: bits depend on something else than the threads")
PYTHON
for threads in 1 2; do
  for run in a b; do
    TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 "$folder/venv/bin/python" \
      "$folder/product.py" "$threads" "$folder/$threads$run.npy"
  done
done
"$folder/venv/bin/python" "$folder/finding.py" "$folder"
