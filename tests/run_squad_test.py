"""Tests of answering questions, most of them of its command line."""

import functools
import gzip
import itertools
import json
import os
import shutil

import absl.flags
import commands
import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_model
import trained_models
from absl.testing import flagsaver
from run_outputs import read_json, read_numbers
from scipy import special
from tiny_squad import CONFIG, V2, VOCAB, flags, make_data

import modeling
import run_squad
from bertlib.cli.errors import InputError
from bertlib.compat import estimator_api
from bertlib.data import training_records
from bertlib.tasks.squad import squad_files, squad_scores, squad_windows

pytestmark = pytest.mark.process


place = trained_models.data_fixture("squad")
trained = trained_models.fixture("squad")  # for six steps


def answer(place, *actions, stdin=None, **changed):
  given = flags(place, **changed)
  return commands.succeed("run_squad.py", *actions, *given, input=stdin)


def refuse(place, *actions, **changed):
  return commands.fail("run_squad.py", *actions, *flags(place, **changed))


def test_the_log_counts_questions_and_their_windows(trained):
  for said in (
    "12 questions in 24 windows; 0 questions truncated",
    "2 epochs of 12 questions are 6 steps, which are 1.00 epochs of 24 windows",
    "step 6 of 6",
    "24 windows of 12 questions in",
  ):
    assert said in trained.log


def test_dev_predictions_are_those_of_the_results(trained):
  rows = reference_data.read_jsonl(trained.folder / "eval_predictions.jsonl")
  scores = [squad_scores.score_v2(r["predicted"], r["gold"]) for r in rows]
  results = read_numbers(trained.folder / "eval_results.txt")
  assert len(scores) == results["total"]
  for name in ("exact", "f1"):
    mean = np.mean([getattr(score, name) for score in scores])
    assert results[name] == pytest.approx(100 * mean)


def test_training_records_are_in_the_reference_s_order(trained):
  order = squad_windows.reference_order(12)
  (batch,) = training_records.record_input_fn(
    str(trained.folder / "train.tf_record"),
    squad_windows.record_layout(24, is_training=False),
    is_training=False,
    drop_remainder=False,
  )({"batch_size": 99})
  assert batch["unique_ids"].numpy().tolist() == list(range(10**9, 10**9 + 24))
  words = [VOCAB[ids[1]] for ids in batch["input_ids"].numpy()]
  expected = [("who", "where")[index % 2] for index in order]
  # Each question is in several windows.
  found, expected = map(itertools.groupby, (words, expected))
  assert [word for word, _ in found] == [word for word, _ in expected]


def test_results_are_the_scores_of_the_files(place, trained):
  results = read_numbers(trained.folder / "eval_results.txt")
  questions = squad_files.read_questions(str(place / "v2.json"))
  predictions = read_json(trained.folder / "predictions.json")
  scores = squad_scores.evaluate_v2(questions, predictions)
  assert {key: results[key] for key in scores} == pytest.approx(scores)
  assert results["best_f1"] >= max(scores["f1"], 50.0)


def test_the_score_reported_is_that_of_the_best_weights(trained):
  rows = reference_data.read_jsonl(trained.folder / "dev_scores.jsonl")
  assert [row["step"] for row in rows] == [3, 6]
  best = max(row["f1"] for row in rows)
  results = read_numbers(trained.folder / "eval_results.txt")
  assert results["f1"] == pytest.approx(best)
  page = (trained.folder / "report.html").read_text()
  for heading in ("Curves", "Tuned", "Worst errors"):
    assert f"<h2>{heading}" in page


def decode(trained, output_dir, *actions, **changed):
  """Decodes the saved logits."""
  place = trained.folder.parent
  changed |= {"from_logits": place / "logits.npz"}
  changed |= {"predict_file": place / "v2.json", "output_dir": output_dir}
  answer(place, *V2, *actions, **changed)


