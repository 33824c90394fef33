"""Tests of tagging words, most of them of its command line."""

import contextlib
import json
import re
import types

import commands
import numpy as np
import pytest

import modeling
import run_ner
from bertlib.data import input_pipeline, ner

pytestmark = pytest.mark.process

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES = ["ann", "bob", "cat", "dan"]
PLACES = ["paris", "rome", "oslo", "lima"]
VOCAB = [*SPECIAL, *NAMES, *PLACES, "went", "to", "and", "new", ".", "##s"]
CONFIG = modeling.BertConfig(
  vocab_size=len(VOCAB),
  hidden_size=32,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=64,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
  max_position_embeddings=48,
  type_vocab_size=2,
)


def sentence(number):
  """Words and tags of one of the sentences on who went where."""
  name, place = NAMES[number % 4], PLACES[number // 4 % 4]
  words = [name, "went", "to", "new", place, "."]
  return words, ["B-PER", "O", "O", "B-LOC", "I-LOC", "O"]


def columns(numbers):
  return "\n".join(
    "".join(f"{word}\t{tag}\n" for word, tag in zip(*sentence(number)))
    for number in numbers
  )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with a small model's files and data."""
  place = tmp_path_factory.mktemp("ner")
  (place / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
  (place / "bert_config.json").write_text(CONFIG.to_json_string())
  (place / "train.conll").write_text(columns(range(16)))
  (place / "dev.conll").write_text(columns(range(0, 16, 3)))
  return place


def flags(place, *more, output_dir=None):
  return [
    f"--vocab_file={place / 'vocab.txt'}",
    f"--bert_config_file={place / 'bert_config.json'}",
    f"--output_dir={output_dir or place / 'out'}",
    "--max_seq_length=16",
    *more,
  ]


def training(place):
  return [
    "--do_train",
    f"--train_file={place / 'train.conll'}",
    "--train_batch_size=8",
    "--num_train_epochs=40",
    "--learning_rate=3e-3",
    "--bias_correction",
  ]


@pytest.fixture(scope="module")
def trained(place):
  """The folder after a training, scored and with predictions."""
  (place / "test.conll").write_text(
    "bob\nwent\nto\nnew\noslo\n\n" + "and\n" * 30 + "ann\n\n\u0000\n"
  )
  commands.succeed(
    "run_ner.py",
    *flags(place, *training(place)),
    "--do_eval",
    f"--dev_file={place / 'dev.conll'}",
    "--do_predict",
    f"--predict_file={place / 'test.conll'}",
    "--gradient_accumulation_steps=2",
    "--group_by_length",
    "--eval_steps=40",
  )
  return place


def results(place):
  text = (place / "out" / "eval_results.txt").read_text()
  return dict(re.findall(r"(\S+) = (.*)", text))


def test_it_learns_to_tag(trained):
  scores = results(trained)
  assert float(scores["eval_f1"]) > 0.95
  assert int(scores["eval_entities_LOC"]) == 6


def test_the_score_reported_is_that_of_the_best_weights(trained):
  with open(trained / "out" / "dev_scores.jsonl") as file:
    rows = list(map(json.loads, file))
  assert [row["step"] for row in rows] == [40, 80]
  best = max(row["f1"] for row in rows)
  assert float(results(trained)["eval_f1"]) == pytest.approx(best)


def test_the_report_has_entities_and_lengths(trained):
  page = (trained / "out" / "report.html").read_text()
  for heading in ("Dev scores", "Entities", "Calibration", "Lengths"):
    assert f"<h2>{heading}" in page


@pytest.mark.unit
def test_tagging_may_take_so_long_that_progress_is_told(monkeypatch):
  bar = contextlib.nullcontext(types.SimpleNamespace(update=lambda: True))
  monkeypatch.setattr(run_ner.app, "progress", lambda *_: bar)
  monkeypatch.setattr(
    run_ner, "FLAGS", types.SimpleNamespace(max_seq_length=8, use_tpu=False)
  )
  monkeypatch.setattr(input_pipeline, "record_input_fn", lambda *_, **__: None)
  sentences = [ner.from_text("ann left")]
  windows = [ner.Window([2, 5, 6, 3], [-1, 0, 1, -1], 0)]
  row = {"unique_ids": 0, "probabilities": np.eye(2)[[0, 1, 0, 0]]}
  estimator = types.SimpleNamespace(predict=lambda *_, **__: iter([row]))
  said = run_ner.tag(estimator, sentences, windows, "", ["O", "B-PER"], None)
  assert said == [(["B-PER", "O"], [1.0, 1.0])]


def test_predictions_as_columns(trained):
  text = (trained / "out" / "test_predictions.conll").read_text()
  said = ner.read_sentences(
    str(trained / "out" / "test_predictions.conll"), ner.Columns()
  )
  assert said[0].tags == ["B-PER", "O", "O", "B-LOC", "I-LOC"]
  assert len(said[1].words) == 31
  assert text.endswith("\u0000\tO\n\n")


def test_predictions_with_places_in_text(trained):
  with open(trained / "out" / "test_predictions.jsonl") as file:
    first, second, _ = map(json.loads, file)
  places = [(e["label"], e["start"], e["end"]) for e in first["entities"]]
  assert places == [("PER", 0, 3), ("LOC", 12, 20)]
  # The last of 31 words, in the last of several windows.
  assert second["entities"][-1]["text"] == "ann"


def test_a_predictor_finds_what_the_command_found(trained):
  with run_ner.Predictor(str(trained / "out")) as predictor:
    (found,) = predictor.predict(["Bob went to new Oslo."])
  assert [(f.label, f.text) for f in found] == [
    ("PER", "Bob"),
    ("LOC", "new Oslo"),
  ]
  assert all(0.5 < f.probability <= 1.0 for f in found)


def test_a_trained_model_needs_no_training_data(trained, tmp_path):
  (tmp_path / "text.jsonl").write_text('{"text": "ann went to new lima."}\n')
  commands.succeed(
    "run_ner.py",
    *flags(trained),
    "--do_predict",
    f"--predict_file={tmp_path / 'text.jsonl'}",
  )
  line = (trained / "out" / "text_predictions.jsonl").read_text()
  assert "new lima" in line


def test_tags_that_break_the_scheme_are_counted(place, tmp_path):
  path = tmp_path / "train.conll"
  path.write_text(columns(range(8)).replace("B-PER", "I-PER"))
  done = commands.succeed(
    "run_ner.py",
    *flags(place, *training(place), output_dir=tmp_path / "out"),
    f"--train_file={path}",
    "--num_train_epochs=1",
  )
  assert "8 tags are not as BIO has them" in done.stderr


def test_bioes_is_learnt_from_bio(place, tmp_path):
  commands.succeed(
    "run_ner.py",
    *flags(place, *training(place), output_dir=tmp_path / "out"),
    "--num_train_epochs=1",
    "--scheme=BIOES",
  )
  model = json.loads((tmp_path / "out" / "model.json").read_text())
  assert model["labels"][:5] == ["O", "B-LOC", "B-PER", "E-LOC", "E-PER"]


@pytest.mark.parametrize(
  "text, message",
  [
    ("ann\tB-PER\nwent\n", r"train.conll, line 2: has 1 columns"),
    ("ann\nwent\n", r"train.conll, line 1: has words without tags"),
    ("", r"train.conll: has no sentences"),
  ],
)
def test_bad_training_data_is_refused(place, tmp_path, text, message):
  path = tmp_path / "train.conll"
  path.write_text(text)
  line = commands.fail(
    "run_ner.py",
    *flags(place, *training(place), output_dir=tmp_path / "out"),
    f"--train_file={path}",
  )
  assert re.search(message, line)
  assert not (tmp_path / "out").exists()


def test_a_label_that_training_never_saw_is_refused(trained, tmp_path):
  path = tmp_path / "dev.conll"
  path.write_text("went\tO\n\nann\tB-DRUG\n")
  line = commands.fail(
    "run_ner.py", *flags(trained), "--do_eval", f"--dev_file={path}"
  )
  assert "dev.conll, line 3: 'DRUG' (at 'ann')" in line


@pytest.mark.parametrize(
  "more, message",
  [
    ([], "nothing to do"),
    (["--do_train"], "--train_file is needed with --do_train"),
    (["--do_predict", "--predict_file=x"], "holds no trained model"),
  ],
)
def test_flags_that_make_no_sense_are_refused(place, tmp_path, more, message):
  line = commands.fail(
    "run_ner.py", *flags(place, *more, output_dir=tmp_path / "out")
  )
  assert message in line


@pytest.mark.graph
def test_the_loss_of_parts_adds_up():
  import tensorflow.compat.v1 as tf

  rng = np.random.default_rng(1)
  logits = rng.normal(size=[4, 3, 5]).astype(np.float32)
  labels = np.array([[1, -1, 0], [-1, -1, -1], [2, 3, -1], [4, 4, 4]], np.int32)
  with tf.Graph().as_default(), tf.Session() as session:
    whole, first, second = session.run(
      [
        run_ner.tagging_loss(tf.constant(logits), tf.constant(labels)),
        *(
          run_ner.tagging_loss(
            tf.constant(logits[part]), tf.constant(labels[part]), 7 / 2
          )
          for part in (slice(0, 2), slice(2, 4))
        ),
      ]
    )
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  picked = [
    log_probs[b, s, labels[b, s]] for b, s in zip(*np.nonzero(labels >= 0))
  ]
  np.testing.assert_allclose(whole, -np.mean(picked), rtol=1e-5)
  np.testing.assert_allclose((first + second) / 2, whole, rtol=1e-5)


@pytest.mark.unit
def test_scores_are_of_entities():
  scores = run_ner.score(
    [["B-X", "I-X", "O", "B-Y"]], [["B-X", "O", "O", "B-Y"]]
  )
  assert scores["f1"] == 0.5
  assert scores["f1_X"] == 0.0
  assert scores["f1_Y"] == 1.0
  assert scores["accuracy"] == 0.75
