"""Tests of pretraining: its input, its masks, and its command line."""

import collections
import functools
import math
import random
import re
import shutil
import types

import commands
import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow as tf_v2
import tensorflow.compat.v1 as tf
import tiny_model
import trained_models
from parametrize import parametrize
from pretraining_corpus import assert_share, read_file
from reference_data import read_jsonl
from scipy import special
from tiny_pretraining import (
  CLS,
  CONFIG,
  MASK,
  NUM_PREDICTIONS,
  PAD,
  SEP,
  SEQ_LENGTH,
  TEXTS,
  TOKENIZER,
  VOCAB,
  flags,
  random_example,
)

import modeling
import optimization
import run_pretraining
import tokenization
from bertlib.checkpoints import initialize
from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.data import input_pipeline, model_inputs, tf_records
from bertlib.tasks.classification import classification_records
from bertlib.tasks.pretraining import (
  dynamic_masking,
  masking,
  objectives,
  pretraining_inputs,
  pretraining_instances,
  training_batches,
)
from bertlib.tasks.pretraining.settings import PretrainingSettings

pytestmark = pytest.mark.graph


SIZES = SEQ_LENGTH, NUM_PREDICTIONS
LAYOUT = pretraining_instances.record_layout(*SIZES)
METRICS = ["loss", "masked_lm_accuracy", "masked_lm_loss"]
METRICS += ["next_sentence_accuracy", "next_sentence_loss"]

place = trained_models.data_fixture("pretraining")
trained = trained_models.fixture("pretraining")  # on new masks


def ids_of(line):
  return [VOCAB.index(token) for token in line.split()]


def pretrain(place, *actions, **changed):
  return commands.succeed(
    "run_pretraining.py", *actions, *flags(place, xla="off", **changed)
  )


def refuse(place, *actions, **changed):
  return commands.fail("run_pretraining.py", *actions, *flags(place, **changed))


def build_model(batch):
  """The graph of the model; its scores of both tasks."""
  return run_pretraining.create_model(
    CONFIG,
    {name: tf.constant(np.array(v, np.int32)) for name, v in batch.items()},
    use_one_hot_embeddings=False,
  )


def compute(folder, batch):
  """Runs the last model of a folder on a batch, without Estimator."""
  with tf.Graph().as_default(), tf.Session() as session:
    logits = build_model(batch)
    checkpoint = tf.train.latest_checkpoint(str(folder))
    tf.train.Saver(tf.trainable_variables()).restore(session, checkpoint)
    return session.run(logits)


modeling_golden = functools.partial(reference_data.golden, "modeling", "tiny")


def modeling_checkpoint():
  return modeling_golden("bert_model.ckpt.index").removesuffix(".index")


@pytest.fixture
def batch(graph):
  """The inputs of the reference's outputs."""
  inputs = np.load(modeling_golden("inputs.npz"))
  return {name: tf.constant(inputs[name]) for name in inputs.files}


def test_outputs_of_the_heads_equal_the_reference(session, batch):
  config = modeling.BertConfig.from_json_file(
    modeling_golden("bert_config.json")
  )
  expected = np.load(modeling_golden("outputs.npz"))
  model = modeling.BertModel(
    config, False, *(batch[name] for name in model_inputs.TOKEN_FEATURES)
  )
  masked_lm = run_pretraining.get_masked_lm_output(
    config,
    model.get_sequence_output(),
    model.get_embedding_table(),
    *(batch[f"masked_lm_{name}"] for name in ("positions", "ids", "weights")),
  )
  next_sentence = run_pretraining.get_next_sentence_output(
    config, model.get_pooled_output(), batch["next_sentence_labels"]
  )
  initialize.initialize_from_checkpoint(modeling_checkpoint())
  session.run(tf.global_variables_initializer())
  actual = session.run([masked_lm, next_sentence])
  for task, outputs in zip(("masked_lm", "next_sentence"), actual):
    names = ("loss", "per_example_loss", "log_probs")
    for name, output in zip(names, outputs):
      np.testing.assert_allclose(
        output, expected[f"{task}_{name}"], rtol=0, atol=1e-5, err_msg=name
      )


def test_a_decoded_record_has_int32(place):
  record, *_ = read_file(place / "held_out.tfrecord")
  feature = tf.FixedLenFeature([SEQ_LENGTH], tf.int64)
  decoded = run_pretraining._decode_record(record, {"input_ids": feature})
  assert decoded["input_ids"].dtype == tf.int32
  assert decoded["input_ids"][0] == CLS


@pytest.mark.process
def test_training_says_how_it_goes(trained):
  log = trained.log.splitlines()
  said = "Training on 42 records in 3 files (11.4 epochs), from step 0 to 60, 8"
  assert any(said in line for line in log)
  (last,) = (line for line in log if "step 60 of 60" in line)
  other = "gradient norm", "examples/s", "tokens", "tokens/s", "FLOP/s"
  for name in (*METRICS, "learning rate", *other, "of peak"):
    assert f" {name.replace('_', ' ')} " in last, name
  recorded = run_outputs.read_json(trained.folder / "run.json")["training"]
  assert recorded["device_peak"]["flops_per_second"] > 1e8


