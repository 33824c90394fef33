"""Tests of finding and initializing from checkpoints, and of model folders."""

import functools
import json
import multiprocessing
import os
import pathlib
import re
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_model
import wrong_input_files
from parametrize import parametrize
from refused import assert_refused, refusal

import modeling
from bertlib.checkpoints import checkpoint_files, initialize, model_folder
from bertlib.cli.errors import InputError
from bertlib.data import batch_predictor, model_inputs
from bertlib.export import predictor
from bertlib.io import files
from bertlib.settings import embedding_spec, model_description
from bertlib.task import task_record
from bertlib.tasks.classification.record import RECORD

pytestmark = pytest.mark.graph

CONFIG = tiny_model.config(9)
MODEL = {
  "script": "run_classifier",
  "task": "mrpc",
  "labels": ["0", "1"],
  "max_seq_length": 8,
  "do_lower_case": True,
}
DATA = ".data-00000-of-00001"
EMBEDDING = {"pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp("saved")
  write_checkpoint(folder)
  return folder


@pytest.fixture
def checkpoint(saved, tmp_path):
  """A classifier's checkpoint of step 7."""
  shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
  return str(tmp_path / "model.ckpt-7")


def write_checkpoint(folder, **sizes):
  with tf.Graph().as_default(), tf.Session() as session:
    build(tiny_model.config(9, **sizes))
    tf.get_variable("output_bias/adam_m", [2])
    step = tf.train.create_global_step()
    session.run(tf.global_variables_initializer())
    session.run(step.assign(7))
    saver = tf.train.Saver(save_relative_paths=True)
    return saver.save(session, str(folder / "model.ckpt-7"))


def build(config=CONFIG, num_labels=2):
  model = modeling.BertModel(config, False, tf.zeros([1, 3], tf.int32))
  return modeling.classification_logits(model.get_pooled_output(), num_labels)


def warnings_of(caplog):
  """Messages of the log, without those of TensorFlow."""
  return [r.getMessage() for r in caplog.records if r.name == "absl"]


def train_on(checkpoint, folder):
  """Does what a training does when it saves its next checkpoint; its path."""
  variables = run_outputs.read_variables(checkpoint)
  variables["output_bias"] += 1
  latest = str(folder / "model.ckpt-8")
  checkpoint_files.write_variables(latest, variables)
  checkpoint_files.write_state_file(str(folder), latest)
  for path in folder.glob("model.ckpt-7.*"):
    path.unlink()
  return latest


def test_a_checkpoint_that_a_training_replaces_is_no_problem(
  checkpoint, tmp_path, monkeypatch, caplog
):
  in_state_file = checkpoint_files.checkpoint_in_state_file

  def and_train_on(folder):
    named = in_state_file(folder)
    if named == checkpoint:
      train_on(checkpoint, tmp_path)
    return named

  name = "checkpoint_in_state_file"
  monkeypatch.setattr(checkpoint_files, name, and_train_on)
  last = checkpoint_files.last_checkpoint(str(tmp_path))
  assert last == str(tmp_path / "model.ckpt-8")
  assert not warnings_of(caplog)


# Initialization from a checkpoint


def assert_restored(session, variables, checkpoint):
  saved = run_outputs.read_variables(checkpoint)
  for variable in variables:
    value = session.run(variable)
    np.testing.assert_array_equal(value, saved[variable.op.name])


def test_weights_are_restored_and_counted(checkpoint, log):
  with tf.Graph().as_default(), tf.Session() as session:
    build()
    tf.get_variable("new", [1])
    assert initialize.initialize_from_checkpoint(checkpoint) is None
    session.run(tf.global_variables_initializer())
    assert_restored(session, tf.trainable_variables()[:-1], checkpoint)
  assert log[0] == f"25 of 26 variables restored from {checkpoint}"
  assert log[1] == "Not found in checkpoint (randomly initialized): new"
  assert log[2] == "Unused checkpoint variables: global_step, 1 Adam slots"


@pytest.mark.parametrize(
  ("lacks", "error"),
  [("bert/pooler/", None), ("output_", "weights that the model does not use")],
)
def test_constants_need_no_pooler(lacks, error, checkpoint, tmp_path):
  saved = run_outputs.read_variables(checkpoint)
  weights = {n: v for n, v in saved.items() if not n.startswith(lacks)}
  part = str(tmp_path / "part.ckpt")
  checkpoint_files.write_variables(part, weights)
  raises = pytest.raises(InputError, match=error) if error else nullcontext()
  with tf.Graph().as_default():
    with tf.variable_scope("", custom_getter=initialize.constant_getter(part)):
      build()
    assert tf.trainable_variables()
    with raises:
      initialize.initialize_from_checkpoint(part, uses_all=True)


def test_the_head_of_another_task_is_left_out_of_a_training(checkpoint, caplog):
  with tf.Graph().as_default(), tf.Session() as session:
    build(num_labels=5)
    initialize.initialize_from_checkpoint(checkpoint, new_heads=True)
    session.run(tf.global_variables_initializer())
    assert_restored(session, tf.trainable_variables("bert/"), checkpoint)
  assert "(output_bias, output_weights) is that of" in warnings_of(caplog)[0]


@parametrize(
  "num_layers, options, message",
  (2, {"new_heads": True}, "weights that the model does not use"),
  (1, {}, "output_weights has shape"),
)
def test_unfitting_weights_are_refused(num_layers, options, message, tmp_path):
  path = write_checkpoint(tmp_path, num_hidden_layers=num_layers)
  with tf.Graph().as_default():
    build(num_labels=5)
    with pytest.raises(InputError, match=message):
      initialize.initialize_from_checkpoint(path, uses_all=True, **options)


def test_on_a_tpu_initialization_is_deferred_to_the_scaffold(checkpoint):
  with tf.Graph().as_default():
    build()
    defer = initialize.initialize_from_checkpoint(checkpoint, use_tpu=True)
    assert isinstance(defer(), tf.train.Scaffold)


def test_a_trained_model_that_lacks_a_variable_is_refused(checkpoint):
  with tf.Graph().as_default():
    build()
    # It takes precedence over init_checkpoint.
    initialize.initialize_from_checkpoint("not there", checkpoint)
    tf.get_variable("loss_scale/value", [])
    with pytest.raises(InputError, match=r"ckpt-7: lacks loss_scale/value, so"):
      initialize.initialize_from_checkpoint(None, checkpoint)


def test_a_checkpoint_without_its_data_file_is_refused(checkpoint, tmp_path):
  (tmp_path / "model.ckpt-7.data-00000-of-00001").unlink()
  with pytest.raises(InputError, match=r"lacks model\.ckpt-7\.data-0"):
    checkpoint_files.check_checkpoint(checkpoint)


# Model folders


def write_model_files(folder, **changed):
  (folder / "words.txt").write_text("[UNK]\n[CLS]\n[SEP]\n")
  about = MODEL | changed, CONFIG, f"{folder}/words.txt"
  model_folder.write_model_files(str(folder), *about)


@pytest.mark.unit
def test_model_files_can_be_loaded_again(tmp_path):
  write_model_files(tmp_path, task="mînt")
  assert '\n  "task": "mînt"' in (tmp_path / "model.json").read_text()
  assert model_description.load(str(tmp_path))["task"] == "mînt"
  config = model_folder.load_config(str(tmp_path / "bert_config.json"))
  assert config.to_dict() == CONFIG.to_dict()
  assert (tmp_path / "vocab.txt").read_text() == "[UNK]\n[CLS]\n[SEP]\n"


def check_folder(folder, *model, **options):
  folder = str(folder)
  checkpoint = checkpoint_files.trained_checkpoint(folder)
  shapes = checkpoint and checkpoint_files.shapes_of(checkpoint)
  model_folder.check_same_model(folder, shapes, *model, **options)


def prepare_resume(folder):
  last = checkpoint_files.last_checkpoint(str(folder))
  checkpoint_files.prepare_resume(str(folder), last)


@pytest.mark.unit
def test_a_folder_without_a_checkpoint_is_accepted_for_any_model(tmp_path):
  write_model_files(tmp_path)
  check_folder(tmp_path, MODEL | {"task": "other"}, CONFIG)


def test_a_folder_without_model_json_is_checked_by_its_number_of_outputs(
  checkpoint, tmp_path
):
  check_folder(tmp_path, MODEL, CONFIG, num_outputs=2)
  with pytest.raises(InputError, match=r"outputs 2.*is 3"):
    check_folder(tmp_path, MODEL, CONFIG, num_outputs=3)


def test_a_released_checkpoint_may_have_the_format_of_one_file(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable("weight", [2])
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver(write_version=tf.train.SaverDef.V1)
    path = saver.save(session, f"{tmp_path}/bert_model.ckpt")
  assert checkpoint_files.find_checkpoint(str(tmp_path)) == path


def test_the_trained_checkpoint_is_the_best_or_the_last(checkpoint, tmp_path):
  folder = str(tmp_path)
  assert checkpoint_files.trained_checkpoint(None) is None
  assert checkpoint_files.trained_checkpoint(str(tmp_path / "nothing")) is None
  assert checkpoint_files.trained_checkpoint(folder) == checkpoint
  best = checkpoint_files.save_best(folder, checkpoint)
  assert checkpoint_files.trained_checkpoint(folder) == best
  assert best == str(tmp_path / "best" / "model.ckpt-7")
  # Training still resumes from the last one.
  assert tf.train.latest_checkpoint(folder) == checkpoint


def test_a_model_in_output_dir_precedes_init_checkpoint(checkpoint, tmp_path):
  full, empty = str(tmp_path), str(tmp_path / "empty")
  own = checkpoint_files.Start(checkpoint, checkpoint, trained=checkpoint)
  assert checkpoint_files.find_start(None, full, may_be_new=False) == own
  resumed = checkpoint_files.find_start(None, full, may_be_new=True)
  assert resumed == own._replace(step=7)
  initial = checkpoint_files.find_start(checkpoint, empty, may_be_new=False)
  assert initial == checkpoint_files.Start(trained=checkpoint)
  new = checkpoint_files.find_start(checkpoint, empty, may_be_new=True)
  assert new == checkpoint_files.Start()
  with pytest.raises(InputError, match="empty: holds no trained model"):
    checkpoint_files.find_start(None, empty, may_be_new=False)
  with pytest.raises(InputError, match="gone: no such checkpoint"):
    checkpoint_files.find_checkpoint(str(tmp_path / "gone"))


def test_resume_never_and_must_are_enforced():
  last = "out/model.ckpt-7"
  for when, path in ("auto", last), ("auto", None), ("never", None):
    checkpoint_files.check_resume(when, "out", path)
  checkpoint_files.check_resume("must", "out", last)
  with pytest.raises(InputError, match=r"holds model\.ckpt-7.*--resume=never"):
    checkpoint_files.check_resume("never", "out", last)
  with pytest.raises(InputError, match=r"no checkpoint.*--resume=must"):
    checkpoint_files.check_resume("must", "out", None)


# Incomplete and corrupt checkpoints


def truncated(content):
  return content[:-1]


def damage(checkpoint, ending=DATA, change=truncated):
  path = pathlib.Path(checkpoint + ending)
  path.write_bytes(change(path.read_bytes()))


@parametrize(
  "ending, change, message",
  (DATA, truncated, rf"{DATA}: is incomplete, has \d+ of \d+ bytes"),
  (".index", truncated, r"\.index: cannot be read"),
  (DATA, wrong_input_files.flip(300), f"{DATA}: is corrupt"),
)
def test_training_resumes_from_the_last_complete_checkpoint(
  checkpoint, tmp_path, caplog, ending, change, message
):
  folder = str(tmp_path)
  middle, last = as_step(checkpoint, 20), as_step(checkpoint, 70)
  checkpoint_files.write_state_file(folder, last)
  damage(last, ending, change)
  for _ in range(2):  # with one warning
    assert checkpoint_files.last_checkpoint(folder) == middle
  (warning,) = warnings_of(caplog)
  assert re.search(f"^{last}{message}.*{middle} instead$", warning)
  assert_refused(f"^{last}{message}", checkpoint_files.check_checkpoint, last)
  # Only `prepare_resume` changes the folder.
  assert tf.train.latest_checkpoint(folder) == last
  prepare_resume(folder)
  state = tf.train.get_checkpoint_state(folder)
  assert state.model_checkpoint_path == middle
  assert list(state.all_model_checkpoint_paths) == [checkpoint, middle]


@parametrize("value", np.nan, np.inf)
def test_training_does_not_start_from_nan_or_inf(checkpoint, tmp_path, value):
  bias = np.array([0, value], np.float32)
  bad = saved_as(tmp_path / "bad.ckpt", checkpoint, output_bias=bias)
  empty = str(tmp_path / "empty")
  with pytest.raises(InputError, match=r"bad\.ckpt: output_bias"):
    checkpoint_files.find_start(bad, empty, may_be_new=True)
  start = checkpoint_files.find_start(bad, empty, may_be_new=False)
  assert start.trained == bad


@parametrize("state", None, b"", b"\0" * 99, b"model_check")
def test_without_a_state_file_the_highest_step_is_the_last(
  checkpoint, tmp_path, caplog, state
):
  last = as_step(checkpoint, 70)
  (tmp_path / "checkpoint").unlink()
  if state is not None:
    (tmp_path / "checkpoint").write_bytes(state)
  assert checkpoint_files.last_checkpoint(str(tmp_path)) == last
  assert warnings_of(caplog) == [
    f"{tmp_path}: no `checkpoint` file names the last checkpoint. Using {last}"
    " instead"
  ]


def test_a_state_file_may_name_an_older_step(checkpoint, tmp_path, caplog):
  as_step(checkpoint, 70)
  assert checkpoint_files.last_checkpoint(str(tmp_path)) == checkpoint
  assert not warnings_of(caplog)


def test_without_usable_checkpoint_nothing_starts_over(checkpoint, tmp_path):
  last = as_step(checkpoint, 70)
  checkpoint_files.write_state_file(str(tmp_path), last)
  damage(last)
  damage(checkpoint)
  message = r"ckpt-70\.data\S+: is incomplete.*ckpt-7\.data\S+: is incomplete"
  for use in (checkpoint_files.last_checkpoint, prepare_resume):
    assert_refused(message, use, str(tmp_path))


def test_deleted_checkpoints_in_a_state_file_are_an_error(checkpoint, tmp_path):
  for path in tmp_path.glob("model.ckpt-*"):
    path.unlink()
  with pytest.raises(InputError, match=r"ckpt-7: there is no such"):
    checkpoint_files.last_checkpoint(str(tmp_path))


def test_an_incomplete_step_0_is_ignored(checkpoint, tmp_path, caplog):
  first = as_step(checkpoint, 0)
  for path in tmp_path.glob("model.ckpt-7.*"):
    path.unlink()
  checkpoint_files.write_state_file(str(tmp_path), first)
  damage(first, ".index")
  assert run_outputs.steps_done(tmp_path) == 0
  assert "saved at step 0" in warnings_of(caplog)[0]
  prepare_resume(tmp_path)
  assert not (tmp_path / "checkpoint").exists()


def test_training_starts_anew_from_weights_saved_without_moments(tmp_path):
  with tf.Graph().as_default():
    build(tiny_model.config(9))
    weights = {
      v.op.name: np.zeros(v.shape, np.float32) for v in tf.global_variables()
    }
  path = str(tmp_path / "model.ckpt-0")
  checkpoint_files.write_variables(path, weights | {"global_step": np.int64(0)})
  checkpoint_files.write_state_file(str(tmp_path), path)
  start = functools.partial(checkpoint_files.find_start, None, str(tmp_path))
  assert start(may_be_new=False).trained == path  # can be evaluated
  assert start(may_be_new=True).last is None
  checkpoint_files.prepare_resume(str(tmp_path), None)
  assert not (tmp_path / "checkpoint").exists()


def test_initial_weights_go_after_a_kill_at_the_first_save(
  checkpoint, tmp_path
):
  as_step(checkpoint, 0)
  prepare_resume(tmp_path)
  assert not [*tmp_path.glob("model.ckpt-0.*")]
  assert [*tmp_path.glob("model.ckpt-7.*")]


def test_files_of_interrupted_saves_are_removed(checkpoint, tmp_path):
  kept = {path.name for path in tmp_path.iterdir()}
  (tmp_path / "model.ckpt-9_temp").mkdir()
  (tmp_path / "model.ckpt-9_temp" / "part-00000-of-00001.index").touch()
  (tmp_path / f"model.ckpt-9{DATA}.tempstate123").touch()
  (tmp_path / "checkpoint.tmp0123456789abcdef").touch()
  prepare_resume(tmp_path)
  assert {path.name for path in tmp_path.iterdir()} == kept


@parametrize(
  "name",
  "model.ckpt-9-hf/config.json",
  "model.ckpt-9_results.json",
  "notes.ckpt-9.txt",
  "model.ckpt-old.index",
  "good.ckpt-100.meta",
  "model.ckpt-8_temp/notes.txt",
  "checkpoint.tmp.backup",
)
def test_files_of_the_user_are_kept(checkpoint, tmp_path, name):
  best = tmp_path / "best"
  for folder in (tmp_path, best):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("kept")
  checkpoint_files.save_best(str(tmp_path), checkpoint)
  prepare_resume(tmp_path)
  for folder in (tmp_path, best):
    assert (folder / name).read_text() == "kept"


def test_a_truncated_best_checkpoint_is_an_error(checkpoint, tmp_path):
  damage(checkpoint_files.save_best(str(tmp_path), checkpoint))
  with pytest.raises(InputError, match=r"best/.*data.* incomplete"):
    checkpoint_files.trained_checkpoint(str(tmp_path))


@parametrize("sharded", False, True)
def test_a_saved_checkpoint_is_complete_to_the_byte(tmp_path, sharded):
  with tf.Graph().as_default(), tf.Session() as session:
    rows = tf.fixed_size_partitioner(3)
    tf.get_variable("parts", [101, 10], partitioner=rows)
    tf.get_variable("half", [7], tf.float16, tf.zeros_initializer())
    tf.get_variable("empty", [0, 3])
    tf.train.create_global_step()
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver(sharded=sharded)
    path = saver.save(session, str(tmp_path / "model.ckpt"), 3)
  assert checkpoint_files.last_checkpoint(str(tmp_path)) == path
  damage(path)
  size = 101 * 10 * 4 + 14 + 8
  with pytest.raises(InputError, match=f"{size - 1} of {size} by"):
    checkpoint_files.last_checkpoint(str(tmp_path))


def test_the_best_checkpoint_has_weights_and_model_files(checkpoint, tmp_path):
  write_model_files(tmp_path)
  checkpoint_files.save_best(str(tmp_path), checkpoint)
  best = str(tmp_path / "best")
  kept = run_outputs.read_variables(checkpoint_files.trained_checkpoint(best))
  known = run_outputs.read_variables(checkpoint)
  assert kept.keys() == known.keys() - {"output_bias/adam_m"}
  for name, value in kept.items():
    np.testing.assert_array_equal(value, known[name], err_msg=name)
    assert value.dtype == known[name].dtype
  # `best` is a complete model folder.
  check_folder(best, MODEL, CONFIG, num_outputs=2)
  for name in ("model.json", "vocab.txt"):
    copied = (tmp_path / "best" / name).read_text()
    assert copied == (tmp_path / name).read_text()


def saved_as(path, checkpoint, **changed):
  """Writes the variables of a checkpoint, with other values; the path."""
  variables = run_outputs.read_variables(checkpoint) | changed
  checkpoint_files.write_variables(str(path), variables)
  return str(path)


def as_step(checkpoint, step):
  path = checkpoint.replace("ckpt-7", f"ckpt-{step}")
  return saved_as(path, checkpoint, global_step=np.int64(step))


def test_the_old_best_stays_until_the_new_one_is_complete(
  checkpoint, tmp_path, monkeypatch
):
  def killed(*_):
    raise KeyboardInterrupt

  later = as_step(checkpoint, 8)
  old = checkpoint_files.save_best(str(tmp_path), checkpoint)
  for module, name in (
    (checkpoint_files, "write_variables"),
    (files, "atomic_write"),
  ):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      patch.setattr(module, name, killed)
      checkpoint_files.save_best(str(tmp_path), later)
    assert checkpoint_files.trained_checkpoint(str(tmp_path)) == old
    checkpoint_files.check_checkpoint(old)
  new = checkpoint_files.save_best(str(tmp_path), later)
  assert checkpoint_files.trained_checkpoint(str(tmp_path)) == new
  expected = {*("checkpoint", "model.ckpt-8.index", f"model.ckpt-8{DATA}")}
  assert {path.name for path in (tmp_path / "best").iterdir()} == expected


# Loaded models


class Loaded(predictor.LoadedModel):
  """Computes the logits of the checkpoint's classifier."""

  record = RECORD

  @staticmethod
  def build(description, config, inputs, compute):
    tokens = (inputs[name] for name in model_inputs.TOKEN_FEATURES)
    model = modeling.BertModel(config, False, *tokens, compute=compute)
    return modeling.classification_logits(model.get_pooled_output(), 2)


def row_of(ids, padding=0):
  zeros = [0] * padding
  mask, segments = [1] * len(ids), [i % 2 for i in range(len(ids))]
  rows = ([*row, *zeros] for row in (ids, mask, segments))
  return dict(zip(model_inputs.TOKEN_FEATURES, rows))


ROWS = [row_of([1, 2, 3])]


def logits(folder, *arguments, rows=ROWS, **options):
  with Loaded(str(folder), *arguments, **options) as model:
    return np.float32(model.run(rows))


@pytest.mark.train
def test_texts_are_computed_in_batches_and_blocks_and_returned_in_order(
  checkpoint, tmp_path, monkeypatch
):
  write_model_files(tmp_path)
  rng = np.random.default_rng(3)
  random_weights = {  # so that rows differ
    name: rng.normal(size=value.shape).astype(value.dtype)
    for name, value in run_outputs.read_variables(checkpoint).items()
  }
  checkpoint_files.write_variables(checkpoint, random_weights)
  monkeypatch.setattr(batch_predictor.BatchPredictor, "tokens_per_batch", 24)
  texts = [rng.integers(1, 9, length) for length in (3, 12, 5, 5, 1, 12, 7)]
  alone = logits(tmp_path, checkpoint, 1, rows=[*map(row_of, texts)])
  gaps = np.abs(alone[:, None] - alone).max(axis=-1)
  assert gaps[~np.eye(len(texts), dtype=bool)].min() > 1e-2
  for batch_size in (2, 4, 32, None):
    with Loaded(str(tmp_path), checkpoint, batch_size) as model:
      for padding, block_size in ((0, 3), (4, 8), (4, 7)):
        monkeypatch.setattr(batch_predictor, "_BLOCK_SIZE", block_size)

        def encode(block, padding=padding):
          return map(len, block), [row_of(text, padding) for text in block]

        found = model.predict_blocks(iter(texts), encode, zip)
        assert [length for length, _ in found] == [*map(len, texts)]
        found = [output for _, output in found]
        np.testing.assert_allclose(found, alone, rtol=0, atol=1e-5)
      assert model.predict_blocks([], lambda block: (block, block), zip) == []


def threads_of_a_model(folder, checkpoint, num_threads):
  with Loaded(folder, checkpoint, num_threads=num_threads) as model:
    model.run(ROWS)
    return len(os.listdir("/proc/self/task"))


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_num_threads_is_the_number_of_threads(checkpoint, tmp_path):
  write_model_files(tmp_path)
  counts = []
  for num_threads in (1, 9):
    # TensorFlow starts its threads once per process.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
      arguments = str(tmp_path), checkpoint, num_threads
      counts.append(pool.apply(threads_of_a_model, arguments))
  assert counts[1] - counts[0] == 8


# Half the distance from 1 to the next larger number.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@parametrize("precision", *ROUNDING)
def test_constants_and_variables_agree_within_rounding(
  checkpoint, tmp_path, monkeypatch, precision
):
  write_model_files(tmp_path)
  rows = [row_of([1, 2, 3]), row_of([4, 5])]
  options = {"precision": precision, "rows": rows}
  constants = logits(tmp_path, checkpoint, **options)
  monkeypatch.setattr(model_folder, "num_weights", lambda config: 2**29)
  variables = logits(tmp_path, checkpoint, **options)
  # Kernels for constant weights may sum in another order.
  rounding = 4 * ROUNDING[precision]
  np.testing.assert_allclose(constants, variables, rtol=rounding, atol=rounding)
  exact = logits(tmp_path, checkpoint, rows=rows)
  np.testing.assert_allclose(constants, exact, rtol=0.02, atol=0.02)
  assert (constants != exact).any()


@parametrize("precision", "float32", "bfloat16")
def test_a_model_whose_training_goes_on_is_loaded(
  checkpoint, tmp_path, monkeypatch, precision
):
  write_model_files(tmp_path)
  check_trained = initialize.check_trained
  before = logits(tmp_path, precision=precision)

  def train_on_first(path, *args):
    if path == checkpoint:
      train_on(checkpoint, tmp_path)
    check_trained(path, *args)

  monkeypatch.setattr(initialize, "check_trained", train_on_first)
  after = logits(tmp_path, precision=precision)
  np.testing.assert_allclose(after, before, rtol=0, atol=0.02)


def test_a_folder_without_a_model_of_the_script_is_refused(tmp_path):
  write_model_files(tmp_path)
  assert_refused("holds no model that labels texts", Loaded, str(tmp_path))
  write_checkpoint(tmp_path)
  write_model_files(tmp_path, script="run_ner")
  assert_refused("holds no model that labels texts", Loaded, str(tmp_path))


@pytest.mark.unit
def test_a_missing_config_is_named(tmp_path):
  with pytest.raises(InputError, match=r"cannot be read .* name the model"):
    model_folder.load_config(str(tmp_path / "none.json"))


@pytest.mark.unit
@parametrize(
  "changed, problem",
  ({"kind": "regression"}, "has 2 labels, but regression has none"),
  ({"kind": "classification", "labels": []}, "has 0 labels; classificatio"),
  ({"labels": ["0", "0"]}, "repeats a label"),
  ({"script": "run_ner", "labels": []}, "has no labels"),
  ({"max_seq_length": float("nan")}, "max_seq_length is NaN, not an integer"),
  ({"doc_stride": 0}, "doc_stride is 0, not an integer from 1 to"),
  ({"precision": "int4"}, 'precision is "int4", not one of float32'),
  ({"thresholds": {"0": 1.5}}, "thresholds.0 is 1.5, not a number from 0"),
  ({"thresholds": {"0": "0.5"}}, "thresholds.0 is '0.5'"),
  ({"thresholds": {"2": 0.5}}, "has a threshold of '2', no label"),
  ({"matryoshka_dims": [8, 0]}, "matryoshka_dims is [8, 0]"),
  ({"null_score_diff_threshold": float("nan")}, "null_score_diff_threshold"),
  ({"prompts": {"query": 3}}, "embedding.prompts.query is 3, not text"),
  ({"default_prompt": "query"}, "default_prompt is 'query', which is no pro"),
)
def test_values_of_model_json_are_checked(tmp_path, changed, problem):
  if changed.keys() & vars(embedding_spec.EmbeddingSpec()).keys():
    changed = {"script": "run_embeddings", "embedding": EMBEDDING | changed}
  squad = {"doc_stride", "max_query_length", "null_score_diff_threshold"}
  if changed.keys() & squad:
    changed = {"script": "run_squad", **changed}
  path, description = tmp_path / "model.json", MODEL | changed
  path.write_text(json.dumps(description))
  task = task_record.find(description["script"])
  message = refusal(model_description.load, str(tmp_path), task)
  assert message.startswith(f"{path}: ") and problem in message
