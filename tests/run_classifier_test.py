"""Tests of the classifier, most of them of its command line."""

import functools
import json
import os
import re
import shutil
from types import SimpleNamespace

import commands
import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow.compat.v1 as tf
import trained_models
from reference_data import read_jsonl
from run_outputs import read_results
from tiny_classifier import SENTENCES, flags

import modeling
import run_classifier
import tokenization
from bertlib.checkpoints import checkpoint_files
from bertlib.data import model_inputs

pytestmark = pytest.mark.process


place = trained_models.data_fixture("classifier")
trained = trained_models.fixture("classifier")  # for twelve steps


def classify(place, *actions, stdin=None, **changed):
  given = flags(place, **({"xla": "off"} | changed))
  return commands.succeed("run_classifier.py", *actions, *given, input=stdin)


def refuse(place, *actions, largest_file=None, **changed):
  given = "--do_train", *actions, *flags(place, **changed)
  return commands.fail("run_classifier.py", *given, largest_file=largest_file)


# Lines of XLA in TensorFlow 2.15, which has no setting for them.
XLA_LINES = ("absl::InitializeLog", "device_compiler.h", "SetPriority")


def test_the_log_has_no_line_of_tensorflow(trained):
  is_oldest = tf.__version__.startswith("2.15.")
  for line in trained.log.splitlines():
    if is_oldest and any(part in line for part in XLA_LINES):
      continue
    assert re.match(r"\d\d:\d\d:\d\d ", line), line


def test_results_are_those_of_the_dev_predictions(trained):
  results = read_results(trained.folder / "eval_results.txt")
  assert list(results) == sorted(results)
  assert {"eval_f1", "eval_loss", "loss"} < set(results)
  assert results["global_step"] == "12"
  lines = read_jsonl(trained.folder / "eval_predictions.jsonl")
  assert [line["guid"] for line in lines] == ["dev-1", "dev-2", "dev-3"]
  matrix = np.zeros([2, 2], int)
  for line in lines:
    matrix[int(line["gold"]), int(line["predicted"])] += 1
  assert json.loads(results["confusion_matrix"]) == matrix.tolist()
  accuracy = np.trace(matrix) / 3
  assert float(results["eval_accuracy"]) == pytest.approx(accuracy, rel=1e-6)


def test_predictions_agree_in_both_files_and_with_the_predictor(trained):
  output_dir = trained.folder
  table = np.loadtxt(output_dir / "test_results.tsv", delimiter="\t")
  lines = read_jsonl(output_dir / "test_results.jsonl")
  assert [line["guid"] for line in lines] == ["test-1", "test-2", "test-3"]
  with run_classifier.Predictor(str(output_dir), batch_size=2) as predictor:
    said = predictor.predict([(a, b) for a, b, _ in SENTENCES[1:]])
  for line, row, prediction in zip(lines, table, said):
    assert line["label"] == str(row.argmax())
    np.testing.assert_allclose(list(line["probabilities"].values()), row)
    np.testing.assert_allclose(
      list(prediction.probabilities.values()), row, rtol=0, atol=1e-5
    )
    assert prediction.label == line["label"]


def test_a_folder_of_records_holds_what_the_reference_leaves(trained):
  names = set(os.listdir(trained.folder))
  assert {"train.tf_record", "eval.tf_record", "predict.tf_record"} <= names
  assert {"vocab.txt", "bert_config.json", "model.json"} <= names
  assert not [name for name in names if name.startswith(".bert-tmp-")]


def test_the_same_seed_gives_the_same_weights(place, trained):
  again, other = place / "again", place / "other_seed"
  classify(place, "--do_train", xla="auto", output_dir=again)
  run_outputs.assert_same_variables(again, trained.folder)
  once = {"num_train_epochs": 1, "output_dir": other}
  classify(place, "--do_train", "--seed=1", **once)
  weights, differ = map(run_outputs.read_variables, (again, other))
  assert (weights["output_weights"] != differ["output_weights"]).all()


def test_finished_training_is_not_repeated(place, trained, tmp_path):
  folder = shutil.copytree(trained.folder, tmp_path / "finished")
  index = tf.train.latest_checkpoint(str(folder)) + ".index"
  before = os.path.getmtime(index)
  log = classify(place, "--do_train", output_dir=folder).stderr
  assert "already" in log
  assert before == os.path.getmtime(index)


