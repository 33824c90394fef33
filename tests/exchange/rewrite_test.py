"""Tests of reading, stripping, averaging and renaming checkpoints."""

import json
import os
import re

import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
from parametrize import parametrize
from refused import assert_refused

import optimization
from bertlib.checkpoints import checkpoint_files, initialize
from bertlib.cli import terminal
from bertlib.exchange import rewrite
from bertlib.training.train_step import LossScale

pytestmark = pytest.mark.graph

BFLOAT16 = tf.bfloat16.as_numpy_dtype


def write(path, variables):
  path.parent.mkdir(exist_ok=True)
  checkpoint_files.write_variables(
    str(path), {name: np.asarray(value) for name, value in variables.items()}
  )
  return str(path)


def any_bits(seed, *shape):
  """Random float32 bit patterns, including NaN and Inf."""
  rng = np.random.default_rng(seed)
  return rng.integers(2**32, size=shape, dtype=np.uint32).view(np.float32)


TRAINED = {
  "bert/kernel": any_bits(1, 3, 4),
  "bert/kernel/adam_m": any_bits(2, 3, 4),
  "bert/kernel/adam_v": any_bits(3, 3, 4),
  "bert/bias": any_bits(4, 4),
  "loss_scale/scale": np.float32(8),
  "loss_scale/good_steps": np.int32(5),
  "global_step": np.int64(70),
}


@pytest.fixture
def trained(tmp_path):
  return write(tmp_path / "run" / "model.ckpt-70", TRAINED)


@pytest.fixture
def rewritten(tmp_path):
  """Rewrites checkpoints to `out`; returns the variables there."""

  def rewritten(*sources, **options):
    rewrite.rewrite([*sources], str(tmp_path / "out"), **options)
    name = os.path.basename(sources[-1])
    return run_outputs.read_variables(tmp_path / "out" / name)

  return rewritten