def test_the_best_threshold_gives_the_best_score(trained, tmp_path):
  results = read_numbers(trained.folder / "eval_results.txt")
  best = results["best_f1_thresh"]
  decode(trained, tmp_path, "--do_eval", null_score_diff_threshold=best)
  again = read_numbers(tmp_path / "eval_results.txt")
  assert again["f1"] == pytest.approx(results["best_f1"])


def test_the_tuned_threshold_is_that_of_the_predictor(place, trained):
  results = read_numbers(trained.folder / "eval_results.txt")
  tuned = results["best_f1_thresh"]
  model = read_json(trained.folder / "model.json")
  assert model["null_score_diff_threshold"] == tuned
  assert model["tuned_on"].endswith("/v2.json")
  said = f"null_score_diff_threshold tuned on {model['tuned_on']}"
  assert said in trained.log
  odds = read_json(trained.folder / "null_odds.json")
  assert {odd > tuned for odd in odds.values()} == {True, False}
  questions = squad_files.read_questions(str(place / "v2.json"))
  with run_squad.Predictor(str(trained.folder)) as predictor:
    found = predictor.predict([(q.text, q.context) for q in questions])
  for question, answers in zip(questions, found):
    odd = odds[question.id]
    if abs(odd - tuned) > 1e-4:  # rounding decides the one at the threshold
      assert (answers[0].text == "") == (odd > tuned)


def test_prediction_keeps_its_threshold_and_names_the_tuned_one(
  place, trained, tmp_path
):
  folder = shutil.copytree(trained.folder, tmp_path / "model")
  model = read_json(folder / "model.json")
  model |= {"null_score_diff_threshold": -7.5, "tuned_on": "dev.json"}
  (folder / "model.json").write_text(json.dumps(model))
  given = {"predict_file": place / "v2.json", "output_dir": folder}
  done = answer(place, *V2, "--null_score_diff_threshold=0", **given)
  expected = read_json(trained.folder / "predictions.json")
  assert read_json(folder / "predictions.json") == expected
  assert "but the model has -7.5, tuned on dev.json" in done.stderr
  assert read_json(folder / "model.json") == model


def test_decoding_again_gives_the_same(trained, tmp_path):
  decode(trained, tmp_path)
  for name in ("predictions", "nbest_predictions", "null_odds"):
    name = f"{name}.json"
    expected = (trained.folder / name).read_text()
    assert (tmp_path / name).read_text() == expected, name


def test_the_predictor_agrees_with_the_files(place, trained):
  output_dir = trained.folder
  questions = squad_files.read_questions(str(place / "v2.json"))
  with run_squad.Predictor(str(output_dir), batch_size=3) as predictor:
    pairs = [(q.text, q.context) for q in questions]
    said = predictor.predict(pairs, null_score_diff_threshold=0)
    nothing = predictor.predict([("who ?", " \n")])
  assert [answers[0].text for answers in nothing] == [""]
  predictions = read_json(output_dir / "predictions.json")
  n_best = read_json(output_dir / "nbest_predictions.json")
  for question, answers in zip(questions, said):
    assert answers[0].text == predictions[question.id]
    listed = {e["text"]: e["probability"] for e in n_best[question.id]}
    ours = {a.text: a.probability for a in answers}
    assert ours == pytest.approx(listed, abs=1e-4)
    for found in answers:
      assert question.context[found.start : found.end] == found.text


@pytest.mark.graph
def test_the_audit_prints_a_table(place):
  data = json.dumps(make_data(False))
  odd = data.replace('"answer_start": 0', '"answer_start": 4', 1)
  (place / "odd.json").write_text(odd)
  files = sorted(os.listdir(place))
  done = answer(
    place,
    "--audit",
    train_file=place / "odd.json",
    max_query_length=4,
    bert_config_file=None,  # it asks for nothing that it does not use
    output_dir=None,
    predict_file=None,
  )
  table = done.stdout.splitlines()
  assert table[0].split()[:3] == ["max_seq_length", "doc_stride", "questions"]
  rows = [row.split() for row in table[1:]]
  sizes = itertools.product((128, 256, 384, 512), (64, 128))
  assert [(int(row[0]), int(row[1])) for row in rows] == [*sizes]
  for row in rows:
    # Every question has one window and five tokens.
    assert row[2:5] == ["11", "11", "11"]
    assert row[6] == "1"
  assert sorted(os.listdir(place)) == files