def test_program_equals_the_reference(tmp_path, golden):
  program = functools.partial(golden, "programs")
  runs = run_outputs.read_json(program("runs.json"))
  folder = reference_data.data(*runs["run_classifier"]["data"].split("/"))
  checkpoint = program("bert_model.ckpt.index").removesuffix(".index")
  commands.succeed(
    "run_classifier.py",
    "--task_name=MRPC",
    "--do_eval=true",
    "--do_predict=true",
    f"--data_dir={folder}",
    f"--vocab_file={reference_data.vocab(runs['vocab'])}",
    f"--bert_config_file={program('bert_config.json')}",
    f"--init_checkpoint={checkpoint}",
    "--max_seq_length=64",
    "--eval_batch_size=7",
    "--predict_batch_size=8",
    "--do_lower=True",
    f"--output_dir={tmp_path}",
  )
  results = read_results(tmp_path / "eval_results.txt")
  expected = read_results(program("classifier_eval_results.txt"))
  assert results["eval_accuracy"] == expected.pop("eval_accuracy")
  for key, value in expected.items():
    assert float(results[key]) == pytest.approx(float(value), abs=1e-5), key
  rows = np.loadtxt(tmp_path / "test_results.tsv", delimiter="\t")
  expected = np.loadtxt(program("classifier_test_results.tsv"), delimiter="\t")
  np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


@pytest.mark.graph
def test_create_model_equals_the_reference():
  tiny = functools.partial(reference_data.golden, "modeling", "tiny")
  inputs, heads = np.load(tiny("inputs.npz")), np.load(tiny("heads.npz"))
  checkpoint = tiny("bert_model.ckpt.index").removesuffix(".index")
  config = modeling.BertConfig.from_json_file(tiny("bert_config.json"))
  with tf.Graph().as_default(), tf.Session() as session:
    tokens = [inputs[name] for name in model_inputs.TOKEN_FEATURES]
    tensors = map(tf.constant, [*tokens, heads["label_ids"]])
    outputs = run_classifier.create_model(config, False, *tensors, 3, False)
    gradients = tf.gradients(outputs[0], tf.trainable_variables())
    norm = tf.linalg.global_norm(gradients)
    tf.train.init_from_checkpoint(checkpoint, {"bert/": "bert/"})
    session.run(tf.global_variables_initializer())
    for variable in tf.trainable_variables("output_"):
      variable.load(heads["weights/" + variable.op.name], session)
    outputs, norm = session.run([outputs, norm])
  for name, value in zip(
    ("loss", "per_example_loss", "logits", "probabilities"), outputs
  ):
    np.testing.assert_allclose(
      value, heads["classifier/" + name], rtol=0, atol=1e-5, err_msg=name
    )
  expected = heads["classifier/global_norm_as_clipped"]
  np.testing.assert_allclose(norm, expected, rtol=0, atol=2e-5)


def own_flags(folder):
  """Flags of a run on tables with names of columns; its output is below."""
  return {
    "task_name": "tsv",
    "data_dir": folder,
    "train_file": "train.csv",
    "dev_file": "dev.csv",
    "text_a_column": "text",
    "label_column": "label",
    "output_dir": folder / "out",
  }


@pytest.mark.train
def test_own_files_are_trained_on_scored_and_labelled(place, tmp_path):
  rows = [(a, "yes" if label == "1" else "no") for a, _, label in SENTENCES * 4]
  lines = [f'"{text}",{label}\r\n' for text, label in rows]
  (tmp_path / "train.csv").write_text("\ufefftext,label\r\n" + "".join(lines))
  lines = [json.dumps({"label": b, "text": a}) + "\n" for a, b in rows[:5]]
  (tmp_path / "dev.jsonl").write_text("".join(lines))
  (tmp_path / "test.tsv").write_text("text\nit is good\nthe cat ran\n")
  own = own_flags(tmp_path) | {"dev_file": "dev.jsonl"}
  output_dir = own["output_dir"]
  classify(place, "--do_train", "--do_eval", "--do_predict", **own)
  results = read_results(output_dir / "eval_results.txt")
  assert json.loads(results["labels"]) == ["no", "yes"]
  assert {"eval_accuracy", "eval_f1", "eval_matthews"} < set(results)
  lines = read_jsonl(output_dir / "test_results.jsonl")
  assert {line["label"] for line in lines} <= {"yes", "no"}
  assert len(lines) == 2

  # The labels are the model's when there is no training file to read.
  own |= {"train_file": "gone.csv", "predict_file": "-"}
  stdin = "the cat sat\nit is bad\n"
  said = classify(place, "--do_predict", stdin=stdin, **own).stdout
  labels, _, texts = zip(*(line.split("\t") for line in said.splitlines()))
  assert texts == ("the cat sat", "it is bad")
  assert {*labels} <= {"yes", "no"}


