#!/usr/bin/env bash
# tf.function calls the function inside a decorated argument, not the argument.
#
# Versions: tensorflow-cpu 2.21.0.
# Expected: layer(x, activation) under tf.function calls the activation that it
#   was given, as it does without tf.function.
# Happens: an argument with an attribute `__wrapped__` is replaced by the value
#   of that attribute. functools.wraps sets it, and so do tf.custom_gradient,
#   tf.recompute_grad and functools.lru_cache. Two wrappers of one function also
#   share one trace. A keyword of a functools.partial, and a function in a list,
#   are replaced too. A closure and a positional argument of a partial are not.
# Matters: whoever swaps an activation by a decorator trains the old one,
#   without an error. A custom gradient that is passed in this way fails with a
#   TypeError about the return value, since the bare function returns its
#   gradient as well.
# Output:
#   called directly: 2.0
#   tf.function(layer)(x, doubled): 1.0
#   tf.function(layer)(x, tripled): 1.0, traces so far: 1
#   tf.function(partial(layer, activation=doubled))(x): 1.0
#   tf.function(lambda x: layer(x, doubled))(x): 2.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import functools
import sys

import tensorflow as tf


def identity(x):
  return x


@functools.wraps(identity)
def doubled(x):
  return 2 * identity(x)


@functools.wraps(identity)
def tripled(x):
  return 3 * identity(x)


def layer(x, activation):
  return activation(x)


x = tf.constant(1.0)
in_graph = tf.function(layer)
partial = tf.function(functools.partial(layer, activation=doubled))
closure = tf.function(lambda x: layer(x, doubled))
direct = float(layer(x, doubled))
two, three = float(in_graph(x, doubled)), float(in_graph(x, tripled))
traces = in_graph.experimental_get_tracing_count()
by_partial, by_closure = float(partial(x)), float(closure(x))
print(f"called directly: {direct}")
print(f"tf.function(layer)(x, doubled): {two}")
print(f"tf.function(layer)(x, tripled): {three}, traces so far: {traces}")
print(f"tf.function(partial(layer, activation=doubled))(x): {by_partial}")
print(f"tf.function(lambda x: layer(x, doubled))(x): {by_closure}")
if (two, three, traces, by_partial) != (1, 1, 1, 1) or by_closure != direct:
  sys.exit("changed: tf.function does not unwrap its arguments as before")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