@pytest.mark.process
def test_tensorboard_has_training_and_evaluation(trained):
  of_training = run_outputs.read_scalars(trained.folder)
  assert {*METRICS, "learning_rate", "gradient_norm"} <= set(of_training)
  # The first step and every `LOG_STEPS`, as the lines of the log.
  assert sorted(of_training["masked_lm_loss"]) == [1, 20, 40, 60]
  of_evaluation = run_outputs.read_scalars(trained.folder / "dev")
  results = run_outputs.read_numbers(trained.folder / "eval_results.txt")
  for name in METRICS:
    assert of_evaluation[name][60] == pytest.approx(results[name])


@pytest.mark.process
def test_held_out_records_count_once_each(place, trained):
  assert "which is for training" not in trained.log
  results = run_outputs.read_numbers(trained.folder / "eval_results.txt")
  (batch,) = input_pipeline.record_batches(
    [str(place / "held_out.tfrecord")], LAYOUT, 16, False, False
  ).as_numpy_iterator()
  weights = batch.pop("masked_lm_weights").ravel()
  ids, labels = (
    batch.pop(n) for n in ("masked_lm_ids", "next_sentence_labels")
  )
  assert len(labels) == 10  # of which the last two are a batch of their own
  masked_lm, next_sentence = compute(trained.folder, batch)
  expected = {"global_step": 60}
  for task, logits, truth, weight in (
    ("masked_lm", masked_lm, ids.ravel(), weights),
    ("next_sentence", next_sentence, labels.ravel(), np.ones(10)),
  ):
    losses = -special.log_softmax(logits, axis=1)[np.arange(len(truth)), truth]
    correct = logits.argmax(axis=1) == truth
    expected[f"{task}_loss"] = np.average(losses, weights=weight)
    expected[f"{task}_accuracy"] = np.average(correct, weights=weight)
  assert results.pop("loss")
  assert results == pytest.approx(expected, abs=1e-5)


def tiny_model_fn(num_warmup_steps=0):
  config = run_outputs.read_json(modeling_golden("bert_config.json"))
  config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = 0.0
  config = modeling.BertConfig.from_dict(config)
  return run_pretraining.model_fn_builder(
    config, modeling_checkpoint(), 1e-3, 8, num_warmup_steps, False, False
  )


def test_scores_of_a_batch_equal_the_reference(session, batch):
  spec = tiny_model_fn()(batch, None, "eval", {"batch_size": 5})
  metric_fn, tensors = spec.eval_metrics
  updates = {name: of[1] for name, of in metric_fn(*tensors).items()}
  session.run(
    [tf.global_variables_initializer(), tf.local_variables_initializer()]
  )
  inputs, loss, scores = session.run([batch, spec.loss, updates])
  expected = np.load(modeling_golden("outputs.npz"))
  weights = inputs["masked_lm_weights"].ravel()
  guessed = expected["masked_lm_log_probs"].argmax(-1)
  is_correct = guessed == inputs["masked_lm_ids"].ravel()
  is_next = expected["next_sentence_log_probs"].argmax(-1)
  labels = inputs["next_sentence_labels"].ravel()
  of_tokens = expected["masked_lm_per_example_loss"]
  assert loss == pytest.approx(expected["total_loss"], abs=1e-5)
  assert scores == pytest.approx(
    {
      "masked_lm_accuracy": np.average(is_correct, weights=weights),
      "masked_lm_loss": np.average(of_tokens, weights=weights),
      "next_sentence_accuracy": np.mean(is_next == labels),
      "next_sentence_loss": float(expected["next_sentence_loss"]),
    },
    abs=1e-5,
  )


def test_another_loss_changes_no_reported_probability(
  monkeypatch, session, batch
):
  compute = run_pretraining.get_masked_lm_output

  def squared_loss(*arguments):
    loss, losses, log_probs = compute(*arguments)
    return loss, losses**2, log_probs

  monkeypatch.setattr(run_pretraining, "get_masked_lm_output", squared_loss)
  spec = tiny_model_fn()(batch, None, "infer", {"batch_size": 5})
  session.run(tf.global_variables_initializer())
  inputs, found = session.run([batch, spec.predictions["log_prob"]])
  expected = np.load(modeling_golden("outputs.npz"))["masked_lm_log_probs"]
  ids = inputs["masked_lm_ids"].reshape(-1, 1)
  expected = np.take_along_axis(expected, ids, axis=1)
  np.testing.assert_allclose(found.ravel(), expected.ravel(), atol=1e-5)


def test_training_steps_equal_the_reference(golden):
  run_outputs.assert_reference_steps(
    golden, "pretraining_tiny", tiny_model_fn(3)
  )


