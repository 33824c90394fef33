"""Tests of ELECTRA: samples, replaced tokens, losses, tables, resuming."""

import dataclasses
import json
import re
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_pretraining
import wrong_input_world
from parametrize import parametrize
from scipy import special
from tiny_pretraining import CONFIG, NUM_PREDICTIONS, SEQ_LENGTH, random_example

import export_model
import modeling
import run_pretraining
from bertlib.export import onnx_folder
from bertlib.tasks.pretraining import electra
from bertlib.tasks.pretraining.objectives import ELECTRA
from bertlib.training import train_step

pytestmark = pytest.mark.graph

CONFIG = modeling.BertConfig.from_dict(
  CONFIG.to_dict() | {"embedding_size": 8, "generator_hidden_size": 0.5}
)
WORDS = "the", "[MASK]", "sat"
DISENTANGLED = dataclasses.replace(ELECTRA, is_disentangled=True)


def batch_of(num_examples):
  """A batch of random examples, with the draws of their samples."""
  rng = np.random.default_rng(0)
  rows = [random_example(rng)[1] for _ in range(num_examples)]
  batch = {
    name: np.array(
      [row[name] for row in rows],
      np.float32 if name.endswith("weights") else np.int32,
    )
    for name in rows[0]
  }
  del batch["next_sentence_labels"]
  draws = rng.random([num_examples, NUM_PREDICTIONS], np.float32)
  return batch | {"masked_lm_draws": draws}


def encoder_of(batch, objective=ELECTRA):
  arguments = CONFIG, False, batch, False
  return run_pretraining.create_encoder(*arguments, objective=objective)


def loss_of(batch, objective=ELECTRA, total_weights=None):
  batch = {name: tf.constant(values) for name, values in batch.items()}
  model = encoder_of(batch, objective)
  return run_pretraining.pretraining_loss(
    CONFIG, model, batch, total_weights, objective
  )


def initialize(session):
  """Gives all weights values of which no two are equal."""
  rng = np.random.default_rng(1)
  session.run(tf.global_variables_initializer())
  for variable in tf.trainable_variables():
    mean = float("gamma" in variable.name)
    variable.load(rng.normal(mean, 0.3, variable.shape.as_list()), session)


def test_samples_follow_the_distribution(session):
  logits = np.array([0.0, 3.0, -1.0, 1.0, 2.0])
  count = 10000
  draws = (np.arange(count, dtype=np.float32) + 0.5) / count
  log_probs = np.tile(special.log_softmax(logits), [count, 1])
  samples = electra.sample_tokens(
    tf.constant(log_probs, tf.float32), draws[:, np.newaxis], temperature=2.0
  )
  found = np.bincount(session.run(samples), minlength=5) / count
  np.testing.assert_allclose(found, special.softmax(logits / 2), atol=2e-4)


def test_samples_of_a_large_vocabulary_are_exact(session):
  rng = np.random.default_rng(2)
  log_probs = special.log_softmax(rng.normal(0, 3, [64, 30522]), axis=1)
  draws = rng.random([64, 1], np.float32)
  samples = electra.sample_tokens(tf.constant(log_probs, tf.float32), draws)
  ends = np.cumsum(np.exp(log_probs), axis=1)
  expected = (ends <= draws * ends[:, -1:]).sum(axis=1)
  np.testing.assert_array_equal(session.run(samples), expected)


def test_only_masks_are_replaced_and_equal_samples_are_original(session):
  batch = batch_of(6)
  batch["masked_lm_ids"][0, 0] = 7  # what each sample will be
  size = 6 * NUM_PREDICTIONS
  log_probs = np.full([size, CONFIG.vocab_size], -50.0, np.float32)
  log_probs[:, 7] = 0.0
  found = session.run(
    electra.replace_tokens(
      {n: tf.constant(v) for n, v in batch.items()}, log_probs, 1.0
    )
  )
  expected, labels = batch["input_ids"].copy(), np.zeros([6, SEQ_LENGTH])
  for row, slot in np.argwhere(batch["masked_lm_weights"]):
    position = batch["masked_lm_positions"][row, slot]
    expected[row, position] = 7
    labels[row, position] = batch["masked_lm_ids"][row, slot] != 7
  np.testing.assert_array_equal(found["replaced_ids"], expected)
  np.testing.assert_array_equal(found["disc_labels"], labels)
  assert labels[0].sum() < batch["masked_lm_weights"][0].sum()