def test_weights_are_the_trainable_variables(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    loss_scale = LossScale()
    layers = [tf.get_variable(f"layer_{n}/kernel", [2, 3]) for n in range(2)]
    loss = tf.add_n([tf.nn.l2_loss(layer) for layer in layers])
    optimization.training_step(
      optimization.gradients_of(loss, factor=loss_scale.value),
      init_lr=0.1,
      num_train_steps=9,
      num_warmup_steps=1,
      options=optimization.StepOptions(optimizer="lamb"),
      loss_scale=loss_scale,
    )
    weights = {variable.op.name for variable in tf.trainable_variables()}
    session.run(tf.global_variables_initializer())
    path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
  assert rewrite.read_weights(path).keys() == weights


def test_a_checkpoint_is_a_mapping_of_its_variables(trained):
  checkpoint = checkpoint_files.Checkpoint(trained)
  assert "bert/bias" in checkpoint and "bert" not in checkpoint
  assert checkpoint.get("bert") is None
  run_outputs.assert_same_bits(dict(checkpoint), TRAINED)


def test_stripping_keeps_the_weights_bitwise(trained, rewritten, capsys):
  kept = ("bert/kernel", "bert/bias", "global_step")
  run_outputs.assert_same_bits(
    rewritten(trained, strip_optimizer=True),
    {name: TRAINED[name] for name in kept},
  )
  assert "left out: 4 variables of the optimizer\n" in capsys.readouterr().out


def write_each(tmp_path, arrays):
  return [
    write(tmp_path / str(n) / "model.ckpt", {"kernel": array})
    for n, array in enumerate(arrays)
  ]


def test_averages_are_computed_in_float64(tmp_path, rewritten):
  # A sum in float32 would lose their last digits.
  rng = np.random.default_rng(0)
  arrays = [
    (rng.normal(size=(50, 4)) * 10.0**power).astype(np.float32)
    for power in (6, 0, -6)
  ]
  expected = np.mean(arrays, axis=0, dtype=np.float64).astype(np.float32)
  found = rewritten(*write_each(tmp_path, arrays))
  run_outputs.assert_same_bits(found, {"kernel": expected})


@parametrize("dtype", np.float16, BFLOAT16, np.float64)
def test_averages_keep_the_dtype(dtype, tmp_path, rewritten):
  arrays = [np.array(values, dtype) for values in ([1.0, 2.0], [2.0, 5.0])]
  found = rewritten(*write_each(tmp_path, arrays))
  run_outputs.assert_same_bits(found, {"kernel": np.array([1.5, 3.5], dtype)})


def zeros(size, dtype=np.float32):
  return np.zeros(size, dtype)


ONE = {"bias": zeros(2), "kernel": zeros(3)}


@parametrize(
  "other, beside, named",
  ({"bias": zeros(2)}, (), r"kernel \(float32 \[3\], missing\)"),
  (ONE | {"kernel": zeros(4)}, (), r"kernel .*, float32 \[4\]\)"),
  (ONE | {"bias": zeros(2, BFLOAT16)}, (), r"bias .*, bfloat16 .*"),
  (ONE, ("vocab.txt", "[UNK]\na\n", "[UNK]\nb\n"), "the vocabulary .*"),
  (ONE, ("model.json", '{"labels": ["0"]}', '{"labels": ["1"]}'), "the la.*"),
)
def test_unlike_models_are_not_averaged(
  other, beside, named, tmp_path, rewritten
):
  sources = [
    write(tmp_path / folder / "model.ckpt", variables)
    for folder, variables in {"a": ONE, "b": other}.items()
  ]
  for folder, text in zip("ab", beside[1:]):
    (tmp_path / folder / beside[0]).write_text(text)
  assert_refused(f"They differ in {named}$", rewritten, *sources)


@pytest.mark.unit
def test_rename_rules_are_applied_in_order():
  names = rewrite.new_names(
    ["bert/encoder/layer_0/kernel", "bert/encoder/layer_11/kernel", "bias"],
    [r"layer_(\d+)=>layer/\1", "^bert/encoder/layer/=>blocks."],
  )
  assert names == {
    "bert/encoder/layer_0/kernel": "blocks.0/kernel",
    "bert/encoder/layer_11/kernel": "blocks.11/kernel",
    "bias": "bias",
  }


@pytest.mark.unit
@parametrize(
  "rule, message",
  ("kernel", "is not PATTERN=>REPLACEMENT"),
  ("(kernel=>x", "not a regular expression .*unterminated"),
  (r"kernel=>\1", "not a regular expression .*invalid group reference"),
  (r"kernel=>\g<n>", "not a regular expression .*unknown group name"),
  ("weights=>kernel", "matches none of the 2 variables, such as a/kernel"),
  ("^[ab]=>c", "a/kernel and b/kernel: both would be renamed c/kernel"),
)
def test_invalid_rename_rules_are_refused(rule, message):
  assert_refused(message, rewrite.new_names, ["a/kernel", "b/kernel"], [rule])


def test_variables_read_renamed_written_are_counted(trained, tmp_path, capsys):
  target = str(tmp_path / "out")
  rewrite.rewrite([trained], target, renames=["bias=>beta"])
  assert capsys.readouterr().out == (
    f"read: {trained}, 7 variables\n"
    "renamed: 1 of 7 variables\n"
    f"written: {target}/{os.path.basename(trained)}, 7 variables\n"
  )


def test_model_files_beside_the_last_checkpoint_are_copied(trained, tmp_path):
  description = {"script": "run_classifier", "labels": ["no", "yes"]}
  files = {
    "bert_config.json": '{"vocab_size": 2}',
    "vocab.txt": "[UNK]\nword\n",
    "model.json": json.dumps(description),
  }
  for name, text in files.items():
    (tmp_path / "run" / name).write_text(text)
  rewrite.rewrite([trained], str(tmp_path / "out"))
  written = {name: (tmp_path / "out" / name).read_text() for name in files}
  assert written == files


def test_the_output_is_the_folder_of_a_model(trained, tmp_path, rewritten):
  rewritten(trained)
  (tmp_path / "out").rename(tmp_path / "moved")
  found = checkpoint_files.trained_checkpoint(str(tmp_path / "moved"))
  run_outputs.assert_same_bits(run_outputs.read_variables(found), TRAINED)


@pytest.mark.unit
@parametrize(
  "names, state",
  (["output_bias", "global_step", "cls/predictions/output_bias"], []),
  (["a/LayerNorm/beta", "a/LayerNorm/gamma"], []),
  (["output_bias", "output_bias/adam_m"], ["output_bias/adam_m"]),
  (["output_bias", "output_bias/Adam_1"], ["output_bias/Adam_1"]),
  (["a/b", "a/b/ExponentialMovingAverage"], ["a/b/ExponentialMovingAverage"]),
  (["loss_scale/value", "beta1_power"], ["loss_scale/value", "beta1_power"]),
)
def test_the_state_of_any_optimizer_is_known_by_name(names, state):
  assert checkpoint_files.optimizer_variables(names) == set(state)


def test_averages_are_named_and_may_become_the_weights(tmp_path, caplog):
  a, b = np.float32([1, 2]), np.float32([3, 4])
  weight, average = "bert/encoder/a", "bert/encoder/a/ExponentialMovingAverage"
  stored = {weight: a, average: b, f"{weight}/adam_m": a, "bert/b": a}
  path = write(tmp_path / "from" / "model.ckpt-7", stored)

  def rewritten(name, *renames):
    rewrite.rewrite([path], str(tmp_path / name), True, renames)
    return run_outputs.read_variables(tmp_path / name / "model.ckpt-7")

  run_outputs.assert_same_bits(rewritten("c"), {weight: a, "bert/b": a})
  assert "has 1 averages of weights, which are not read" in caplog.text
  rename = re.search("--rename='(.+?)'", caplog.text)[1]
  caplog.clear()
  found = rewritten("d", rename, "^bert/=>")
  run_outputs.assert_same_bits(found, {"encoder/a": b, "b": a})
  assert not caplog.text
  terminal.warn_once.cache_clear()
  with tf.Graph().as_default():
    tf.get_variable(weight, [2])
    initialize.initialize_from_checkpoint(path)
  assert "has 1 averages" in caplog.text


def test_files_are_not_replaced_by_default(trained, tmp_path, rewritten):
  rewritten(trained)
  other = write(tmp_path / "other" / "model.ckpt-70", {"w": [0.5]})
  assert_refused(r"out: has .*model.ckpt-70.index .*", rewritten, other)
  found = run_outputs.read_variables(tmp_path / "out" / "model.ckpt-70")
  run_outputs.assert_same_bits(found, TRAINED)