GOLDEN_RECORDS = reference_data.golden("pretraining_data", "readme.tfrecord")


curve = functools.partial(reference_data.golden, "pretraining_curve")


def golden_checkpoint():
  return curve("bert_model.ckpt.index").removesuffix(".index")


def pretrain_as_the_reference(output_dir, *actions):
  return commands.succeed(
    "run_pretraining.py",
    *actions,
    f"--input_file={GOLDEN_RECORDS}",
    f"--output_dir={output_dir}",
    f"--bert_config_file={curve('bert_config.json')}",
    f"--init_checkpoint={golden_checkpoint()}",
    "--train_batch_size=8",
    "--learning_rate=1e-3",
    "--num_train_steps=60",
    "--num_warmup_steps=6",
    "--max_eval_steps=10",
  )


@pytest.mark.train
@pytest.mark.needs_data
def test_scores_before_training_equal_the_reference(tmp_path):
  done = pretrain_as_the_reference(tmp_path, "--do_eval=True")
  assert "Evaluating on --input_file" in done.stderr
  results = run_outputs.read_numbers(tmp_path / "eval_results.txt")
  expected = run_outputs.read_numbers(curve("eval_results_before.txt"))
  assert set(results) == set(expected)
  for key, value in expected.items():
    tolerance = 1e-4 if "loss" in key else 0
    assert results[key] == pytest.approx(value, abs=tolerance), key


@pytest.mark.slow
@pytest.mark.needs_data
def test_training_comes_as_far_as_the_reference(tmp_path):
  pretrain_as_the_reference(tmp_path, "--do_train=True", "--do_eval=True")
  results = run_outputs.read_numbers(tmp_path / "eval_results.txt")
  ranges = run_outputs.read_json(curve("runs.json"))["after_min_max"]
  assert results["global_step"] == 60
  for key in ("loss", "masked_lm_loss"):
    least, most = ranges[key]
    assert least - 0.5 <= results[key] <= most + 0.5
  assert results["masked_lm_accuracy"] > 0.05
  variables = tf.train.list_variables(tf.train.latest_checkpoint(str(tmp_path)))
  expected = read_jsonl(curve("trained_checkpoint_variables.jsonl"))
  assert sorted(map(list, variables)) == sorted(expected)


@pytest.mark.needs_data
def test_steps_in_order_equal_the_reference():
  config = modeling.BertConfig.from_json_file(curve("bert_config.json"))
  (records,) = input_pipeline.record_batches(
    [GOLDEN_RECORDS],
    pretraining_instances.record_layout(128, 20),
    60,
    drop_remainder=False,
    trim=False,
  ).as_numpy_iterator()
  with tf.Graph().as_default(), tf.Session() as session:
    batch = {
      name: tf.placeholder(array.dtype, [8, array.shape[1]])
      for name, array in records.items()
    }
    model = run_pretraining.create_encoder(config, True, batch, False)
    loss, _ = run_pretraining.pretraining_loss(config, model, batch)
    step = optimization.training_step(
      optimization.gradients_of(loss), 1e-3, 60, 6
    )
    weights = tf.trainable_variables()
    initialize.initialize_from_checkpoint(golden_checkpoint())
    session.run(tf.global_variables_initializer())
    fetches = loss, step.learning_rate, step.gradient_norm, step[0]
    told = []
    for number in range(60):
      taken = (np.arange(8) + 8 * number) % 60
      feed = {batch[name]: array[taken] for name, array in records.items()}
      told.append(session.run(fetches, feed))
    final = session.run({v.op.name: v for v in weights})
  losses, rates, norms, _ = zip(*told)
  steps = np.load(curve("in_order_steps.npz"))
  np.testing.assert_allclose(losses, steps["loss"], rtol=0, atol=2e-3)
  np.testing.assert_allclose(rates, steps["learning_rate"], rtol=1e-6)
  np.testing.assert_allclose(norms, steps["global_norm"], rtol=0, atol=5e-3)
  expected = dict(np.load(curve("in_order_final.npz")))
  rows = expected.pop("word_embeddings_rows")
  table = final["bert/embeddings/word_embeddings"]
  final["word_embeddings_at_rows"] = table[rows]
  final["word_embeddings_norm"] = np.linalg.norm(table)
  final["output_bias_at_rows"] = final["cls/predictions/output_bias"][rows]
  for name, value in expected.items():
    np.testing.assert_allclose(
      final[name], value, rtol=0, atol=2e-3, err_msg=name
    )


@pytest.mark.unit
def test_records_of_a_run_of_the_reference_are_read():
  published = reference_data.data("reference_runs", "tf_examples.tfrecord")
  layout = pretraining_instances.record_layout(128, 20)
  (theirs,), (ours,) = (
    input_pipeline.record_batches([path], layout, 99, False, False)
    for path in (published, GOLDEN_RECORDS)
  )
  assert len(theirs["input_ids"]) == 60
  for name, tensor in ours.items():
    np.testing.assert_array_equal(theirs[name], tensor, name)


