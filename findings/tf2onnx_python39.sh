#!/bin/bash
# tf2onnx on Python 3.9, beside TensorFlow 2.15.1
#
# Expected: `pip install tensorflow-cpu==2.15.1 tf2onnx` installs a tf2onnx that
# converts a function, or says that there is none for this Python.
# Found: tf2onnx 1.17.0 needs Python 3.10. With onnx 1.18.0 pip goes back to 1.8.4
# (2021), which has no upper bounds: it installs and imports beside NumPy 1.26, and
# ends in "module 'numpy' has no attribute 'bool'" at the first conversion.
# Seen: tf2onnx 1.8.4; AttributeError: module 'numpy' has no attribute 'bool'
#
# Exits 0 while it is so, 1 if it has changed. Needs python3.9.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.9 -m venv "$folder/venv"
pip="$folder/venv/bin/python -m pip --disable-pip-version-check -q"
$pip install tensorflow-cpu==2.15.1 numpy==1.26.4 onnx==1.18.0 tf2onnx
$pip freeze 2>/dev/null | grep -iE '^(tf2onnx|onnx|numpy|protobuf|tensorflow-cpu)=='
cat > "$folder/convert.py" <<'EOF'
import tensorflow as tf
import tf2onnx

spec = tf.TensorSpec([None, 2], tf.float32, "x")
double = tf.function(lambda x: x + x, input_signature=[spec])
model, _ = tf2onnx.convert.from_function(double, [spec], opset=13)
print("converted:", [node.op_type for node in model.graph.node])
EOF
said=$(TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/convert.py" 2>&1 || true)
echo "$said" | tail -3
if grep -q "has no attribute 'bool'" <<< "$said"; then
  exit 0
fi
echo "changed"
exit 1