@pytest.mark.train
def test_ids_and_bad_rows_of_tables_reach_the_results(place, tmp_path):
  rows = [f'T-{i},"{a}\n{b}",{c}\n' for i, (a, b, c) in enumerate(SENTENCES)]
  content = "".join(["id,text,label\n", *rows, "T-9,no label,\n"])
  for split in ("train", "dev", "new"):
    (tmp_path / f"{split}.csv").write_text(content)
  own = own_flags(tmp_path) | {"id_column": "id", "bad_rows": "skip"}
  output_dir = own["output_dir"]
  classify(place, "--do_train", "--do_eval", **own)
  ids = [f"T-{i}" for i in range(len(SENTENCES))]
  lines = read_jsonl(output_dir / "eval_predictions.jsonl")
  assert [line["guid"] for line in lines] == ids
  report = (output_dir / "report.html").read_text()
  assert any(id_ in report for id_ in ids)
  for split in ("train", "dev"):
    (line,) = (output_dir / f"{split}_bad_rows.txt").read_text().splitlines()
    assert line.startswith(f"{tmp_path}/{split}.csv, row 6 (line 10): ")

  # The folder knows the name of the text's column.
  own |= {"text_a_column": None, "label_column": None}
  path = tmp_path / "new.csv"
  classify(place, "--do_predict", predict_file=path, **own)
  lines = read_jsonl(output_dir / "new_predictions.jsonl")
  assert [line["guid"] for line in lines] == [*ids, "T-9"]
  table = (output_dir / "new_predictions.tsv").read_text().splitlines()
  assert [line.split("\t")[0] for line in table] == ["id", *ids, "T-9"]
  assert table[0].split("\t") == ["id", "label", "text", "0", "1"]
  assert {line.count("\t") for line in table} == {4}
  assert not (output_dir / "new_bad_rows.txt").exists()


@pytest.mark.train
def test_regression_gives_numbers_and_correlations(place, tmp_path):
  output_dir = tmp_path / "out"
  lines = [f"{a}\t{b}\t{len(a) / 8}\n" for a, b, _ in SENTENCES * 4]
  for split in ("train", "dev", "test"):
    (tmp_path / f"{split}.tsv").write_text("".join(lines))
  changed = {"task_name": "tsv", "problem_type": "regression"}
  changed |= {"text_b_column": 2, "label_column": 3}
  changed |= {"data_dir": tmp_path, "output_dir": output_dir}
  classify(place, "--do_train", "--do_eval", "--do_predict", **changed)
  results = read_results(output_dir / "eval_results.txt")
  assert {"eval_pearson", "eval_spearman", "eval_loss"} < set(results)
  assert "eval_accuracy" not in results
  lines = read_jsonl(output_dir / "eval_predictions.jsonl")
  gold, predicted = ([x[name] for x in lines] for name in ("gold", "predicted"))
  assert gold == [len(a) / 8 for a, _, _ in SENTENCES * 4]
  pearson = np.corrcoef(gold, predicted)[0, 1]
  assert float(results["eval_pearson"]) == pytest.approx(pearson, abs=1e-5)
  numbers = np.loadtxt(output_dir / "test_results.tsv")
  with run_classifier.Predictor(str(output_dir)) as predictor:
    said = predictor.predict([(a, b) for a, b, _ in SENTENCES * 4])
  np.testing.assert_allclose([p.label for p in said], numbers, atol=1e-5)


@pytest.mark.graph
def test_input_fn_builder_feeds_features_from_memory(place):
  examples = [run_classifier.InputExample("", *texts) for texts in SENTENCES]
  tokenizer = tokenization.FullTokenizer(str(place / "vocab.txt"))
  converted = run_classifier.convert_examples_to_features(
    examples, ["0", "1"], 16, tokenizer
  )
  input_fn = run_classifier.input_fn_builder(converted, 16, False, False)
  batch = next(input_fn({"batch_size": 3}).as_numpy_iterator())
  assert batch["label_ids"].tolist() == [1, 0, 1]
  assert batch["input_ids"].tolist() == [f.input_ids for f in converted[:3]]
  assert batch["input_ids"].dtype == np.int32


@pytest.mark.graph
def test_a_missing_file(place):
  line = refuse(place, data_dir=place / "nowhere")
  assert f"--data_dir={place}/nowhere: " in line


@pytest.mark.graph
@pytest.mark.parametrize(
  ("variable", "num_warnings"), [("bert/embeddings", 1), ("output_weights", 0)]
)
def test_a_random_output_layer_gives_a_warning(
  tmp_path, caplog, variable, num_warnings
):
  path = str(tmp_path / "model.ckpt")
  checkpoint_files.write_variables(path, {variable: np.zeros(2)})
  start = SimpleNamespace(trained=path)
  run_classifier.warn_if_untrained(SimpleNamespace(start=start))
  assert len(caplog.messages) == num_warnings


@pytest.mark.graph
def test_a_checkpoint_without_an_encoder(place):
  path = str(place / "foreign.ckpt")
  checkpoint_files.write_variables(path, {"something": np.zeros(2)})
  line = refuse(place, init_checkpoint=path, output_dir=place / "foreign_out")
  assert "none of the encoder's variables" in line
