"""Tests of the classifier's features and records."""

import gzip
import hashlib
import json

import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow as tf
from parametrize import parametrize

import tokenization
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, tf_records
from bertlib.tasks.classification import classification, classification_records
from bertlib.tasks.classification.classification import (
  InputExample,
  PaddingInputExample,
)

pytestmark = pytest.mark.unit


def load_tokenizer(name, do_lower_case=True):
  return tokenization.FullTokenizer(reference_data.vocab(name), do_lower_case)


@pytest.fixture(scope="module")
def tokenizer():
  return load_tokenizer("uncased")


def convert(case, tokenizer):
  case = {"text_a": "a b", "text_b": None, "max_seq_length": 8} | case
  example = PaddingInputExample()
  if "padding" not in case:
    texts = case["text_a"], case["text_b"]
    example = InputExample("guid", *texts, case["label"])
  return classification_records.convert_single_example(
    9, example, case.get("label_list"), case["max_seq_length"], tokenizer
  )


def test_single_examples_equal_the_reference(tokenizer):
  path = reference_data.golden("classifier", "convert_single_example.jsonl")
  for case in reference_data.read_jsonl(path):
    if "error" not in case:
      for name, value in vars(convert(case, tokenizer)).items():
        assert value == case[name], (case, name)


INTEGERS = [[0, 1], np.array([0, 1]), range(2)]


@parametrize(
  "changed, said",
  # The reference fails at these two, on KeyError and AssertionError.
  ({"label": "2"}, "guid: unknown label '2'; .* '0', '1'"),
  ({"max_seq_length": 1}, "max_seq_length=1: "),
  *(
    ({"label_list": integers, "label": label}, f"guid.*{label!r}")
    for integers in INTEGERS
    for label in (2, "1")
  ),
)
def test_single_examples_that_are_refused(tokenizer, changed, said):
  case = {"label": "0", "label_list": ["0", "1"]}
  with pytest.raises(InputError, match=said):
    convert(case | changed, tokenizer)


@parametrize(
  "labels, label, label_id",
  (["x"], None, 0),
  ([], "-2.5", -2.5),
  *((integers, 1, 1) for integers in INTEGERS),
)
def test_labels_may_be_missing_and_numbers(tokenizer, labels, label, label_id):
  case = {"label_list": labels, "label": label}
  assert convert(case, tokenizer).label_id == label_id


def read_records(path):
  """The records of a TFRecord file as lists of numbers by name."""
  compression = "GZIP" if path.endswith(".gz") else ""
  records = tf.data.TFRecordDataset(path, compression)
  for serialized in records.as_numpy_iterator():
    feature = tf.train.Example.FromString(serialized).features.feature
    yield {
      name: list(getattr(value, value.WhichOneof("kind")).value)
      for name, value in feature.items()
    }


def read_dev_examples(runs, task):
  (folder,) = {
    run["data_dir"]
    for run in runs["examples"]
    if (run["task"], run["split"]) == (task, "dev")
  }
  processor = classification.PROCESSORS[task]()
  return processor.get_dev_examples(reference_data.data(*folder.split("/")))


@pytest.mark.graph
@parametrize(
  "name",
  *("mrpc_dev", "mrpc_dev_all_padded", "mrpc_dev_cased_48"),
  *("cola_dev", "mnli_dev", "xnli_dev"),
)
def test_records_equal_the_reference(tmp_path, name, golden):
  runs = run_outputs.read_json(golden("classifier", "runs.json"))
  file = f"{name}.tf_record.gz"
  (run,) = [run for run in runs["features"] if run["file"] == file]
  examples = read_dev_examples(runs, run["task"])[: run["examples"]]
  examples += [PaddingInputExample()] * run["padding_examples"]
  path = str(tmp_path / "records")
  classification_records.file_based_convert_examples_to_features(
    examples,
    run["labels"],
    run["max_seq_length"],
    load_tokenizer(run["vocab"], run["do_lower_case"]),
    path,
  )
  records = list(read_records(path))
  assert len(records) == run["records"]
  for record, expected in zip(
    records, read_records(golden("classifier", file))
  ):
    assert record == expected
  digest = hashlib.sha256()
  for record in records:
    line = json.dumps(record, sort_keys=True, separators=(",", ":"))
    digest.update(f"{line}\n".encode())
  assert digest.hexdigest() == run["content_sha256"]


@pytest.mark.graph
@parametrize(
  "published, length, sizes",
  (False, 64, [10, 6]),
  pytest.param(
    True, 128, [100] * 4 + [8], marks=pytest.mark.needs_data, id="published"
  ),
)
def test_records_of_the_reference_are_read(tmp_path, published, length, sizes):
  if published:
    path = reference_data.data("reference_runs", "mrpc_eval.tf_record")
  else:
    path = str(tmp_path / "records")
    name = "mrpc_dev_all_padded.tf_record.gz"
    with gzip.open(reference_data.golden("classifier", name)) as file:
      (tmp_path / "records").write_bytes(file.read())
  input_fn = classification_records.file_based_input_fn_builder(
    path, seq_length=length, is_training=False, drop_remainder=False
  )
  batches = list(input_fn({"batch_size": sizes[0]}))
  assert [len(batch["label_ids"]) for batch in batches] == sizes
  records = list(read_records(path))
  for name in batches[0]:
    values = np.concatenate([batch[name] for batch in batches])
    for found, record in zip(values, records, strict=True):
      np.testing.assert_array_equal(np.ravel(found), record[name])


@parametrize("is_training", False, True)
def test_records_of_several_files_may_be_written_later(tmp_path, is_training):
  """Records of the first releases lack `is_real_example`: all are real."""
  paths = [str(tmp_path / name) for name in "ab"]
  input_fn = classification_records.file_based_input_fn_builder(
    paths, seq_length=2, is_training=is_training, drop_remainder=False
  )
  layout = classification_records.record_layout(2)
  del layout["is_real_example"]
  row = dict.fromkeys(model_inputs.TOKEN_FEATURES, (1, 1))
  for path, label in zip(paths, (3, 5)):
    tf_records.write_records(path, [row | {"label_ids": label}], layout)
  batch = next(iter(input_fn({"batch_size": 2})))
  assert sorted(batch["label_ids"].numpy()) == [3, 5]
  assert batch["is_real_example"].numpy().tolist() == [1, 1]


def test_what_is_cut_is_counted(tmp_path, tokenizer, caplog):
  examples = [
    InputExample("1", "one two three four", "five six", "0"),
    InputExample("2", "one two", None, "0"),
    InputExample("3", "one two three four five six", None, "0"),
    PaddingInputExample(),
  ]
  path = str(tmp_path / "records")
  with caplog.at_level("INFO", "absl"):
    classification_records.file_based_convert_examples_to_features(
      examples, ["0"], 6, tokenizer, path
    )
  assert f"4 examples written to {path}; 2 were truncated" in caplog.text
  assert "lost 5 tokens" in caplog.text
