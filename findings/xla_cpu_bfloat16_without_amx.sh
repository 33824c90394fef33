#!/usr/bin/env bash
# jit_compile=True makes a bfloat16 product on a processor with AMX much slower.
#
# Versions: tensorflow-cpu 2.21.0, on Linux with amx_bf16 (status 2 elsewhere).
# Expected: XLA compiles a product of matrices to code for this processor, or to
#   a call of oneDNN, as TensorFlow's own operation does; at worst as fast.
# Happens: TensorFlow's operation uses the matrix units, XLA's does not: in
#   bfloat16 it is even slower than in float32, where both are about equal.
# Matters: compiling a whole model is the usual advice. With AMX it takes the
#   products from the matrix units and no message says so; compile what lies
#   between them.
# Output, TFLOP/s in two threads of an Intel Xeon, 2048 x 768 by 768 x 3072:
#              float32  bfloat16
#   operation  0.35     1.80
#   XLA        0.32     0.30
set -euo pipefail
if ! grep -q amx_bf16 /proc/cpuinfo; then
  echo "needs a processor with AMX" >&2
  exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys
import time

import tensorflow as tf

ROWS, INNER, COLUMNS = 2048, 768, 3072


def rate(dtype, compiles):
  product = tf.function(tf.matmul, jit_compile=compiles)
  left = tf.cast(tf.random.normal([ROWS, INNER]), dtype)
  right = tf.cast(tf.random.normal([INNER, COLUMNS]), dtype)
  seconds = []
  for _ in range(20):
    start = time.perf_counter()
    product(left, right).numpy()
    seconds.append(time.perf_counter() - start)
  return 2 * ROWS * INNER * COLUMNS / min(seconds) / 1e12


print("           float32  bfloat16")
rates = {}
for name, compiles in (("operation", False), ("XLA", True)):
  rates[name] = [rate(dtype, compiles) for dtype in ("float32", "bfloat16")]
  print(f"{name:11}" + "  ".join(f"{value:<7.2f}" for value in rates[name]))
if rates["operation"][1] < 2 * rates["XLA"][1]:
  sys.exit("changed: XLA's bfloat16 products are as fast as TensorFlow's")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/finding.py"
