"""Tests of the inputs of run_classifier.py."""

import gzip
import json

import pytest
from parametrize import parametrize

from bertlib.cli import option
from bertlib.cli.errors import InputError
from bertlib.tasks.classification import classifier_inputs, own_tables
from bertlib.tasks.classification.classification import (
  DataProcessor,
  InputExample,
)
from bertlib.tasks.classification.settings import ClassifierSettings

pytestmark = pytest.mark.unit


def settings_of(folder, content, **flags):
  """Settings of a run on a table, which is written to the folder."""
  (folder / "train.tsv").write_text(content)
  flags |= {"task_name": "tsv", "data_dir": str(folder), "train_batch_size": 1}
  return option.make(ClassifierSettings, text_a_column="text", **flags)


def test_bad_rows_are_skipped_while_labels_are_read(tmp_path, caplog):
  content = "text\tlabel\na\tx\nb\nc\ty\n"
  settings = settings_of(tmp_path, content, bad_rows="skip", do_train=True)
  processor = classifier_inputs.make_processor(settings)
  examples = classifier_inputs.read_examples(settings, processor).train
  assert processor.labels == ["x", "y"]
  assert [example.text_a for example in examples] == ["a", "c"]
  (warning,) = caplog.messages
  assert "bad rows skipped: 1," in warning and "row 3: has 1 columns" in warning


@parametrize(
  "name, content, flags, texts",
  ("a.csv", 'id,text\n7,"b, c"\n', {"text_a_column": "text"}, ["b, c"]),
  ("a.csv", "b\nc\n", {}, ["b", "c"]),
  ("a.csv.gz", "b\nc\n", {}, ["b", "c"]),
  ("a.tsv", "text\tx\nb\tc\n", {"text_a_column": "text"}, ["b"]),
  ("a.tsv", "text\tx\nb\tc\n", {}, ["text", "b"]),
  ("a.jsonl", '{"text": "b"}\n', {"text_a_column": "text"}, ["b"]),
  ("a.jsonl", "b\n", {}, ["b"]),
  ("a.txt", "text,x\n", {"text_a_column": "text"}, ["text,x"]),
)
def test_a_file_to_predict_is_a_table_by_its_ending_and_the_flags(
  tmp_path, name, content, flags, texts
):
  path = tmp_path / name
  content = content.encode()
  path.write_bytes(gzip.compress(content) if name.endswith("z") else content)
  # With training there is no model to ask for names.
  flags = flags | {"task_name": "tsv", "do_train": True, "do_predict": True}
  settings = option.make(ClassifierSettings, predict_file=str(path), **flags)
  examples = own_tables.read_predict_file(settings, DataProcessor())
  assert [example.text_a for example in examples] == texts


class UnlabeledDevSet(DataProcessor):
  """A processor of another project, whose dev set lacks a label."""

  def get_dev_examples(self, data_dir):
    return [InputExample("dev-1", "a", label="x"), InputExample("dev-2", "b")]

  def get_labels(self):
    return ["x", "y"]


def test_dev_examples_without_label_are_refused_before_training():
  settings = option.make(ClassifierSettings, task_name="own", do_eval=True)
  with pytest.raises(InputError, match=r"^dev-2: has no label\. Eval"):
    classifier_inputs.read_examples(settings, UnlabeledDevSet())


def divided(tmp_path, **flags):
  rows = [f"text {number}\t{'xy'[number % 2]}" for number in range(10)]
  content = "\n".join(["text\tlabel", *rows, ""])
  flags |= {"labels": ["x", "y"], "dev_fraction": 0.4}
  settings = settings_of(tmp_path, content, **flags)
  processor = classifier_inputs.make_processor(settings)
  return classifier_inputs.read_examples(settings, processor)


def texts_of(examples):
  return [example.text_a for example in examples]


def test_dev_fraction_divides_the_training_file(tmp_path):
  both = divided(tmp_path, do_train=True, do_eval=True)
  dev = texts_of(both.eval_sets[""])
  assert len(dev) == 4
  assert sorted(texts_of(both.train) + dev) == [f"text {n}" for n in range(10)]


@parametrize("seed", 1, 2)
def test_other_runs_get_the_same_dev_set(tmp_path, seed):
  dev = divided(tmp_path, do_eval=True).eval_sets[""]
  train = divided(tmp_path, do_train=True, seed=seed).train
  assert not {*texts_of(dev)} & {*texts_of(train)}
  assert len(dev) + len(train) == 10


@parametrize(
  "flags, expected",
  ({"dev_file": "d.csv"}, "d.csv"),
  ({"dev_file": "d.csv", "data_dir": "data"}, "data/d.csv"),
  ({"train_file": "t.csv", "dev_fraction": 0.2}, "t.csv"),
)
def test_a_tuned_threshold_names_the_table_with_the_dev_set(flags, expected):
  settings = option.make(ClassifierSettings, **flags)
  assert classifier_inputs.dev_path(settings) == expected


@parametrize(
  "known, labels",
  (["y", "x"], ["y", "x"]),  # the same in another order
  (["y", "z"], ["x", "y"]),  # another task
)
def test_the_order_of_labels_is_that_of_the_model(known, labels, tmp_path):
  model = tmp_path / "model"
  model.mkdir()
  (model / "bert_model.ckpt.index").touch()
  (model / "model.json").write_text(json.dumps({"labels": known}))
  content = "text\tlabel\na\tx\nb\ty\n"
  flags = {"init_checkpoint": str(model), "do_train": True}
  settings = settings_of(tmp_path, content, **flags)
  assert classifier_inputs.make_processor(settings.completed()).labels == labels


def test_a_dry_run_counts_labels_that_are_integers(caplog):
  processor = DataProcessor()
  processor.labels = [0, 1]
  train = [InputExample("a", "a text", label=0)]
  examples = classifier_inputs.Examples(train, {}, {})
  classifier_inputs.check_labels(processor, examples)
  assert caplog.messages == ["the training set has no 1"]
