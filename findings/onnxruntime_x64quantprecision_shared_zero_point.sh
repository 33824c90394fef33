#!/usr/bin/env bash
# Two kernels with one zero point constant: x64quantprecision does not load.
#
# Versions: onnxruntime 1.32.0, onnx 1.23.2.
# Expected: session.x64quantprecision=1, by its description, keeps 8-bit sums
#   exact on x86 processors without VNNI. Whether two DequantizeLinear nodes
#   share an initializer of zeros, as ONNX allows, does not matter.
# Happens: with a zero point of its own for each kernel the model loads and
#   gives the sums. With one for both, the session ends in "Attempt to replace
#   the existing tensor", on processors with VNNI too, where nothing is to
#   be made exact (there it changes no bit of BERT's results, but takes 1.4 to
#   1.7 times as long). Without the option both forms load.
# Matters: writers of ONNX files that store equal constants once produce files
#   for which the cure of saturating sums cannot be turned on. Give each kernel
#   constants of its own.
# Output:
#   own zero points: option off loads, option on loads
#   shared zero points: option off loads, option on Attempt to replace the
#   existing tensor
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  onnxruntime==1.32.0 onnx==1.23.2 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WIDTH = 64
random = np.random.default_rng(0)


def model(shares):
  """Two products of 8-bit inputs and 8-bit kernels, one after the other."""
  constants, nodes = {
    "input_scale": np.float32(0.05), "input_zero": np.uint8(128)
  }, []
  states = "inputs"
  for layer in ("a", "b"):
    zero = "zero" if shares else f"{layer}_zero"
    constants |= {
      f"{layer}_kernel": random.integers(-127, 128, [WIDTH, WIDTH], np.int8),
      f"{layer}_scale": np.full([WIDTH], 0.001, np.float32),
      zero: np.zeros([WIDTH], np.int8),
    }
    limits = ["input_scale", "input_zero"]
    nodes += [
      helper.make_node("QuantizeLinear", [states, *limits], [f"{layer}_q"]),
      helper.make_node(
        "DequantizeLinear", [f"{layer}_q", *limits], [f"{layer}_d"]
      ),
      helper.make_node(
        "DequantizeLinear",
        [f"{layer}_kernel", f"{layer}_scale", zero],
        [f"{layer}_float"],
        axis=1,
      ),
      helper.make_node(
        "MatMul", [f"{layer}_d", f"{layer}_float"], [f"{layer}_out"]
      ),
    ]
    states = f"{layer}_out"
  shape = ["rows", WIDTH]
  graph = helper.make_graph(
    nodes,
    "two_products",
    [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, shape)],
    [helper.make_tensor_value_info(states, TensorProto.FLOAT, shape)],
    [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
  )
  made = helper.make_model(
    graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
  )
  onnx.checker.check_model(made)
  return made.SerializeToString()


def outcome(content, option):
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  options.add_session_config_entry("session.x64quantprecision", option)
  try:
    session = onnxruntime.InferenceSession(content, options)
    session.run(None, {"inputs": np.ones([2, WIDTH], np.float32)})
  except Exception as error:
    text = "Attempt to replace the existing tensor"
    return text if text in str(error) else str(error)
  return "loads"


found = {}
for name, shares in (("own", False), ("shared", True)):
  content = model(shares)
  found[name] = [outcome(content, option) for option in "01"]
  off, on = found[name]
  print(f"{name} zero points: option off {off}, option on {on}")
expected = {
  "own": ["loads", "loads"],
  "shared": ["loads", "Attempt to replace the existing tensor"],
}
if found != expected:
  sys.exit("changed: the option treats shared zero points in another way")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py"