def test_losses_and_metrics_are_those_of_their_definitions(session):
  batch = batch_of(8)
  total, measured = loss_of(batch)
  with tf.variable_scope("", reuse=True):
    model = encoder_of({n: tf.constant(v) for n, v in batch.items()})
    ids = tf.placeholder(tf.int32, [None, None])
    logits = model.replaced_token_logits(ids)
    words = modeling.masked_lm_logits(
      CONFIG, run_pretraining.masked_states(model), model.get_embedding_table()
    )
  function, tensors = run_pretraining.eval_metrics(measured)
  updates = function(*tensors)
  initialize(session)
  session.run(tf.local_variables_initializer())
  session.run({name: update for name, (_, update) in updates.items()})
  values = {name: value for name, (value, _) in updates.items()}
  found, total, words = session.run([values, total, words])

  shape = [8, NUM_PREDICTIONS, CONFIG.vocab_size]
  words = special.log_softmax(words, axis=-1).reshape(shape)
  draws = batch["masked_lm_draws"][..., np.newaxis]
  samples = (np.cumsum(np.exp(words), -1) <= draws).sum(-1)
  replaced, labels = batch["input_ids"].copy(), np.zeros([8, SEQ_LENGTH], bool)
  losses = []
  for row, slot in np.argwhere(batch["masked_lm_weights"]):
    position = batch["masked_lm_positions"][row, slot]
    original = batch["masked_lm_ids"][row, slot]
    losses.append(-words[row, slot, original])
    replaced[row, position] = samples[row, slot]
    labels[row, position] = samples[row, slot] != original
  is_token = batch["input_mask"] > 0
  labels = labels[is_token]
  scores = session.run(logits, {ids: replaced})[is_token]
  disc = np.mean(np.logaddexp(0.0, np.where(labels, -scores, scores)))
  pairs = scores[labels][:, np.newaxis] - scores[~labels]
  expected = {
    "masked_lm_loss": np.mean(losses),
    "disc_loss": disc,
    "disc_accuracy": np.mean((scores > 0) == labels),
    "disc_precision": labels[scores > 0].mean(),
    "disc_recall": (scores > 0)[labels].mean(),
    "sampled_masked_lm_accuracy": 1.0 - labels.sum() / len(losses),
  }
  for name, value in expected.items():
    assert found[name] == pytest.approx(value, abs=1e-5), name
  assert found["disc_auc"] == pytest.approx((pairs > 0).mean(), abs=0.01)
  assert total == pytest.approx(np.mean(losses) + 50.0 * disc, rel=1e-5)


@parametrize("objective", ELECTRA, DISENTANGLED)
def test_the_discriminator_trains_no_weight_of_a_generator(session, objective):
  only_disc = dataclasses.replace(objective, masked_lm_weight=0.0)
  loss, _ = loss_of(batch_of(4), only_disc)
  variables = tf.trainable_variables()
  gradients = {
    variable.op.name: tf.convert_to_tensor(gradient)
    for variable, gradient in zip(variables, tf.gradients(loss, variables))
    if gradient is not None
  }
  initialize(session)
  found = session.run(gradients)
  trained = {name for name, gradient in found.items() if gradient.any()}
  names = {variable.op.name for variable in variables}
  tables = {n for n in names if n.startswith("bert/embeddings/")}
  assert not {n for n in trained if n.startswith(("generator/", "cls/"))}
  if objective.is_disentangled:
    assert not tables
    tables = {n for n in names if n.startswith("bert/embeddings_added/")}
    assert len(tables) == 5
  assert tables <= trained
  assert "generator/embeddings_project/kernel" not in names  # 8 wide as well


