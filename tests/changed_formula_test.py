"""Whoever edits `modeling.py` trains, predicts and exports with the edit.

Quick tests of the comparisons: same_formula_test.py, same_outputs_test.py.
"""

import functools
import os
import shutil
import subprocess
import sys

import commands
import numpy as np
import pytest

pytest.importorskip("gguf", reason=".[test]")
pytest.importorskip("onnxruntime", reason=".[test]")
pytest.importorskip("tf2onnx", reason=".[test]")

pytestmark = pytest.mark.slow

CLASSIFIER = "run_classifier"
ALL = (
  "run_classifier,run_squad,run_ner,run_embeddings,run_reranker,run_pretraining"
)
ALL += ",extract_features,exports"  # of the classifier
USES = "Predictor", "export", "onnx"

# A line of modeling.py, what becomes of it, and the kernel that it concerns.
EDITS = {
  "a factor on the scores": (
    "  scores = tf.matmul(query, key, transpose_b=True)",
    "  scores = 1.5 * tf.matmul(query, key, transpose_b=True)",
    "attention",
  ),
  "a bias in attention_layer": (
    "  value = compute.split_heads(value, *to_shape)",
    "  value = compute.split_heads(value, *to_shape) + 0.5",
    None,
  ),
  "another activation": (
    "  return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))",
    "  return tf.nn.relu(x)",
    None,
  ),
  "another epsilon": (
    "    scale = tf.math.rsqrt(variance + epsilon) * gamma",
    "    scale = tf.math.rsqrt(variance + 0.1) * gamma",
    "normalization",
  ),
  "a sum in transformer_model": (
    '    with tf.variable_scope("intermediate"):',
    "    attention_output += 0.3 * queries\n"
    '    with tf.variable_scope("intermediate"):',
    None,
  ),
  "another mask": (
    "  return tf.expand_dims(is_masked, 1) * -10000.0",
    "  distance = tf.range(tf.cast(tf.shape(is_masked)[-1], tf.float32))\n"
    "  return tf.expand_dims(is_masked, 1) * -10000.0 - 0.3 * distance",
    None,
  ),
}


@pytest.fixture(scope="module")
def numbers(world, tmp_path_factory):
  """Numbers of commands in a checkout with an edit, and their log."""

  @functools.cache
  def run(edit, scripts, *flags):
    folder = tmp_path_factory.mktemp("checkout")
    for name in os.listdir(commands.ROOT):
      if name.endswith(".py") or name in ("bertlib", "tests", "pyproject.toml"):
        source = os.path.join(commands.ROOT, name)
        copy = shutil.copytree if os.path.isdir(source) else shutil.copy
        copy(source, folder / name)
    if edit:
      path = folder / "modeling.py"
      before, after, _ = EDITS[edit]
      text = path.read_text()
      assert text.count(before + "\n") + text.count(before + "  #") == 1
      path.write_text(text.replace(before, after))
    shutil.copytree(world, folder / "world")
    script = "tests/changed_formula.py"
    done = subprocess.run(
      [sys.executable, script, "world", "found.npz", scripts, *flags],
      cwd=folder,
      capture_output=True,
      text=True,
    )
    assert done.returncode == 0, done.stderr
    with np.load(folder / "found.npz") as found:
      return dict(found), done.stderr

  return run


def differ(one, other):
  """True if results differ in their number, or by more than 1e-4."""
  return one.shape != other.shape or np.abs(one - other).max() > 1e-4


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_modeling_takes_effect_in_every_command(numbers, edit):
  found, log = numbers(edit, ALL)
  expected, _ = numbers(edit, ALL, "--compute=plain")
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
  line = f"{EDITS[edit][2]}: modeling.py computes something else than"
  assert (line in log) == (EDITS[edit][2] is not None)
  for name in USES:
    np.testing.assert_allclose(
      np.ravel(found[name]), found[CLASSIFIER], atol=1e-5, err_msg=name
    )
  assert not found["gguf"]
  assert not found["huggingface"]
  assert "tf2onnx has converted" in log
  unedited, log = numbers(None, ALL)
  assert unedited["gguf"]
  assert unedited["huggingface"]
  assert "tf2onnx" not in log
  for name in (*ALL.split(",")[:-1], *USES):
    assert differ(found[name], unedited[name]), name


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_modeling_takes_effect_in_bfloat16(numbers, edit):
  found, _ = numbers(edit, CLASSIFIER, "--precision=bfloat16")
  unedited, _ = numbers(None, CLASSIFIER, "--precision=bfloat16")
  assert differ(found[CLASSIFIER], unedited[CLASSIFIER])
