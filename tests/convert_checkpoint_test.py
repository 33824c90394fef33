"""Tests of comparing models by their weights."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import reference_data
import tensorflow as tf

import convert_checkpoint
from bertlib.cli.errors import InputError

pytestmark = pytest.mark.unit


def test_a_truncated_checkpoint_is_a_one_line_error(tmp_path):
  for path in Path(reference_data.golden("modeling", "tiny")).glob("bert_*"):
    shutil.copy(path, tmp_path)
  data = f"{tmp_path}/bert_model.ckpt.data-00000-of-00001"
  os.truncate(data, 99)
  with pytest.raises(InputError, match=f"^{data}: [^\n]*$"):
    convert_checkpoint.read_weights(str(tmp_path))


@pytest.mark.parametrize("signature", ["layers", "serving_default"])
def test_weights_are_read_from_any_saved_model(signature, tmp_path):
  module = tf.Module()
  module.scale = tf.Variable([2.0, 3.0], name="bert/scale")
  function = tf.function(lambda: {"scale": module.scale + 0.0})
  function = function.get_concrete_function()
  tf.saved_model.save(module, str(tmp_path), {signature: function})
  weights = convert_checkpoint.read_weights(str(tmp_path))
  assert {n: v.tolist() for n, v in weights.items()} == {"bert/scale": [2, 3]}


WEIGHTS = {
  "kernel": np.array([1.0, np.nan], np.float32),
  "bias": np.array([0.5], np.float32),
}


@pytest.mark.parametrize(
  ("bias", "agree", "line"),
  [
    (np.array([0.5], np.float32), True, None),
    (np.array([0.5625], np.float32), True, "bias: 0.0625"),
    (np.array([0.75], np.float32), False, "bias: 0.25"),
    (np.array([np.nan], np.float32), False, "bias: nan"),
    (np.array([0.5], np.float16), True, "bias: 0"),
    (np.array([0.5, 0.5], np.float32), False, "bias: (1,) and (2,)"),
    (None, False, "bias: only in the first"),
  ],
)
def test_weights_that_differ_are_printed(bias, agree, line, capsys):
  others = {n: v for n, v in {**WEIGHTS, "bias": bias}.items() if v is not None}
  assert convert_checkpoint.compare_weights(WEIGHTS, others, 0.1) is agree
  *lines, summary, _ = capsys.readouterr().out.splitlines()
  assert lines == ([line] if line else [])
  equal = 2 - len(lines)
  assert summary == (
    f"{equal} variables are bitwise equal, {len(lines)} are not"
  )