# Streams of records


def stream(place, num_taken, **changed):
  """Numbers of the records that come, from files of 5, 7, 1 and 9."""
  files, first = [], 0
  for size in (5, 7, 1, 9):
    files.append(str(place / f"numbers-{first}"))
    with tf.io.TFRecordWriter(files[-1]) as writer:
      for number in range(first, first + size):
        writer.write(str(number).encode())
    first += size
  arguments = {"num_records": 22, "seed": 5, "num_open": 2, "block_size": 4}
  records = training_batches.stream_epochs(files, **(arguments | changed))
  return [int(r) for r in records.take(num_taken).as_numpy_iterator()]


@parametrize("block_size", 2, 4, 22, 100)
def test_each_epoch_has_each_record_once(tmp_path, block_size):
  order = stream(tmp_path, 88, block_size=block_size)
  epochs = [order[start : start + 22] for start in range(0, 88, 22)]
  assert [sorted(epoch) for epoch in epochs] == [list(range(22))] * 4
  assert len(set(map(tuple, epochs))) == 4


@parametrize("done", 0, 1, 4, 21, 22, 30, 65)
def test_a_stream_goes_on_where_it_was(tmp_path, done):
  rest = stream(tmp_path, 80 - done, first_record=done)
  assert rest == stream(tmp_path, 80)[done:]


def test_the_order_is_a_function_of_the_seed(tmp_path):
  assert stream(tmp_path, 22) != stream(tmp_path, 22, seed=6)
  # On every TensorFlow.
  assert stream(tmp_path, 8) == [13, 14, 12, 15, 1, 16, 17, 0]


def test_records_of_several_files_come_mixed(tmp_path):
  files_of = [(n >= 5) + (n >= 12) + (n >= 13) for n in range(22)]
  first_block = stream(tmp_path, 12, num_open=4, block_size=12)
  assert {files_of[number] for number in first_block} == {0, 1, 2, 3}


# New masks


def examples(num_examples, seed=0):
  """Original ids [B, S], and the batch that hides some of them."""
  rng = np.random.default_rng(seed)
  ids, rows = zip(*(random_example(rng) for _ in range(num_examples)))
  batch = {
    name: tf.constant(
      np.array([row[name] for row in rows]),
      tf.float32 if feature.is_float else tf.int32,
    )
    for name, feature in LAYOUT.items()
  }
  return np.array(ids), batch


def remask(batch, numbers, **changed):
  masking = dynamic_masking.Masking(TOKENIZER, **changed)
  masked = tf.function(dynamic_masking.remask)(
    batch, tf.constant(numbers, tf.int64), masking
  )
  return {name: tensor.numpy() for name, tensor in masked.items()}


def words_of(ids):
  """Positions of each word of an example."""
  words = []
  for position, token in enumerate(ids):
    if token in (PAD, CLS, SEP):
      continue
    follows = position and ids[position - 1] not in (CLS, SEP)
    if VOCAB[token].startswith("##") and follows:
      words[-1].append(position)
    else:
      words.append([position])
  return words


@parametrize("kind", None, "whole_word", "span")
@parametrize("masked_lm_prob", 0.0, 0.15, 0.5)
def test_masks_follow_the_rules(masked_lm_prob, kind):
  ids, batch = examples(200)
  options = {f"do_{kind}_mask": True} if kind else {}
  masked = remask(batch, range(200), masked_lm_prob=masked_lm_prob, **options)
  for name in ("input_mask", "segment_ids", "next_sentence_labels"):
    np.testing.assert_array_equal(masked[name], batch[name])
  for row, original in enumerate(ids):
    length = int(batch["input_mask"][row].numpy().sum())
    wanted = min(NUM_PREDICTIONS, max(1, round(length * masked_lm_prob)))
    weights = masked["masked_lm_weights"][row].tolist()
    num_masked = int(sum(weights))
    left_over = [0] * (NUM_PREDICTIONS - num_masked)
    assert weights == [1] * num_masked + left_over
    places = masked["masked_lm_positions"][row].tolist()
    assert places[num_masked:] == left_over
    places = places[:num_masked]
    assert places == sorted(set(places))
    assert masked["masked_lm_ids"][row].tolist() == [
      *original[places],
      *left_over,
    ]
    others = np.delete(np.arange(SEQ_LENGTH), places)
    np.testing.assert_array_equal(
      masked["input_ids"][row, others], original[others]
    )
    assert not {CLS, SEP, PAD} & set(original[places])
    if kind:
      words = words_of(original)
      passed_over = [word for word in words if word[0] not in places]
      assert all(not set(word) & set(places) for word in passed_over)
      assert num_masked <= wanted
      assert all(num_masked + len(word) > wanted for word in passed_over)
    else:
      assert num_masked == min(wanted, sum(map(len, words_of(original))))


