"""Tests of tagging words, most of them of its command line."""

import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import trained_models
from reference_data import read_jsonl
from scipy import special
from tiny_ner import columns, flags, training

import run_ner
from bertlib.tasks.ner import ner_files, ner_report

pytestmark = pytest.mark.process


place = trained_models.data_fixture("ner")
trained = trained_models.fixture("ner")  # for 80 steps


def results(trained):
  return run_outputs.read_results(trained.folder / "eval_results.txt")


def test_it_learns_to_tag_and_reports_the_score_of_the_best_weights(trained):
  scores = results(trained)
  score = float(scores["eval_f1"])
  assert score > 0.95
  assert scores["eval_entities_LOC"] == "6"
  rows = read_jsonl(trained.folder / "dev_scores.jsonl")
  assert [row["step"] for row in rows] == [40, 80]
  assert score == pytest.approx(max(row["f1"] for row in rows))


def test_dev_predictions_are_those_of_the_results(trained):
  lines = read_jsonl(trained.folder / "eval_predictions.jsonl")
  guids = [f"dev-{n}" for n in range(1, 7)]
  assert [line["guid"] for line in lines] == guids
  scores = ner_report.entity_metrics(
    [line["gold"] for line in lines], [line["predicted"] for line in lines]
  )
  for name, value in results(trained).items():
    if name.startswith("eval_"):
      assert float(value) == scores[name.removeprefix("eval_")], name


def test_the_report_has_entities_and_errors(trained):
  page = (trained.folder / "report.html").read_text()
  for heading in ("Curves", "Entities", "Worst errors"):
    assert f"<h2>{heading}" in page


def test_predictions_are_columns_and_places_in_text(trained):
  path = trained.folder / "test_predictions.conll"
  said = ner_files.read_sentences(str(path), ner_files.Columns())
  assert said[0].tags == ["B-PER", "O", "O", "B-LOC", "I-LOC"]
  assert len(said[1].words) == 31
  assert path.read_text().endswith("\u0000\tO\n\n")
  first, second, _ = read_jsonl(path.with_suffix(".jsonl"))
  places = [(e["label"], e["start"], e["end"]) for e in first["entities"]]
  assert places == [("PER", 0, 3), ("LOC", 12, 20)]
  # The last of 31 words, in the last of several windows.
  assert second["entities"][-1]["text"] == "ann"


def test_a_predictor_finds_what_the_command_found(trained):
  with run_ner.Predictor(str(trained.folder)) as predictor:
    (found,) = predictor.predict(["Bob went to new Oslo."])
  expected = [("PER", "Bob"), ("LOC", "new Oslo")]
  assert [(f.label, f.text) for f in found] == expected
  assert all(0.5 < f.probability <= 1.0 for f in found)


def test_a_trained_model_needs_no_training_data(place, trained, tmp_path):
  folder = shutil.copytree(trained.folder, tmp_path / "trained")
  (tmp_path / "text.jsonl").write_text('{"text": "ann went to new lima."}\n')
  predict = "--do_predict", f"--predict_file={tmp_path / 'text.jsonl'}"
  commands.succeed("run_ner.py", *flags(place, *predict, output_dir=folder))
  assert "new lima" in (folder / "text_predictions.jsonl").read_text()


@pytest.mark.train
def test_bioes_is_learnt_from_bio_with_invalid_tags(place, tmp_path):
  path = tmp_path / "train.conll"
  path.write_text(columns(range(8)).replace("B-PER", "I-PER"))
  data = "--scheme=BIOES", f"--train_file={path}"
  options = *training(place), *data, "--num_train_epochs=1"
  given = flags(place, *options, output_dir=tmp_path / "out")
  done = commands.succeed("run_ner.py", *given)
  assert "8 tags are invalid in BIO" in done.stderr
  model = run_outputs.read_json(tmp_path / "out" / "model.json")
  assert model["labels"][:5] == ["O", "B-LOC", "B-PER", "E-LOC", "E-PER"]


def test_a_label_that_training_never_saw_is_refused(place, trained, tmp_path):
  path = tmp_path / "dev.conll"
  path.write_text("went\tO\n\nann\tB-DRUG\n")
  given = flags(place, f"--dev_file={path}", output_dir=trained.folder)
  line = commands.fail("run_ner.py", "--do_eval", *given)
  assert "dev.conll, line 3: 'DRUG' (at 'ann')" in line


@pytest.mark.graph
def test_the_loss_of_parts_adds_up():
  rng = np.random.default_rng(1)
  logits = rng.normal(size=[4, 3, 5]).astype(np.float32)
  labels = np.array([[1, -1, 0], [-1, -1, -1], [2, 3, -1], [4, 4, 4]], np.int32)
  whole, first, second = (
    run_ner.tagging_loss(tf.constant(logits[p]), tf.constant(labels[p]), *more)
    for p, *more in ((slice(4),), (slice(2), 7 / 2), (slice(2, 4), 7 / 2))
  )
  log_probs = special.log_softmax(logits, axis=-1)
  picked = [
    log_probs[b, s, labels[b, s]] for b, s in zip(*np.nonzero(labels >= 0))
  ]
  np.testing.assert_allclose(whole, -np.mean(picked), rtol=1e-5)
  np.testing.assert_allclose((first + second) / 2, whole, rtol=1e-5)


@pytest.mark.unit
@pytest.mark.parametrize(
  "gold, predicted, accuracy",
  [
    ("ORG ORG O PER", "ORG O O PER", 0.75),
    ("B-ORG L-ORG O U-PER", "U-ORG O O U-PER", 0.5),
    ("B-ORG E-ORG O S-PER", "S-ORG O O S-PER", 0.5),
    ("I-ORG I-ORG O I-PER", "I-ORG O O I-PER", 0.75),
    ("B-ORG I-ORG O B-PER", "B-ORG O O B-PER", 0.75),
  ],
)
def test_scores_of_entities_in_any_scheme(gold, predicted, accuracy):
  scores = ner_report.entity_metrics([gold.split()], [predicted.split()])
  assert [scores[f"f1{kind}"] for kind in ("", "_ORG", "_PER")] == [0.5, 0, 1]
  assert scores["entities_ORG"] == 1
  assert scores["accuracy"] == accuracy
