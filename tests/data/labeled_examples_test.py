"""Tests of the checks of labeled examples."""

import collections

import hypothesis
import hypothesis.strategies as st
import pytest
from parametrize import parametrize

from bertlib.data import labeled_examples
from bertlib.data.labeled_examples import Labeled
from bertlib.tasks.classification import own_tables

pytestmark = pytest.mark.unit


def rows(*texts_and_labels, name="train"):
  return [
    Labeled((text,), label, f"{name}-{number}")
    for number, (text, label) in enumerate(texts_and_labels, start=1)
  ]


def warnings_of(caplog, train, **dev_sets):
  labeled_examples.warn_of_faults(train, dev_sets)
  return caplog.messages


def test_sets_without_faults_have_no_warning(caplog):
  train = rows(("a", "x"), ("b", "y"), ("a", "x"))
  assert warnings_of(caplog, train, dev=rows(("c", "x"))) == []


def test_texts_of_the_training_set_in_the_dev_set_are_counted(caplog):
  train = rows(("a", "x"), ("b", "y"))
  dev = rows(("c", "x"), ("b", "x"), ("a", "x"), name="dev")
  (message,) = warnings_of(caplog, train, dev=dev)
  assert message.startswith(
    "dev: examples with a text of the training set: 2 of 3, the first: dev-2,"
    " the text of train-2."
  )


def test_one_text_of_a_pair_may_be_in_both_sets(caplog):
  train = [Labeled(("q", "a"), "x", "train-1")]
  dev = [Labeled(("q", "b"), "x", "dev-1"), Labeled(("a", "q"), "x", "dev-2")]
  assert warnings_of(caplog, train, dev=dev) == []


@parametrize("texts", ("",), (" \n",), ("a", ""))
def test_empty_texts_are_counted(caplog, texts):
  train = [Labeled(("a",), "x", "train-1"), Labeled(texts, "y", "train-2")]
  assert warnings_of(caplog, train) == [
    "the training set: examples with an empty text: 1 of 2, the first: train-2"
  ]


def test_equal_texts_with_different_labels_are_counted(caplog):
  train = rows(("a", "x"), ("b", "x"), ("a", "y"), ("a", "z"))
  assert warnings_of(caplog, train) == [
    "the training set: texts with different labels: 1, the first: train-1"
    " and train-3"
  ]
  caplog.clear()
  assert warnings_of(caplog, [e._replace(label=None) for e in train]) == []


@hypothesis.given(
  st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz"))),
  st.floats(0.05, 0.95),
)
def test_the_parts_are_a_partition_that_keeps_equal_texts(table, fraction):
  examples = rows(*table)
  train, dev = own_tables.draw_dev_set(examples, fraction)
  assert sorted(train + dev) == list(range(len(table)))
  assert train == sorted(train) and dev == sorted(dev)
  assert not {table[i][0] for i in train} & {table[i][0] for i in dev}
  assert (train, dev) == own_tables.draw_dev_set(examples, fraction)


def test_each_label_has_its_share():
  labels = "x" * 70 + "y" * 28 + "z" * 2 + "w"
  examples = rows(*((str(i), label) for i, label in enumerate(labels)))
  _, dev = own_tables.draw_dev_set(examples, 0.2)
  counts = collections.Counter(labels[index] for index in dev)
  assert counts == {"x": 14, "y": 6, "z": 1}


def test_the_rarest_of_several_labels_counts():
  labels = [("x",)] * 40 + [("x", "y")] * 5
  examples = rows(*((str(i), label) for i, label in enumerate(labels)))
  _, dev = own_tables.draw_dev_set(examples, 0.2)
  assert sum("y" in labels[index] for index in dev) == 1
  assert len(dev) == 9