@pytest.mark.graph
def test_an_audit_needs_a_vocabulary(place):
  needless = dict.fromkeys(("vocab_file", "bert_config_file", "output_dir"))
  assert "--vocab_file" in refuse(place, "--audit", **needless)


@pytest.mark.smoke
@pytest.mark.train
@pytest.mark.parametrize("name", ["v11_dev", "v20_dev"])
def test_program_equals_the_reference(tmp_path, name, golden):
  program = functools.partial(golden, "programs")
  with gzip.open(golden("squad", f"{name}.json.gz")) as file:
    (tmp_path / "data.json").write_bytes(file.read())
  runs = read_json(program("runs.json"))
  run = runs["run_squad"][name]
  run["predict_file"] = tmp_path / "data.json"
  checkpoint = program("bert_model.ckpt.index").removesuffix(".index")
  commands.succeed(
    "run_squad.py",
    *commands.as_flags(run),
    f"--vocab_file={reference_data.vocab(runs['vocab'])}",
    f"--bert_config_file={program('bert_config.json')}",
    f"--init_checkpoint={checkpoint}",
    "--do_lower_case=True",
    f"--output_dir={tmp_path / 'out'}",
  )
  ours = read_json(tmp_path / "out" / "predictions.json")
  assert ours == read_json(program(f"squad_{name}_predictions.json"))
  with gzip.open(program(f"squad_{name}_nbest_predictions.json.gz")) as file:
    expected = json.load(file)
  ours = read_json(tmp_path / "out" / "nbest_predictions.json")
  for question, entries in expected.items():
    for entry, theirs in zip(ours[question], entries):
      assert entry.pop("text") == theirs.pop("text"), question
      assert entry == pytest.approx(theirs, rel=0, abs=2e-5), question
  if name == "v20_dev":
    ours = read_json(tmp_path / "out" / "null_odds.json")
    expected = read_json(program(f"squad_{name}_null_odds.json"))
    assert ours == pytest.approx(expected, rel=0, abs=2e-5)


HEAD = "output_weights", "output_bias"


@pytest.mark.graph
def test_training_steps_equal_the_reference(golden):
  tiny = functools.partial(reference_data.golden, "modeling", "tiny")
  heads, config = (
    np.load(tiny("heads.npz")),
    read_json(tiny("bert_config.json")),
  )
  config = modeling.BertConfig.from_dict(config | tiny_model.NO_DROPOUT)
  checkpoint = tiny("bert_model.ckpt.index").removesuffix(".index")
  values, final = run_outputs.assert_reference_steps(
    golden,
    "squad_tiny",
    run_squad.model_fn_builder(config, checkpoint, 1e-3, 8, 0, False, False),
    {f"cls/squad/{n}": heads[f"weights/cls/squad/{n}"] for n in HEAD},
  )
  assert values.keys() == final.keys()  # without moments of the pooler