def test_rates_of_what_stands_for_a_masked_token():
  ids, batch = examples(1000)
  masked = remask(batch, range(1000), masked_lm_prob=0.3)
  rows, slots = np.nonzero(masked["masked_lm_weights"])
  places = masked["masked_lm_positions"][rows, slots]
  before, after = ids[rows, places], masked["input_ids"][rows, places]
  num_draws = len(rows)
  assert num_draws > 3000
  by_chance = 0.1 / len(VOCAB)
  assert_share((after == MASK).sum(), num_draws, 0.8 + by_chance)
  assert_share((after == before).sum(), num_draws, 0.1 + by_chance)
  random = after[(after != MASK) & (after != before)]
  assert set(random) == set(range(len(VOCAB))) - {MASK}
  counts = np.bincount(random)
  for count in np.delete(counts, MASK):
    assert_share(count, len(random), counts.mean() / len(random))


def test_tokens_may_be_predicted_unchanged():
  ids, batch = examples(1000)
  replaced = remask(batch, range(1000))
  unchanged = remask(batch, range(1000), mask_split=(0, 0, 1))
  np.testing.assert_array_equal(unchanged["input_ids"], ids)
  name = "masked_lm_positions"
  np.testing.assert_array_equal(unchanged[name], replaced[name])


def copies(number, tokens, num_predictions):
  """A batch of copies of one example without masks."""
  batch = {
    "input_ids": tf.constant([ids_of(" ".join(tokens))] * number),
    "input_mask": tf.ones([number, len(tokens)], tf.int32),
    "masked_lm_weights": tf.zeros([number, num_predictions]),
  }
  for name in ("masked_lm_positions", "masked_lm_ids"):
    batch[name] = tf.zeros([number, num_predictions], tf.int32)
  return batch


@parametrize("whole_words", False, True)
def test_every_word_is_as_likely_as_another(whole_words):
  tokens = ["[CLS]", "cat", "dog", "##s", "sat", "##s", "##ly", "[SEP]"]
  batch = copies(2000, tokens, NUM_PREDICTIONS)
  masked = remask(batch, range(2000), do_whole_word_mask=whole_words)
  places = masked["masked_lm_positions"][:, 0]
  # One token is to be masked, and only one word has a single one.
  if whole_words:
    assert set(places) == {1}
  else:
    for count in np.bincount(places, minlength=7)[1:]:
      assert_share(count, 2000, 1 / 6)


def test_words_of_one_piece_are_masked_as_single_tokens():
  tokens = ["[CLS]", *["cat", "dog", "sat"] * 9, "[SEP]", "the", "a", "[SEP]"]
  batch = copies(50, tokens, NUM_PREDICTIONS)
  single, whole = (
    remask(batch, range(50), do_whole_word_mask=whole_words)
    for whole_words in (False, True)
  )
  for name, values in single.items():
    np.testing.assert_array_equal(values, whole[name], name)


def test_spans_are_those_of_data_making():
  half = ["cat", "dog", "##s", "the", "sat", "##s", "##ly", "a"] * 8
  tokens = ["[CLS]", *half, "[SEP]", *half, "[SEP]"]
  made = collections.Counter()
  rng = random.Random(1)
  for _ in range(4000):
    shown, places, _ = masking.create_masked_lm_predictions(
      tokens, 0.15, 20, VOCAB, rng, do_span_mask=True
    )
    made.update(spans_in(places, [t == "[MASK]" for t in shown]))
  batch = copies(1000, tokens, 20)
  masked = remask(batch, range(1000), do_span_mask=True)
  found = collections.Counter()
  for row in range(1000):
    num_masked = int(masked["masked_lm_weights"][row].sum())
    places = masked["masked_lm_positions"][row, :num_masked].tolist()
    found.update(spans_in(places, masked["input_ids"][row] == MASK))
  num_spans = sum(found.values())
  for key, count in made.items():
    assert_share(found[key], num_spans, count / sum(made.values()))


def spans_in(places, is_mask):
  """Length and replacement of each run of masked positions."""
  runs = []
  for before, place in zip([-2, *places], places):
    if place != before + 1:
      runs.append([])
    runs[-1].append(bool(is_mask[place]))
  return [(len(run), all(run), any(run)) for run in runs]


def test_a_record_has_the_same_masks_in_every_batch_and_others_next_time():
  _, batch = examples(6)
  together = remask(batch, range(100, 106))
  alone = [
    remask({name: t[row : row + 1] for name, t in batch.items()}, [100 + row])
    for row in range(6)
  ]
  for name, array in together.items():
    rows = np.concatenate([example[name] for example in alone])
    np.testing.assert_array_equal(array, rows, name)
  for changed in (
    remask(batch, range(106, 112)),
    remask(batch, range(100, 106), seed=1),
  ):
    assert (changed["input_ids"] != together["input_ids"]).any(axis=1).sum() > 3


