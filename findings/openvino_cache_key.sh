#!/usr/bin/env bash
# OpenVINO's cache answers with the old model after its file was replaced.
#
# Versions: openvino 2026.4.1, onnx 1.23.2.
# Expected: with CACHE_DIR, a model file with other weights is compiled again.
# Happens: the key of the cache is the file's path, size and time in whole
#   seconds. A file of the same size and second is taken for the same model, as
#   after a copy with cp -p from two archives or images with fixed times.
# Matters: a retrained model is deployed, all files are in place, and the old
#   one answers, without a line. Key the folder by a hash of the model's
#   content, or export the compiled model and import it.
# Output:
#   first model, cache empty:    2.0
#   second model, no cache:      -2.0
#   second model, cache of first: 2.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  openvino==2026.4.1 onnx==1.23.2 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import os
import sys

import numpy as np
import openvino
from onnx import TensorProto, helper, numpy_helper

folder = sys.argv[1]
path, cache = os.path.join(folder, "model.onnx"), os.path.join(folder, "cache")


def write(weight):
  values = np.full([2, 1], weight, np.float32)
  kernel = numpy_helper.from_array(values, "kernel")
  graph = helper.make_graph(
    [helper.make_node("MatMul", ["inputs", "kernel"], ["outputs"])],
    "product",
    [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, [1, 2])],
    [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, [1, 1])],
    [kernel],
  )
  model = helper.make_model(
    graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
  )
  with open(path, "wb") as file:
    file.write(model.SerializeToString())
  os.utime(path, (10**9, 10**9))


def answer(**settings):
  model = openvino.Core().compile_model(path, "CPU", settings)
  return float(model(np.ones([1, 2], np.float32))[0].item())


write(1.0)
first = answer(CACHE_DIR=cache)
print("first model, cache empty:   ", first)
write(-1.0)
second = answer()
print("second model, no cache:     ", second)
cached = answer(CACHE_DIR=cache)
print("second model, cache of first:", cached)
if (first, second, cached) != (2.0, -2.0, 2.0):
  sys.exit("changed: the cache tells the two files apart")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py" "$folder"