def test_own_tables_begin_at_the_generators(session):
  losses = []
  for objective in (ELECTRA, DISENTANGLED):
    with tf.Graph().as_default(), tf.Session() as own:
      loss, _ = loss_of(batch_of(4), objective)
      own.run(tf.global_variables_initializer())
      for variable in tf.trainable_variables():
        name = variable.op.name.replace("generator/emb", "bert/emb")
        draw = np.random.RandomState(sum(map(ord, name)))
        if "_added" not in name:
          variable.load(draw.normal(0, 0.3, variable.shape.as_list()), own)
      losses.append(own.run(loss))
  assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_micro_batches_add_up_to_the_batch(session):
  # Of other numbers of tokens and masks; the draws are those of the examples.
  features = {n: tf.constant(v) for n, v in batch_of(32).items()}
  found = []
  for num_micro_batches in (1, 2):
    arguments = train_step.TrainingArguments(
      None, 1.0, 1, 0, False, num_micro_batches=num_micro_batches
    )

    def loss_fn(batch, _, arguments=arguments):
      totals = run_pretraining.loss_normalizers(features, arguments, ELECTRA)
      arguments = CONFIG, encoder_of(batch), batch, totals, ELECTRA
      loss, measured = run_pretraining.pretraining_loss(*arguments)
      return loss, run_pretraining.measured_means(measured, totals)

    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
      gradients = train_step.compute_gradients(
        loss_fn, features, num_micro_batches
      )
    dense = [tf.convert_to_tensor(g) for g in gradients.gradients]
    found.append((gradients.loss, gradients.scalars, dense))
  initialize(session)
  whole, parts = (tf.nest.flatten(values) for values in session.run(found))
  for one, other in zip(whole, parts, strict=True):
    atol = 1e-6 * max(np.abs(one).max(), 1)
    np.testing.assert_allclose(other, one, atol=atol)


@pytest.fixture(name="folder", scope="module")
def data_folder(tmp_path_factory):
  """Records, and the config of a small generator and discriminator."""
  folder = tmp_path_factory.mktemp("electra")
  tiny_pretraining.write_data(folder)
  (folder / "bert_config.json").write_text(CONFIG.to_json_string())
  return folder


def pretraining(folder, name, *more):
  values = {"output_dir": folder / name, "vocab_file": folder / "vocab.txt"}
  values |= {"num_train_steps": 6, "save_checkpoints_steps": 3}
  flags = tiny_pretraining.flags(folder, objective="electra", **values)
  switches = "--do_train", "--remask", "--xla=off"
  return ["run_pretraining.py", *switches, *flags, *more]


@pytest.fixture(name="whole", scope="module")
def whole_training(folder):
  """Output folder of a training and its evaluation."""
  evaluate = "--do_eval", f"--eval_input_file={folder}/held_out.tfrecord"
  commands.succeed(*pretraining(folder, "whole", *evaluate))
  return folder / "whole"


@pytest.mark.train
def test_results_have_the_metrics_of_the_objective(whole):
  found = run_outputs.read_numbers(whole / "eval_results.txt")
  assert {*ELECTRA.metrics} <= {*found}


@pytest.mark.train
def test_resumed_training_ends_with_the_same_weights(folder, whole):
  resumed = folder / "resumed"
  resumed.mkdir()
  for path in whole.glob("model.ckpt-3.*"):
    shutil.copy(path, resumed)
  done = commands.succeed(*pretraining(folder, "resumed"))
  assert "from step 3 to" in done.stderr
  run_outputs.assert_same_variables(resumed, whole)


@pytest.mark.train
def test_other_weights_of_the_losses_are_refused(folder, whole):
  changed = folder / "changed"
  shutil.copytree(whole, changed)
  replaced = run_outputs.read_json(changed / "model.json")["replaced_tokens"]
  replaced["disc_weight"] = 25.0
  run_outputs.edit_json(changed / "model.json", replaced_tokens=replaced)
  values = {"output_dir": changed, "objective": "electra"}
  flags = tiny_pretraining.flags(folder, **values)
  done = commands.fail("run_pretraining.py", "--do_train", *flags)
  assert "a model with replaced_tokens disc_weight 25.0, but" in str(done)


@pytest.mark.train
def test_training_goes_on_with_the_objective_of_the_model(folder, whole):
  values = {"output_dir": folder / "next", "init_checkpoint": whole}
  values |= {"bert_config_file": None, "num_train_steps": 5}
  flags = tiny_pretraining.flags(folder, **values)
  done = commands.succeed("run_pretraining.py", "--do_train", *flags)
  assert "disc loss" in done.stderr


