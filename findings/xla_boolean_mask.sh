#!/usr/bin/env bash
# After tf.boolean_mask under XLA, sums are right, ones_like and x[-1] are not.
#
# Versions: tensorflow-cpu 2.21.0.
# Expected: a function gives equal numbers with jit_compile=True, or does not
#   compile. XLA needs fixed sizes, but boolean_mask compiles, and tf.size,
#   reduce_sum, reduce_mean, concat, sort and x[:-1] of its result are right.
# Happens: some operations see the size before the mask. tf.ones_like counts the
#   values that were masked out, x[-1] is the first value instead of the last,
#   x[-2:] is empty, and tf.roll has five values instead of three. Others, such
#   as x[::-1], are refused with a clear error.
# Matters: sum(loss) / sum(ones_like(loss)) is a usual mean over the unmasked
#   tokens. Under XLA it is the mean over all of them, and the loss looks fine.
#   tf.reduce_mean, or a division by tf.size, is right.
# Output:
#                             plain         XLA
#   reduce_mean(x)            30.0          30.0
#   sum(x) / sum(ones_like)   30.0          18.0
#   x[-1]                     50.0          10.0
#   x[-2:]                    [30.0, 50.0]  []
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow as tf


def of_masked(values, mask):
  kept = tf.boolean_mask(values, mask)
  return {
    "reduce_mean(x)": tf.reduce_mean(kept),
    "sum(x) / sum(ones_like)": tf.reduce_sum(kept)
    / tf.reduce_sum(tf.ones_like(kept)),
    "x[-1]": kept[-1],
    "x[-2:]": kept[-2:],
  }


values = tf.constant([10.0, 20.0, 30.0, 40.0, 50.0])
mask = tf.constant([True, False, True, False, True])
plain = tf.function(of_masked)(values, mask)
xla = tf.function(of_masked, jit_compile=True)(values, mask)
print(f"{'':26}{'plain':14}XLA")
different = set()
for name in plain:
  left, right = plain[name].numpy().tolist(), xla[name].numpy().tolist()
  print(f"{name:26}{left!s:14}{right}")
  if left != right:
    different.add(name)
if different != set(plain) - {"reduce_mean(x)"}:
  sys.exit("changed: XLA differs from plain TensorFlow in other operations")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
