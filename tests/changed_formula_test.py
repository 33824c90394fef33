"""Whoever edits `modeling.py` trains, predicts and exports with the edit."""

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

pytestmark = pytest.mark.process

CLASSIFIER = "run_classifier"
ALL = "run_classifier,run_squad,run_ner,run_embeddings,run_pretraining"
ALL += ",extract_features"

# A line of modeling.py, what becomes of it, and the kernel that it concerns.
IN_PLACE = {
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


# Functions of tensors, each changed in terms of the `released` one, and the
# kernel that the change concerns.
FUNCTIONS = {
  "dot_product_attention": (
    "lambda query, *more, **named: released(1.5 * query, *more, **named)",
    "attention",
  ),
  "gelu": ("lambda x: tf.nn.relu(x)", None),
  "normalize": (
    "lambda *vectors, epsilon=0: released(*vectors[:3], epsilon=0.1)",
    "normalization",
  ),
  "attention_bias": ("lambda mask: released(mask) - 0.3 * by_key(mask)", None),
}

# Ends of modeling.py that put a changed function in the place of another one.
FORMS = {
  "a wrapper": "{name} = functools.wraps(released)(changed)",
  "a partial": "{name} = functools.partial(changed)",
  "a custom gradient": """
def {name}(*arguments, **named):
  def on_tensors(*tensors):
    return changed(*tensors, *arguments[3:], **named)

  @tf.custom_gradient
  def call(*tensors):
    return on_tensors(*tensors), lambda gradient: tf.gradients(
      on_tensors(*tensors), tensors, gradient
    )

  return call(*arguments[:3])
""",
}
END = """

def by_key(mask):
  return tf.range(tf.cast(tf.shape(mask)[-1], tf.float32))


released, changed = {name}, {changed}
{form}
"""
IN_FORMS = {
  f"{name} by {form}": (
    None,
    END.format(name=name, changed=changed, form=text.format(name=name)),
    kernel,
  )
  for name, (changed, kernel) in FUNCTIONS.items()
  for form, text in FORMS.items()
}
EDITS = IN_PLACE | IN_FORMS
GELU_BY_A_WRAPPER = "gelu by a wrapper"


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
      if before is None:
        before, after = text, text + after
      else:
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


def check_effect(numbers, edit, scripts):
  """Checks that an edit has the effect that it has without kernels."""
  found, log = numbers(edit, scripts)
  expected, _ = numbers(edit, scripts, "--compute=plain")
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
  for name in ("Predictor", "export", "onnx"):
    np.testing.assert_allclose(
      np.ravel(found[name]), found[CLASSIFIER], atol=1e-5, err_msg=name
    )
  assert not found["gguf"]
  assert not found["huggingface"]
  assert "tf2onnx has converted" in log
  line = f"{EDITS[edit][2]}: modeling.py computes something else than"
  assert (line in log) == (EDITS[edit][2] is not None)
  return found


@pytest.mark.parametrize(
  "edit",
  [
    "a factor on the scores",
    GELU_BY_A_WRAPPER,
    *(
      pytest.param(edit, marks=pytest.mark.slow)
      for edit in IN_FORMS
      if edit != GELU_BY_A_WRAPPER
    ),
  ],
)
def test_an_edit_of_modeling_takes_effect_in_a_command(numbers, edit):
  check_effect(numbers, edit, CLASSIFIER)


@pytest.mark.slow
@pytest.mark.parametrize("edit", IN_PLACE)
def test_an_edit_of_modeling_takes_effect_in_every_command(numbers, edit):
  found = check_effect(numbers, edit, ALL)
  unedited, log = numbers(None, ALL)
  assert unedited["gguf"]
  assert unedited["huggingface"]
  assert "tf2onnx" not in log
  for name in (*ALL.split(","), "Predictor", "export", "onnx"):
    assert differ(found[name], unedited[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("edit", IN_PLACE)
def test_an_edit_of_modeling_takes_effect_in_bfloat16(numbers, edit):
  found, _ = numbers(edit, CLASSIFIER, "--precision=bfloat16")
  unedited, _ = numbers(None, CLASSIFIER, "--precision=bfloat16")
  assert differ(found[CLASSIFIER], unedited[CLASSIFIER])
