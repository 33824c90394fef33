#!/usr/bin/env bash
# The gradient of tf.nn.bias_add in bfloat16 stops at 256 times its addend.
#
# Versions: tensorflow-cpu 2.21.0.
# Expected: a sum over 4,096 rows is 4,096 whichever operation takes it. Matrix
#   products and tf.reduce_sum of bfloat16 accumulate in float32 on a CPU, and
#   BiasAddGrad does so for float16, the narrower of the two 16-bit types.
# Happens: BiasAddGrad accumulates bfloat16 in bfloat16. 256 + 1 rounds to 256,
#   so 4,096 equal rows sum to 256. tf.cumsum and scatter-adds do the same. With
#   `x + bias` the gradient is a tf.reduce_sum, which is right.
# Matters: biases train with a gradient up to 16 times too small for this batch.
#   The loss of the forward pass is right, so nothing shows it. XLA is no
#   remedy: with jit_compile=True the function below, whose gradient has
#   constant rows, gives 256 too, while the same with rows that depend on data
#   was right.
# Seen on x86 with AVX2 and with AVX-512; TF_ENABLE_ONEDNN_OPTS=1 gave the same.
# Output:
#   bfloat16: tf.nn.bias_add 256, the same compiled by XLA 256, x + bias 4096
#   bfloat16: tf.reduce_sum 4096, tf.matmul 4096, tf.cumsum 256
#   float16:  tf.nn.bias_add 4096
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow as tf

ROWS = 4096


def gradient_of_bias(add, dtype):
  rows, bias = tf.ones([ROWS, 1], dtype), tf.zeros([1], dtype)
  with tf.GradientTape() as tape:
    tape.watch(bias)
    loss = tf.reduce_sum(add(rows, bias))
  return tape.gradient(loss, bias)


def number(tensor):
  return int(tf.reshape(tensor, [-1])[-1])


ones = tf.ones([ROWS, 1], tf.bfloat16)
compiled = tf.function(gradient_of_bias, jit_compile=True)
bias_add = number(gradient_of_bias(tf.nn.bias_add, tf.bfloat16))
bias_add_xla = number(compiled(tf.nn.bias_add, tf.bfloat16))
plus = number(gradient_of_bias(tf.add, tf.bfloat16))
reduce_sum = number(tf.reduce_sum(ones))
matmul = number(tf.matmul(ones, ones, transpose_a=True))
cumsum = number(tf.cumsum(ones))
half = number(gradient_of_bias(tf.nn.bias_add, tf.float16))
print(
  f"bfloat16: tf.nn.bias_add {bias_add}, the same compiled by XLA "
  f"{bias_add_xla}, x + bias {plus}"
)
print(
  f"bfloat16: tf.reduce_sum {reduce_sum}, tf.matmul {matmul}, "
  f"tf.cumsum {cumsum}"
)
print(f"float16:  tf.nn.bias_add {half}")
if not bias_add < plus == reduce_sum == matmul == half == ROWS:
  sys.exit("changed: the gradient of bias_add is no longer the one too small")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