@pytest.mark.train
def test_a_generator_without_a_description_needs_the_flag(folder, whole):
  target = folder / "bare"
  target.mkdir()
  for path in (*whole.glob("model.ckpt-6.*"), whole / "bert_config.json"):
    shutil.copy(path, target)
  values = {"output_dir": folder / "none", "init_checkpoint": target}
  flags = tiny_pretraining.flags(folder, **values)
  done = commands.fail("run_pretraining.py", "--do_train", *flags)
  assert "has a generator beside the model. Give --objective=elec" in str(done)
  assert not (folder / "none").exists()


@pytest.mark.train
def test_another_objective_is_refused_before_the_first_write(folder, whole):
  description = (whole / "model.json").read_text()
  values = {"output_dir": whole, "objective": "mlm_nsp"}
  flags = tiny_pretraining.flags(folder, **values)
  done = commands.fail("run_pretraining.py", "--do_train", *flags)
  assert "a model with objective 'electra', but this run's is" in str(done)
  assert (whole / "model.json").read_text() == description


@pytest.mark.train
@parametrize("encoder", False, True)
def test_exports_have_the_weights_of_their_network(whole, encoder):
  source = export_model.find_source(str(whole), None, None, None, True, None)
  model = export_model.signature_model(source, encoder)
  shapes = export_model.weight_shapes(model)
  weights = export_model.read_weights(source.checkpoint, shapes)
  used = {re.match(r"(cls|generator|\w+/\w+)", name)[0] for name in shapes.used}
  if encoder:
    expected = {"embeddings", "embeddings_project", "encoder"}
    assert used == {f"bert/{name}" for name in expected}
    assert not shapes.unused  # no pooler
  else:
    assert used == {"bert/embeddings", "generator", "cls"}
  assert shapes.used.keys() <= weights.keys()


@pytest.mark.train
def test_masks_are_filled_by_the_generator(whole, folder):
  path = folder / "texts.txt"
  path.write_text("the [MASK] sat\n")
  paths = f"--predict_file={path}", f"--output_dir={whole}"
  commands.succeed("run_pretraining.py", "--do_predict", "--xla=off", *paths)
  (line,) = (whole / "predictions.jsonl").read_text().splitlines()
  ((best, *_),) = json.loads(line)["masks"]
  variables = run_outputs.read_variables(whole)
  with tf.Graph().as_default(), tf.Session() as session:
    batch = {
      name: tf.constant(values, tf.int32)
      for name, values in {
        "input_ids": [[2, *map(tiny_pretraining.VOCAB.index, WORDS), 3]],
        "input_mask": [[1] * 5],
        "segment_ids": [[0] * 5],
        "masked_lm_positions": [[2]],
      }.items()
    }
    (logits,) = run_pretraining.create_model(
      CONFIG, batch, False, objective=ELECTRA
    )
    for variable in tf.trainable_variables():
      # Nothing of the discriminator's layers has an influence.
      if not variable.op.name.startswith("bert/encoder"):
        variable.load(variables[variable.op.name], session)
    probabilities = special.softmax(session.run(logits)[0])
  assert best["token"] == tiny_pretraining.VOCAB[probabilities.argmax()]
  assert best["probability"] == pytest.approx(probabilities.max(), abs=1e-5)


@pytest.mark.slow
@parametrize("script", "run_classifier", "run_squad", "run_ner")
def test_own_models_are_fine_tuned_and_exported(whole, world, tmp_path, script):
  pytest.importorskip("onnx", reason="pip install -e .[onnx]")
  out = tmp_path / "out"
  given = wrong_input_world.COMMANDS[script]
  commands.succeed(
    f"{script}.py",
    *(text.format(world=world, out=out) for text in given),
    f"--init_checkpoint={whole}/model.ckpt-6",
    *(f"--bert_config_file={whole}/bert_config.json", "--layer_decay=0.8"),
    f"--vocab_file={whole}/vocab.txt",
  )
  # Compared with modeling.py before it is written.
  target = f"--model_dir={out}", f"--export_dir={tmp_path}/onnx"
  commands.succeed("export_model.py", *target, "--format=onnx")
  assert (tmp_path / "onnx" / onnx_folder.MODEL_FILE).is_file()
