#!/usr/bin/env bash
# Two Adams of one installation, one bfloat16 variable: stays put, or -6272.
#
# Versions: tensorflow-cpu 2.21.0, keras 3.15.1.
# Expected: coarse steps. With a constant gradient of 1 and a learning rate of
#   0.001, two steps of Adam move a variable from 1.0 to about 0.998.
# Happens: beta_2 = 0.999 is 1.0 in bfloat16. tf.compat.v1.train.AdamOptimizer
#   keeps the powers of beta in float32 and the second moment in bfloat16, where
#   it stays 0: the second step divides by epsilon alone and lands at -6272.
#   keras.optimizers.Adam computes its bias correction in bfloat16 too, where it
#   is sqrt(1 - 1) = 0: no step has any size. That is not rounding of the
#   variable: one that starts at 0 stays there too. float16, with a smaller
#   range but more digits, works in both.
# Matters: one code path diverges at the second step, the other reports a loss
#   that looks like a learning rate too low. Keep float32 variables; with beta_2
#   = 0.99609375, which bfloat16 has, both optimizers take usual steps.
# Output:
#   float32:  v1 Adam 0.9980, Keras Adam 0.9980, Keras Adam from 0: -0.0020
#   float16:  v1 Adam 0.9980, Keras Adam 0.9980, Keras Adam from 0: -0.0020
#   bfloat16: v1 Adam -6272.0000, Keras Adam 1.0000, Keras Adam from 0: 0.0000
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 keras==3.15.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import keras
import tensorflow as tf

RATE, STEPS = 0.001, 2


def v1_adam(dtype):
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    variable = tf.Variable(1.0, dtype=dtype)
    optimizer = tf.compat.v1.train.AdamOptimizer(RATE)
    step = optimizer.minimize(1 * variable, var_list=[variable])
    session.run(tf.compat.v1.global_variables_initializer())
    for _ in range(STEPS):
      session.run(step)
    return float(session.run(variable))


def keras_adam(dtype, start):
  variable = keras.Variable(start, dtype=dtype)
  optimizer = keras.optimizers.Adam(RATE)
  for _ in range(STEPS):
    optimizer.apply([tf.ones([], dtype)], [variable])
  return float(variable.numpy())


found = {}
for dtype in ("float32", "float16", "bfloat16"):
  found[dtype] = v1_adam(dtype), keras_adam(dtype, 1.0), keras_adam(dtype, 0.0)
  print(
    f"{dtype + ':':9} v1 Adam {found[dtype][0]:.4f}, "
    f"Keras Adam {found[dtype][1]:.4f}, "
    f"Keras Adam from 0: {found[dtype][2]:.4f}"
  )
moved = all(found[dtype][2] < 0 for dtype in ("float32", "float16"))
if not moved or found["bfloat16"] != (-6272.0, 1.0, 0.0):
  sys.exit("changed: Adam treats a bfloat16 variable in another way")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
