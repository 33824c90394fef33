"""Tests of the records of the tasks."""

import pytest
from parametrize import parametrize

import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_reranker
import run_squad
from bertlib.cli.errors import InputError
from bertlib.task import task_record

pytestmark = pytest.mark.unit


@parametrize(
  "script",
  *(run_classifier, run_embeddings, run_ner),
  *(run_pretraining, run_reranker, run_squad),
  ids=lambda script: script.__name__,
)
def test_the_record_of_a_script_is_found_by_its_name(script):
  record = task_record.find(script.__name__)
  assert record.script == script.__name__
  if hasattr(script, "Predictor"):
    assert script.Predictor.record is record
  entries = {name.removesuffix("?") for name in record.entries}
  assert entries.isdisjoint({"script", "max_seq_length", "do_lower_case"})
  assert record.purpose and record.export().__doc__
  # What the record requires is enough.
  labels = {"labels": ["a", "b"]} if "labels" in record.required else {}
  assert record.problem({"script": record.script, **labels}) is None


@parametrize("script", None, "", "examples.two_heads")
def test_other_scripts_have_no_record(script):
  assert task_record.find(script) is None


def test_a_module_that_is_not_there_is_named():
  with pytest.raises(InputError, match=r"^--task_module=a\.b: no module named"):
    task_record.load("a.b")
