#!/usr/bin/env bash
# A compiled function that is only waited for becomes a function named NoOp.
#
# Versions: tensorflow-cpu 2.21.0; 2.15.1 and 2.22.0rc0 do the same.
# Expected: operations under tf.control_dependencies([y]) run after y, or
#   without it if nothing reads y, whatever y is the output of.
# Happens: where y is the output of a tf.function with jit_compile=True, its
#   inputs are needed elsewhere, and three operations wait for it, the graph
#   fails with "Function NoOp is not defined". Grappler's dependency optimizer
#   replaces the call by a NoOp and keeps its attribute _XlaMustCompile, so that
#   TensorFlow looks for a function of that name. With fewer inputs or
#   dependents it removes the NoOp, and nothing is seen. Sessions and tf.function
#   fail alike; without jit_compile, or without that optimizer, they do not.
# Matters: a second tf.gradients of a graph with compiled functions may wait for
#   the first one's calls. The message names nothing that the program has.
# Output:
#   jit_compile=None: 2.718
#   jit_compile=True: NotFoundError: Function NoOp is not defined.
#   jit_compile=True, no dependency optimization: 2.718
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow as tf


def run(jit_compile):
  @tf.function(jit_compile=jit_compile)
  def add(x, y):
    return x + y

  @tf.function
  def outer(x):
    first, second = tf.exp(x), tf.sin(x)
    with tf.control_dependencies([add(first, second)]):
      waiting = [tf.tan(x), tf.tanh(x), tf.sinh(x)]
    return first, second, waiting

  try:
    return f"{float(outer(tf.constant(1.0))[0]):.3f}"
  except tf.errors.NotFoundError as error:
    reason = str(error).partition(" [Op:")[0].strip()
    return f"NotFoundError: {reason.splitlines()[-1]}"


plain, compiled = run(None), run(True)
tf.config.optimizer.set_experimental_options({"dependency_optimization": False})
unoptimized = run(True)
print(f"jit_compile=None: {plain}")
print(f"jit_compile=True: {compiled}")
print(f"jit_compile=True, no dependency optimization: {unoptimized}")
if (plain, unoptimized) != ("2.718", "2.718") or "NoOp" not in compiled:
  sys.exit("changed: the compiled call is no longer replaced by a NoOp")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