@pytest.mark.unit
def test_shapes_are_static_for_a_tpu(place):
  input_fn = run_pretraining.input_fn_builder(
    [str(place / "held_out.tfrecord")],
    *SIZES,
    is_training=True,
    masking=dynamic_masking.Masking(TOKENIZER, do_whole_word_mask=True),
  )
  shapes = {
    name: (spec.shape.as_list(), spec.dtype == tf.float32)
    for name, spec in input_fn({"batch_size": 4}).element_spec.items()
  }
  assert shapes == {
    name: ([4, *feature.shape], feature.is_float)
    for name, feature in LAYOUT.items()
  }


def test_masks_go_by_the_number_of_a_record_over_all_epochs(place):
  def batches(masking, trim):
    input_fn = run_pretraining.input_fn_builder(
      [str(place / "held_out.tfrecord")],  # of 10 records
      *SIZES,
      is_training=True,
      trim=trim,
      first_step=2,
      masking=masking,
    )
    return input_fn({"batch_size": 4}).take(3)

  seen = batches(dynamic_masking.Masking(TOKENIZER, seed=7), trim=True)
  kept = batches(None, trim=False)
  for step, (batch, original) in enumerate(zip(seen, kept), start=2):
    longest = int(tf.reduce_max(tf.reduce_sum(batch["input_mask"], axis=1)))
    assert batch["input_ids"].shape[1] == -(-longest // 8) * 8
    expected = remask(original, range(4 * step, 4 * step + 4), seed=7)
    for name, array in expected.items():
      trimmed = array[:, : batch[name].shape[1]]
      np.testing.assert_array_equal(batch[name], trimmed, name)


# Filling masks

# By number of its line in `TEXTS`.
ENCODED = {
  0: (ids_of("[CLS] the [MASK] sat [SEP]"), [0] * 5),
  1: (ids_of("[CLS] ( un [MASK] [SEP] a [MASK] . [SEP]"), [0] * 5 + [1] * 4),
  3: (ids_of("[CLS] the cat ##s [SEP] ran [SEP]"), [0] * 5 + [1] * 2),
}


def probabilities(trained, number, position=0):
  """Probabilities of tokens at a position, masked if not 0, and of order."""
  ids, segments = ENCODED[number]
  masked = list(ids)
  if position:
    masked[position] = MASK
  batch = {
    "input_ids": [masked],
    "input_mask": [[1] * len(ids)],
    "segment_ids": [segments],
    "masked_lm_positions": [[position]],
  }
  logits = compute(trained.folder, batch)
  return [special.softmax(scores[0]) for scores in logits]


@pytest.fixture(scope="module")
def lines(trained):
  """The predictions of `TEXTS`."""
  return read_jsonl(trained.folder / "predictions.jsonl")


@pytest.mark.process
def test_masks_are_filled_with_the_likeliest_tokens(trained, lines):
  assert [line["text"] for line in lines] == TEXTS
  assert [len(line.get("masks", ())) for line in lines] == [1, 2, 0, 0]
  for number, mask, position in ((0, 0, 2), (1, 0, 3), (1, 1, 6)):
    told = lines[number]["masks"][mask]
    probs, _ = probabilities(trained, number, position)
    tokens = [VOCAB.index(filling["token"]) for filling in told]
    assert tokens == np.argsort(-probs)[:3].tolist()
    assert [filling["probability"] for filling in told] == pytest.approx(
      probs[tokens], abs=2e-6
    )
  said = trained.stdout.splitlines()
  assert said[0] == "the [MASK] sat"
  best = lines[0]["masks"][0][0]
  assert said[1].startswith(f"  {best['token']} {best['probability']:.3f} ")


@pytest.mark.process
def test_other_lines_get_their_pseudo_perplexity(trained, lines):
  assert lines[2] == {"text": "", "pseudo_perplexity": None, "num_tokens": 0}
  ids, _ = ENCODED[3]
  losses = [
    -math.log(probabilities(trained, 3, position)[0][ids[position]])
    for position in (1, 2, 3, 5)
  ]
  value = math.exp(sum(losses) / 4)
  assert lines[3]["num_tokens"] == 4
  assert lines[3]["pseudo_perplexity"] == pytest.approx(value, rel=1e-4)
  (shown,) = re.findall(r"pseudo-perplexity (\S+)", trained.stdout)
  assert float(shown) == pytest.approx(value, rel=1e-3)


@pytest.mark.process
def test_pairs_get_the_probability_that_the_second_text_is_next(trained, lines):
  found = [line.get("is_next_probability") for line in lines]
  expected = [probabilities(trained, number)[1][0] for number in (1, 3)]
  assert found[::2] == [None, None]
  assert found[1::2] == pytest.approx(expected, abs=2e-6)
  shown = re.findall(r"is next (\S+)", trained.stdout)
  assert list(map(float, shown)) == pytest.approx(expected, abs=6e-4)


@pytest.mark.process
def test_the_vocabulary_is_that_of_the_folder(place, trained, tmp_path):
  folder = shutil.copytree(trained.folder, tmp_path / "trained")
  before = read_jsonl(trained.folder / "predictions.jsonl")
  changed = {"output_dir": folder, "predict_file": "-", "top_k": 3}
  given = "--do_predict", *flags(place, input_file=None, **changed)
  commands.succeed("run_pretraining.py", *given, input="the [MASK] sat\n")
  assert read_jsonl(folder / "predictions.jsonl") == before[:1]


def test_records_of_another_task_are_refused(tmp_path):
  path = str(tmp_path / "classifier.tf_record")
  layout = classification_records.record_layout(SEQ_LENGTH)
  row = {name: np.zeros(f.shape, int).tolist() for name, f in layout.items()}
  tf_records.write_records(path, [row], layout)
  with pytest.raises(InputError, match="have no masked_lm_ids"):
    pretraining_inputs.count_records(path, *SIZES)
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(b"text")
  with pytest.raises(InputError, match="have no input_ids"):
    pretraining_inputs.count_records(path, *SIZES)


@pytest.fixture(scope="module")
def without_pairs(place):
  """A file of records of text without pairs."""
  path = place / "mlm.tfrecord"
  rng = np.random.default_rng(0)
  rows = [random_example(rng)[1] for _ in range(20)]
  layout = {n: f for n, f in LAYOUT.items() if n != "next_sentence_labels"}
  tf_records.write_records(str(path), rows, layout)
  return path


@pytest.mark.unit
@pytest.mark.usefixtures("without_pairs")
@parametrize(
  "name, lengths, words",
  ("train-0", (99, NUM_PREDICTIONS), r"Give --max_seq_length=\d+"),
  ("train-0", (SEQ_LENGTH, 2), r"Give --max_predictions_per_seq=\d+"),
  ("train-0", (*SIZES, {"[CLS]": 101}), "another vocabulary"),
  ("mlm", SIZES, "no next_sentence_labels, .* Give --objective=mlm"),
)
def test_records_of_another_kind_of_data_are_refused(
  place, name, lengths, words
):
  path = f"{place}/{name}.tfrecord"
  with pytest.raises(InputError, match=f"^{path}: .*{words}"):
    pretraining_inputs.count_records(path, *lengths)


@pytest.mark.train
def test_the_masked_lm_alone_trains_on_records_of_both_kinds(
  place, without_pairs, tmp_path
):
  output_dir = tmp_path / "out"
  (tmp_path / "lines").write_text("the [MASK] ||| ran\n")
  pretrain(
    place,
    "--do_train",
    "--do_eval",
    "--do_predict",
    predict_file=tmp_path / "lines",
    vocab_file=place / "vocab.txt",
    input_file=f"{without_pairs},{place}/train-0*",
    eval_input_file=place / "held_out.tfrecord",
    eval_batch_size=10,  # all records
    objective="mlm",
    num_train_steps=20,
    output_dir=output_dir,
  )
  results = run_outputs.read_numbers(output_dir / "eval_results.txt")
  scores = {"masked_lm_accuracy", "masked_lm_loss"}
  assert set(results) == {"global_step", "loss", *scores}
  assert results["loss"] == pytest.approx(results["masked_lm_loss"], abs=1e-5)
  (line,) = read_jsonl(output_dir / "predictions.jsonl")
  assert set(line) == {"text", "masks"}
  weights = run_outputs.read_variables(output_dir)
  assert not [name for name in weights if "seq_relationship" in name]
  export = f"--model_dir={output_dir}", f"--export_dir={tmp_path / 'export'}"
  commands.succeed("export_model.py", *export)
  model = tf_v2.saved_model.load(str(tmp_path / "export"))
  outputs = model.signatures["ids"].structured_outputs
  assert set(outputs) == {"masked_lm_probabilities"}


def all_of(word, label):
  """A record, all of whose words are the same one."""
  _, row = random_example(np.random.default_rng(label))
  ids = [
    i if i in (PAD, CLS, SEP) else VOCAB.index(word) for i in row["input_ids"]
  ]
  return row | {"input_ids": ids, "next_sentence_labels": [label]}


@pytest.mark.train
def test_next_sentence_prediction_alone_needs_no_masks(place, tmp_path):
  rows = [all_of("cat", 0), all_of("dog", 1)] * 8
  without = {n: f for n, f in LAYOUT.items() if not n.startswith("masked_lm")}
  tf_records.write_records(str(tmp_path / "records"), rows, without)
  (tmp_path / "lines").write_text("cat cat ||| cat\ndog dog ||| dog\n")
  output_dir = tmp_path / "out"
  pretrain(
    place,
    *("--do_train", "--do_eval", "--do_predict"),
    predict_file=tmp_path / "lines",
    vocab_file=place / "vocab.txt",
    input_file=tmp_path / "records",
    eval_batch_size=16,
    objective="nsp",
    output_dir=output_dir,
  )
  weights = run_outputs.read_variables(output_dir)
  assert not [name for name in weights if "cls/predictions" in name]
  results = run_outputs.read_numbers(output_dir / "eval_results.txt")
  scores = {"next_sentence_accuracy", "next_sentence_loss"}
  assert set(results) == {"global_step", "loss", *scores}
  assert results["next_sentence_accuracy"] == 1
  lines = read_jsonl(output_dir / "predictions.jsonl")
  assert [set(line) for line in lines] == [{"text", "is_next_probability"}] * 2
  assert [line["is_next_probability"] > 0.5 for line in lines] == [True, False]
  export = f"--model_dir={output_dir}", f"--export_dir={tmp_path / 'export'}"
  assert "has no masked LM" in commands.fail("export_model.py", *export)


@pytest.fixture
def of_tokens(tmp_path):
  """A file of records of tokens alone, and one with masks to replace."""
  rng = np.random.default_rng(0)
  pairs = [random_example(rng) for _ in range(20)]
  alone = {n: f for n, f in LAYOUT.items() if n.startswith(("input", "seg"))}
  rows = [row | {"input_ids": ids} for ids, row in pairs]
  tf_records.write_records(str(tmp_path / "alone"), rows, alone)
  rows = [row for _, row in pairs]
  tf_records.write_records(str(tmp_path / "masked"), rows, LAYOUT)
  return tmp_path / "alone", tmp_path / "masked"


def test_new_masks_need_only_tokens(of_tokens):
  found, expected = (
    run_pretraining.input_fn_builder(
      [str(path)],
      *SIZES,
      is_training=True,
      masking=dynamic_masking.Masking(TOKENIZER),
      num_records=20,
      objective=objectives.MLM,
    )({"batch_size": 20})
    for path in of_tokens
  )
  for batches in zip(
    *(each.take(2).as_numpy_iterator() for each in (found, expected))
  ):
    run_outputs.assert_same_bits(*batches)


@pytest.mark.train
def test_records_of_tokens_are_for_training_on_new_masks(
  place, of_tokens, tmp_path
):
  input_file, _ = of_tokens
  changed = {"objective": "mlm", "vocab_file": place / "vocab.txt"}
  changed |= {"input_file": input_file, "output_dir": tmp_path / "out"}
  train = "--do_train", "--remask", "--masked_lm_prob=0.5"
  done = pretrain(place, *train, num_train_steps=9, **changed)
  # No record has more than 21 tokens; 5 of at most 24 * 0.5 are masked.
  assert "--max_predictions_per_seq=5: cuts off" in done.stderr
  assert "Give 12, both" in done.stderr
  for actions in (["--do_train"], ["--do_train", "--remask", "--do_eval"]):
    assert "its records have no masked_lm_ids" in refuse(
      place, *actions, **(changed | {"output_dir": tmp_path / "other"})
    )


@pytest.mark.unit
@parametrize(
  "flag, words",
  ("--remask", "--remask: --objective=nsp predicts no masked tokens"),
  ("--do_predict", "lines: has lines of one text"),
)
def test_what_next_sentence_prediction_alone_cannot_do(
  place, tmp_path, flag, words
):
  (tmp_path / "lines").write_text("the cat ||| sat\nthe [MASK]\n")
  changed = {"objective": "nsp", "output_dir": tmp_path / "out"}
  if flag == "--do_predict":
    changed |= {"predict_file": tmp_path / "lines"}
  changed |= {"vocab_file": place / "vocab.txt"}
  assert words in refuse(place, "--do_train", flag, **changed)


def test_new_masks_without_a_vocabulary(place):
  line = refuse(place, "--do_train", "--remask")
  assert "--vocab_file is empty; name a vocab.txt" in line


def test_a_checkpoint_without_the_masked_lm(place):
  path = tiny_model.write_encoder(place / "encoder.ckpt", CONFIG)
  line = refuse(place, "--do_eval", init_checkpoint=path)
  assert f"{path}: has no masked LM" in line


@pytest.mark.unit
def test_texts_that_are_too_long_are_cut_and_counted(place, caplog):
  tokenizer = tokenization.FullTokenizer(
    str(place / "vocab.txt"), never_split=["[MASK]"]
  )
  path = place / "long.txt"
  path.write_text("the cat sat [MASK]\nthe cat\n")
  settings = option.make(
    PretrainingSettings, predict_file=str(path), max_seq_length=5
  )
  run = types.SimpleNamespace(
    settings=settings, config=CONFIG, tokenizer=tokenizer
  )
  with caplog.at_level("WARNING"):
    lines = pretraining_inputs.read_lines(run)
  assert "1 lines truncated to 5 tokens" in caplog.text
  assert [line.positions for line in lines] == [[], [1, 2]]