def loss_and_logits(mask_padding, length, batch):
  """Loss and logits of a batch of windows, truncated to a length."""
  config = modeling.BertConfig.from_dict(
    CONFIG.to_dict() | tiny_model.NO_DROPOUT
  )
  model_fn = run_squad.model_fn_builder(
    config, None, 1e-3, 8, 0, False, False, mask_padding=mask_padding
  )

  def run(mode, fetches):
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
      inputs = {
        name: tf.constant(value[:, :length] if value.ndim > 1 else value)
        for name, value in batch.items()
      }
      spec = model_fn(inputs, None, mode, {"batch_size": 3})
      session.run(tf.global_variables_initializer())
      for variable in tf.trainable_variables():
        variable.load(rng.normal(scale=0.2, size=variable.shape), session)
      return session.run(fetches(spec))

  loss = run(estimator_api.ModeKeys.TRAIN, lambda spec: spec.loss)
  predicted = run(estimator_api.ModeKeys.PREDICT, lambda spec: spec.predictions)
  return loss, predicted["start_logits"], predicted["end_logits"]


@pytest.fixture
def batch():
  rng = np.random.default_rng(0)
  lengths = np.array([[12], [9], [5]])
  mask = (np.arange(24) < lengths).astype(np.int32)
  return {
    "unique_ids": np.arange(3, dtype=np.int32),
    "input_ids": rng.integers(5, len(VOCAB), [3, 24]).astype(np.int32) * mask,
    "input_mask": mask,
    "segment_ids": mask,
    "start_positions": np.array([3, 0, 2], np.int32),
    "end_positions": np.array([4, 0, 2], np.int32),
  }


@pytest.mark.train
def test_masked_padding_has_no_part_in_the_loss(batch):
  loss, *logits = loss_and_logits(True, 24, batch)
  _, *unmasked = loss_and_logits(False, 24, batch)
  mask = batch["input_mask"] > 0
  expected = []
  for name, ours, scores in zip(("start", "end"), logits, unmasked):
    np.testing.assert_allclose(ours[mask], scores[mask], rtol=1e-5)
    assert (ours[~mask] == np.finfo(np.float32).min).all()
    positions = batch[f"{name}_positions"]
    for row, length, position in zip(scores, mask.sum(axis=1), positions):
      expected.append(-special.log_softmax(row[:length])[position])
  assert loss == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.train
def test_trimming_changes_nothing_where_padding_is_masked(batch):
  loss, *logits = loss_and_logits(True, 24, batch)
  trimmed_loss, *trimmed = loss_and_logits(True, 16, batch)
  assert trimmed_loss == pytest.approx(loss, rel=1e-5)
  for ours, theirs in zip(trimmed, logits):
    np.testing.assert_allclose(ours, theirs[:, :16], rtol=1e-4)


@pytest.mark.graph
def test_a_checkpoint_that_answers_no_questions(place, tmp_path):
  path = tiny_model.write_encoder(tmp_path / "model.ckpt", CONFIG)
  line = refuse(place, "--do_predict", init_checkpoint=path)
  assert f"{path}: was not trained on questions" in line


def test_a_folder_of_the_other_version(place, trained):
  line = refuse(place, "--do_train", output_dir=trained.folder)
  assert "version_2_with_negative True, but this run's is False" in line


@pytest.mark.graph
def test_questions_without_answers_cannot_be_scored(place):
  data = make_data(False)
  del data["data"][0]["paragraphs"][0]["qas"][1]["answers"]
  (place / "test.json").write_text(json.dumps(data))
  actions = "--do_train", "--do_predict", "--do_eval"
  line = refuse(place, *actions, predict_file=place / "test.json")
  assert f"{place}/test.json, question 0-where: has no gold answer" in line


@pytest.mark.graph
def test_flags_are_checked_against_each_other_and_the_model(place):
  values = absl.flags.FLAGS
  with commands.in_process(run_squad), flagsaver.flagsaver():
    values(["run_squad.py", *flags(place)])
    with pytest.raises(InputError, match="--do_train"):
      run_squad.validate_flags_or_throw(CONFIG)
    values.do_train = True
    run_squad.validate_flags_or_throw(CONFIG)
    values.max_seq_length = CONFIG.max_position_embeddings + 1
    with pytest.raises(InputError, match="--max_seq_length"):
      run_squad.validate_flags_or_throw(CONFIG)
