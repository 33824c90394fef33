"""Tests of texts with several labels, of class weights and of choices."""

import csv
import itertools
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_classifier
import tiny_model
from reference_data import read_jsonl
from run_outputs import read_json
from scipy import special
from sklearn.utils.class_weight import compute_class_weight

import modeling
import run_classifier
import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import batch_predictor, model_inputs
from bertlib.io import result_files
from bertlib.tasks.classification import (
  classification_decoding,
  classification_records,
  classifier_inputs,
)
from bertlib.tasks.classification.classification import (
  ChoiceExample,
  InputExample,
  Problem,
)
from optimization import StepOptions

pytestmark = pytest.mark.train

VOCAB = tiny_classifier.VOCAB
CONFIG = tiny_model.config(
  len(VOCAB),
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
  initializer_range=0.2,  # far from all outputs alike
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with a small model's files."""
  place = tmp_path_factory.mktemp("kinds")
  tiny_model.write_files(place, VOCAB, CONFIG)
  return place


@pytest.fixture(scope="module")
def classify(place):
  """Runs the script on a folder's data, all that is done in `out` in it."""
  with commands.in_process(run_classifier) as main:

    def classify(folder, *more):
      changed = {"task_name": "tsv", "data_dir": folder, "xla": "off"}
      changed |= {"train_batch_size": 8, "learning_rate": 5e-3}
      changed["output_dir"] = folder / "out"
      main(*tiny_classifier.flags(place, **changed), *more)
      return folder / "out"

    yield classify


def read_outputs(output_dir):
  """The probabilities, and the lines about them."""
  lines = read_jsonl(output_dir / "test_results.jsonl")
  return np.loadtxt(output_dir / "test_results.tsv"), lines


def read_results(output_dir):
  return result_files.read_results(str(output_dir / "eval_results.txt"))


def run_graph(build):
  """Values of `build` in a graph, with weights from one seed."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.set_random_seed(1)
    outputs = build()
    session.run(tf.global_variables_initializer())
    return session.run(outputs)


def random_tokens(shape):
  """Tokens of random lengths, padded."""
  rng = np.random.default_rng(2)
  lengths = rng.integers(3, shape[-1] + 1, shape[:-1])
  mask = (np.arange(shape[-1]) < lengths[..., None]).astype(np.int32)
  return {
    "input_ids": rng.integers(5, len(VOCAB), shape, np.int32) * mask,
    "input_mask": mask,
    "segment_ids": rng.integers(0, 2, shape, np.int32) * mask,
  }


def create_model(tokens, labels, num_labels, kind, *more):
  tensors = map(tf.constant, [*tokens.values(), labels])
  return run_classifier.create_model(
    CONFIG, False, *tensors, num_labels, False, kind, None, None, *more
  )


# Any number of labels: one that a word determines, and two rare ones whose
# probability, given a word, is at most 0.4.

TOPICS = ["animal", "place", "mood"]
TEXTS = [
  f"{subject} {verb} {subject} {verb}"
  for subject in ("cat", "dog")
  for verb in ("ran", "sat", "home", "bad")
]
TRUTH = np.array(
  [
    ["cat" in text, "home" in text and n < 2, "bad" in text and n > 2]
    for n in (*range(5), *range(5))
    for text in TEXTS
  ]
)
MULTI_LABEL = "--problem_type=multi_label"
LABELS = f"--labels={','.join(TOPICS)}"


def f1(truth, said):
  return 2 * np.sum(truth & said) / (np.sum(truth) + np.sum(said))


def check_thresholds(lines, thresholds):
  """Checks that labels are those whose probabilities reach their thresholds."""
  assert any(line["label"] for line in lines)
  for line in lines:
    assert line["label"] == [
      label
      for label, probability in line["probabilities"].items()
      if probability >= thresholds[label]
    ]


@pytest.fixture(scope="module")
def topics(once, place, classify):
  """The folder of a model that learned them."""

  def make(folder):
    rows = [
      f"{text}\t{','.join(itertools.compress(TOPICS, row))}\n"
      for text, row in zip(itertools.cycle(TEXTS), TRUTH)
    ]
    for name in ("train", "dev"):
      (folder / f"{name}.tsv").write_text("".join(rows))
    (folder / "test.tsv").write_text("\n".join([*TEXTS * 10, ""]))
    classify(
      folder,
      *(MULTI_LABEL, LABELS, "--do_train", "--do_eval", "--do_predict"),
      *("--train_batch_size=20", "--learning_rate=1e-3"),
      "--num_train_epochs=64",
    )

  return once.copy("trained_topics", make, place / "topics") / "out"


def test_several_labels_are_learned(topics):
  constants = itertools.product([False, True], repeat=len(TOPICS))
  best = max(f1(TRUTH, np.tile(said, [len(TRUTH), 1])) for said in constants)
  assert best < 0.6
  assert read_results(topics)["eval_micro_f1"] > 0.8


@pytest.fixture
def data(topics, tmp_path):
  """A folder with the data of the model."""
  return shutil.copytree(
    topics.parent, tmp_path / "data", ignore=lambda *_: ["out"]
  )


def write_table(path, delimiter, rows):
  with open(path, "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)


def test_a_label_per_column_is_learned_and_predicted(classify, tmp_path):
  rows = [
    {"id": f"T{n}", "text": text, **dict(zip(TOPICS, map(int, row)))}
    for n, (text, row) in enumerate(zip(TEXTS, TRUTH))
  ]
  write_table(tmp_path / "train.csv", ";", rows)
  backwards = [dict(reversed(row.items())) for row in rows]
  write_table(tmp_path / "dev.csv", ",", backwards)
  columns = "--text_a_column=text", f"--label_column={','.join(TOPICS)}"
  given = *columns, MULTI_LABEL, "--id_column=id", "--train_file=train.csv"
  output_dir = classify(tmp_path, *given, "--do_train")
  # The folder knows columns, labels and ids.
  classify(tmp_path, "--dev_file=dev.csv", "--do_eval")
  lines = read_jsonl(output_dir / "eval_predictions.jsonl")
  assert [(line["guid"], line["gold"]) for line in lines] == [
    (row["id"], [topic for topic in TOPICS if row[topic]]) for row in rows
  ]
  odd = {"text": 'the "cat"\tran\n\nhome\u2028and', "x": 1}
  write_table(tmp_path / "ids.csv", ";", [odd | {"id": 7}])
  write_table(tmp_path / "plain.csv", ",", [odd])
  for name, guid in ("ids", "7"), ("plain", "text-2"):
    classify(tmp_path, "--do_predict", f"--predict_file={tmp_path}/{name}.csv")
    written = (output_dir / f"{name}_predictions.tsv").read_text()
    names, cells = (line.split("\t") for line in written.split("\n")[:-1])
    (line,) = read_jsonl(output_dir / f"{name}_predictions.jsonl")
    assert names == ["id", "label", "text", *TOPICS]
    assert line["guid"] == guid
    label = ",".join(line["label"])
    assert cells[:3] == [guid, label, 'the "cat" ran  home and']
    numbers = list(map(float, cells[3:]))
    np.testing.assert_allclose(numbers, list(line["probabilities"].values()))


def test_predictions_of_pairs_and_numbers_have_a_header(tmp_path):
  path, rows = str(tmp_path / "x"), [np.array([2.5], np.float32)]
  examples, problem = [InputExample("7", "a", "b")], Problem("regression")
  for of_file, expected in (
    (True, "id\tlabel\ttext_a\ttext_b\n7\t2.5\ta\tb\n"),
    (False, "2.5\n"),
  ):
    classification_decoding.write_predictions(
      path, examples, rows, problem, None, of_file
    )
    assert (tmp_path / "x.tsv").read_text() == expected


def test_metrics_are_written_before_the_report_is_made(
  data, classify, monkeypatch
):
  def refuse(*_, **__):
    raise MemoryError

  monkeypatch.setattr(run_classifier.classification_report, "intervals", refuse)
  actions = "--num_train_epochs=0.2", "--do_train", "--do_eval"
  with pytest.raises(MemoryError):
    classify(data, MULTI_LABEL, *actions)
  assert {*read_results(data / "out")["thresholds"]} == {*TOPICS}


def test_tuned_thresholds_beat_a_half(topics):
  results, model = read_results(topics), read_json(topics / "model.json")
  assert results["eval_macro_f1_tuned"] > results["eval_macro_f1"] + 0.15
  thresholds = results["thresholds"]
  assert set(thresholds) == set(TOPICS)
  assert 0 < thresholds["place"] < 0.5
  assert 0 < thresholds["mood"] < 0.5
  assert model["thresholds"] == thresholds
  assert model["kind"] == "multi_label"
  assert model["tuned_on"].endswith("/dev.tsv")


def test_dev_predictions_have_the_labels_of_the_metrics(topics):
  lines = read_jsonl(topics / "eval_predictions.jsonl")
  gold, said = (
    np.array([[topic in line[name] for topic in TOPICS] for line in lines])
    for name in ("gold", "predicted")
  )
  np.testing.assert_array_equal(gold, TRUTH)
  expected = pytest.approx(f1(gold, said))
  assert read_results(topics)["eval_micro_f1"] == expected


def test_predictions_obey_the_thresholds(topics):
  results = read_results(topics)
  table, lines = read_outputs(topics)
  check_thresholds(lines, results["thresholds"])
  for row, line in zip(table, lines):
    np.testing.assert_allclose(list(line["probabilities"].values()), row)
  # The texts are those of the dev set.
  said = np.array([[t in line["label"] for t in TOPICS] for line in lines])
  scores = [f1(*columns) for columns in zip(TRUTH.T, said.T)]
  assert results["eval_macro_f1_tuned"] == pytest.approx(np.mean(scores))
  assert results["eval_micro_f1_tuned"] == pytest.approx(f1(TRUTH, said))


def test_the_predictor_obeys_stored_and_given_thresholds(topics):
  table, lines = read_outputs(topics)
  with run_classifier.Predictor(str(topics)) as predictor:
    assert predictor.problem == ("multi_label", TOPICS)
    stored = predictor.predict(TEXTS)
    given = predictor.predict(TEXTS, {"mood": 0})
    for thresholds in ({"weather": 0.5}, {"mood": float("nan")}, {"mood": 2}):
      with pytest.raises(InputError, match="thresholds: "):
        predictor.predict(["a"], thresholds)
  assert_equal_predictions(stored, table, lines)
  assert any("mood" not in prediction.label for prediction in stored)
  for prediction, other in zip(stored, given):
    assert {*other.label} == {*prediction.label, "mood"}


def assert_equal_predictions(said, table, lines):
  """Checks predictions of a `Predictor` by the files of the command."""
  for prediction, row, line in zip(said, table, lines):
    assert prediction.label == line["label"]
    values = list(prediction.probabilities.values())
    np.testing.assert_allclose(values, row, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tunes", [False, True])
def test_predictions_obey_the_thresholds_tuned_last(
  topics, data, classify, tunes
):
  checkpoint = f"--init_checkpoint={tf.train.latest_checkpoint(str(topics))}"
  actions = ["--do_predict", "--do_eval"][: 1 + tunes]
  output_dir = classify(data, MULTI_LABEL, checkpoint, *actions)
  _, lines = read_outputs(output_dir)
  assert list(lines[0]["probabilities"]) == TOPICS
  results = read_results(output_dir if tunes else topics)
  check_thresholds(lines, results["thresholds"])


def test_a_model_of_several_labels_is_no_model_of_one(topics, classify):
  flags = LABELS, "--do_predict", "--problem_type=classification"
  with pytest.raises(InputError, match=r"'multi_label', but .* 'classif"):
    classify(topics.parent, *flags)


# Class weights

WEIGHTS = [1.0, 4.0, 0.25]


@pytest.mark.graph
def test_a_weighted_loss_equals_numpy():
  tokens, labels = random_tokens([6, 8]), np.array([0, 0, 1, 2, 1, 0])
  loss, losses, logits, _ = run_graph(
    lambda: create_model(tokens, labels, 3, "classification", WEIGHTS)
  )
  expected = -special.log_softmax(logits, axis=-1)[range(6), labels]
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  weights = np.take(WEIGHTS, labels)
  mean = np.average(expected, weights=weights)
  assert mean != pytest.approx(expected.mean(), rel=1e-4)
  assert loss == pytest.approx(mean, rel=1e-5)


@pytest.mark.graph
def test_a_weighted_loss_of_several_labels_equals_numpy():
  tokens = random_tokens([6, 8])
  labels = np.random.default_rng(3).integers(0, 2, [6, 3]).astype(np.float32)
  loss, losses, logits, probabilities = run_graph(
    lambda: create_model(tokens, labels, 3, "multi_label", WEIGHTS)
  )
  said = special.expit(logits.astype(np.float64))
  np.testing.assert_allclose(probabilities, said, rtol=1e-5)
  having, lacking = -labels * np.log(said), -(1 - labels) * np.log(1 - said)
  np.testing.assert_allclose(losses, (having + lacking).mean(1), rtol=1e-5)
  mean = (np.array(WEIGHTS) * having + lacking).mean()
  assert loss == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
  ("kind", "labels"),
  [
    ("classification", np.array([0, 0, 0, 2, 1, 2, 1, 1], np.int32)),
    ("multi_label", np.eye(3, dtype=np.float32)[[0, 0, 0, 2, 1, 2, 1, 1]]),
  ],
)
def test_weighted_parts_of_a_batch_make_the_whole(kind, labels, monkeypatch):
  monkeypatch.setattr(modeling, "dropout", lambda tensor, *_, **__: tensor)
  batch = random_tokens([8, 8]) | {"label_ids": labels}

  def step(num_micro_batches):
    model_fn = run_classifier.model_fn_builder(
      *(CONFIG, 3, None, 1e-3, 4, 0, False, False, kind),
      options=StepOptions(clip_norm=None),
      num_micro_batches=num_micro_batches,
      label_weights=WEIGHTS,
    )
    steps = {name: value[np.newaxis] for name, value in batch.items()}
    return run_outputs.train_steps(model_fn, steps)

  (whole_loss, whole), (loss, parts) = step(1), step(2)
  assert loss == pytest.approx(whole_loss, rel=1e-5)
  assert np.abs(whole["output_weights/adam_m"]).max() > 1e-4
  for name in whole:
    if name.endswith("/adam_m"):  # the gradient as the optimizer has it
      np.testing.assert_allclose(
        parts[name], whole[name], rtol=1e-4, atol=1e-8, err_msg=name
      )


def read_class_weights(problem, labels, *given):
  examples = [InputExample("", "", None, label) for label in labels]
  return classifier_inputs.class_weights(list(given), problem, examples)


@pytest.mark.unit
def test_balanced_weights_equal_those_of_scikit_learn():
  labels, names = list("bbbbbbbaac"), list("cab")
  problem = Problem("classification", names)
  weights = read_class_weights(problem, labels, "balanced")
  expected = compute_class_weight(
    "balanced", classes=np.array(names), y=np.array(labels)
  )
  np.testing.assert_allclose(weights, expected, rtol=1e-12)


@pytest.mark.unit
def test_having_a_label_counts_as_much_as_lacking_it():
  labels = [["a", "b"], ["a"], [], ["a"], []]
  problem = Problem("multi_label", ["a", "b", "c"])
  weights = read_class_weights(problem, labels, "balanced")
  # "a" three times of five, "b" once.
  assert weights[:2] == pytest.approx([2 / 3, 4 / 1])


@pytest.mark.unit
def test_weights_by_label():
  names = Problem("classification", ["a", "b:c", "d"])
  weights = read_class_weights(names, ["a"], "b:c:2.5", "a:0")
  assert weights == [0.0, 2.5, 1.0]
  assert read_class_weights(names, ["a"]) is None
  assert read_class_weights(names, [], "a:7") is None  # for training alone


@pytest.mark.unit
@pytest.mark.parametrize(
  "wrong",
  ["c:2", "a", "a:", "2", ":2", "a:-1", "a:nan", "a:inf", "a:x", "balanced:1"],
)
def test_wrong_weights_are_refused(wrong):
  with pytest.raises(InputError, match=f"--class_weights={wrong}: .* a, b "):
    read_class_weights(Problem("multi_label", ["a", "b"]), ["a"], "b:1", wrong)


@pytest.mark.unit
def test_numbers_and_choices_have_no_classes():
  for problem in (Problem("regression"), Problem("multiple_choice", ["a"])):
    with pytest.raises(InputError, match=r"--class_weights: .* has no classes"):
      read_class_weights(problem, ["a"], "balanced")


def test_weights_change_what_is_learned(classify, tmp_path):
  """One text whose label is "no" three times in four."""
  (tmp_path / "train.tsv").write_text("it is\tno\n" * 24 + "it is\tyes\n" * 8)
  flags = "--class_weights=yes:9", "--num_train_epochs=12", "--do_train"
  output_dir = classify(tmp_path, *flags)
  with run_classifier.Predictor(str(output_dir)) as predictor:
    (said,) = predictor.predict(["it is"])
  assert said.label == "yes"
  assert said.probabilities["yes"] == pytest.approx(9 / 12, abs=0.1)


# Choices


def write_questions(path, count, has_labels=True):
  """Questions in SWAG's columns, of which the ending with "good" is right."""
  lines = [",sent1,sent2,ending0,ending1,ending2,ending3"]
  lines[0] += ",label" * has_labels
  for number in range(count):
    right = number * 7 % 4
    texts = ["is bad" + " and sat" * (number % 4)] * 4
    texts[right] = "is good"
    text = "the cat ran home" + " ran" * (number % 3)
    line = f"{number},{text},it,{','.join(texts)}"
    lines.append(f"{line},{right}" if has_labels else line)
  path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def swag(once, place, classify):
  """The folder of a model that learned to choose."""

  def make(folder):
    write_questions(folder / "train.csv", 48)
    write_questions(folder / "val.csv", 13)
    write_questions(folder / "test.csv", 11, has_labels=False)
    flags = "--task_name=SWAG", "--num_train_epochs=10", "--group_by_length"
    classify(folder, *flags, "--do_train", "--do_eval", "--do_predict")

  return once.copy("trained_swag", make, place / "swag") / "out"


def test_choosing_is_learned(swag):
  results = read_results(swag)
  assert results["eval_accuracy"] > 0.9  # by chance 0.25
  matrix = np.array(results["confusion_matrix"])
  assert matrix.shape == (4, 4) and matrix.sum() == 13
  assert np.trace(matrix) / 13 == pytest.approx(results["eval_accuracy"])
  # Each choice has a logit of its own.
  variables = dict(tf.train.list_variables(str(swag)))
  assert variables["output_weights"] == [1, 16]


def test_the_predictor_chooses_as_the_command(swag):
  table, lines = read_outputs(swag)
  assert [line["guid"] for line in lines] == [
    f"test-{n + 1}" for n in range(11)
  ]
  assert table.shape == (11, 4)
  np.testing.assert_allclose(table.sum(axis=1), 1, rtol=1e-5)
  processor = run_classifier.classification.SwagProcessor()
  examples = processor.get_test_examples(str(swag.parent))
  with run_classifier.Predictor(str(swag), batch_size=3) as predictor:
    said = predictor.predict([example.choices for example in examples])
  assert_equal_predictions(said, table, lines)
  for row, line in zip(table, lines):
    assert line["label"] == str(row.argmax())


def test_the_predictor_refuses_another_number_of_choices(swag, monkeypatch):
  questions = [[("a", "b")] * 4] * 3 + [[("a", "b")] * 3]
  monkeypatch.setattr(batch_predictor, "_BLOCK_SIZE", 2)
  refused = pytest.raises(InputError, match=r"^texts\[3\]: has 3 choices, .* 4")
  with run_classifier.Predictor(str(swag)) as model, refused:
    model.predict(questions)


def test_texts_without_choices_are_refused(swag, classify):
  flags = "--task_name=swag", "--do_predict", "--predict_file=-"
  with pytest.raises(InputError, match="this task needs choices"):
    classify(swag.parent, *flags)


@pytest.mark.graph
def test_choices_are_scored_one_by_one():
  tokens, labels = random_tokens([5, 3, 8]), np.array([2, 0, 1, 1, 0])

  def build():
    together = create_model(tokens, labels, 3, "multiple_choice")
    with tf.variable_scope("", reuse=True):
      by_choice = [
        create_model(
          {name: value[:, choice] for name, value in tokens.items()},
          np.zeros(5, np.float32),
          1,
          "regression",
        )[-1]
        for choice in range(3)
      ]
    return together, tf.concat(by_choice, axis=1)

  (loss, losses, logits, probabilities), scores = run_graph(build)
  assert np.ptp(scores) > 1e-3
  np.testing.assert_allclose(logits, scores, rtol=0, atol=1e-6)
  np.testing.assert_allclose(
    probabilities, special.softmax(scores, axis=1), rtol=1e-5
  )
  expected = -special.log_softmax(scores, axis=1)[range(5), labels]
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  assert loss == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.unit
@pytest.mark.parametrize("by_length", [False, True])
def test_batches_of_choices_are_trimmed_and_keep_all_tokens(
  tmp_path, place, by_length
):
  problem = Problem("multiple_choice", ["A", "B", "C"])
  examples = [
    ChoiceExample(
      str(number),
      [("it " * before, "is " * after) for after in (1, number + 1, 2)],
      "ABC"[number % 3],
    )
    for number, before in enumerate([1, 5, 2, 9, 3])
  ]
  path = str(tmp_path / "records")
  classification_records.file_based_convert_examples_to_features(
    examples,
    problem.labels,
    32,
    tokenization.FullTokenizer(str(place / "vocab.txt")),
    path,
    problem,
  )

  def read(trim):
    input_fn = classification_records.file_based_input_fn_builder(
      path, 32, False, False, problem, trim=trim, by_length=by_length
    )
    return list(input_fn({"batch_size": 2}).as_numpy_iterator())

  longest = []
  for batch, whole in zip(read(True), read(False)):
    length = batch["input_ids"].shape[-1]
    assert length % 8 == 0 and length < 32
    assert whole["input_ids"].shape[1:] == (3, 32)
    for name, value in whole.items():
      if name in model_inputs.TOKEN_FEATURES:
        assert not value[..., length:].any()
        value = value[..., :length]
      np.testing.assert_array_equal(batch[name], value, err_msg=name)
    longest += batch["input_mask"].sum(axis=-1).max(axis=-1).tolist()
  # With [CLS] and two [SEP]; the longest ending has two or more words.
  befores = enumerate([1, 5, 2, 9, 3])
  expected = [before + max(2, n + 1) + 3 for n, before in befores]
  assert longest == (sorted(expected)[::-1] if by_length else expected)
