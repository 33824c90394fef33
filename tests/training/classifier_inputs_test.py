"""Tests of the inputs of run_classifier.py."""

import pytest

from bertlib.data.classification import DataProcessor, InputExample
from bertlib.errors import InputError
from bertlib.settings import option
from bertlib.settings.classifier import ClassifierSettings
from bertlib.training import classifier_inputs

pytestmark = pytest.mark.unit


def test_bad_rows_are_skipped_while_labels_are_read(tmp_path, caplog):
  (tmp_path / "train.tsv").write_text("text\tlabel\na\tx\nb\nc\ty\n")
  settings = option.make(
    ClassifierSettings,
    task_name="tsv",
    data_dir=str(tmp_path),
    text_a_column="text",
    bad_rows="skip",
    train_batch_size=1,
    do_train=True,
  )
  processor = classifier_inputs.make_processor(settings)
  examples = classifier_inputs.read_examples(settings, processor).train
  assert processor.labels == ["x", "y"]
  assert [example.text_a for example in examples] == ["a", "c"]
  (warning,) = caplog.messages
  assert "1 bad rows skipped" in warning and "row 3: has 1 columns" in warning


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
