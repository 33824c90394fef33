"""Tests of the texts that predictors take."""

import re

import numpy as np
import pytest

import run_classifier
import run_embeddings
import run_ner
import run_squad
from bertlib import embedding_spec
from bertlib.checkpoints import predictor
from bertlib.errors import InputError

pytestmark = pytest.mark.unit

CLASSES = {"labels": ["0", "1"]}
CHOICES = {"labels": ["0", "1"], "kind": "multiple_choice"}


def predict(script, texts, **description):
  """Predicts with a model that is not loaded, since no text is valid."""
  model = script.Predictor.__new__(script.Predictor)
  model.description = description
  if script is run_embeddings:
    model.description["embedding"] = embedding_spec.EmbeddingSpec().as_json()
    return model.encode(texts)
  return model.predict(texts)


@pytest.mark.parametrize(
  ("script", "description", "texts", "message"),
  [
    (run_squad, {}, [("a", "b"), ("who ?", None)], "pairs[1]: is ('who ?', "),
    (run_squad, {}, [None], "pairs[0]: is None. Give a question and a passage"),
    (run_squad, {}, [b"ab"], "pairs[0]: is b'ab'"),
    (run_squad, {}, ["ab"], "pairs[0]: is 'ab'"),
    (run_squad, {}, [{"q": "a", "p": "b"}], "pairs[0]: is {'p'"),
    (run_squad, {}, [("a", "b", "c")], "pairs[0]: is ('a', 'b', 'c')"),
    (run_ner, {}, ["a", None], "texts[1]: is None. Give a str"),
    (run_ner, {}, [["a", "b"]], "texts[0]: is ['a', 'b']"),
    (run_embeddings, {}, [float("nan")], "texts[0]: is nan. Give a str"),
    (run_embeddings, {}, [b"a"], "texts[0]: is b'a'"),
    (run_classifier, CLASSES, ["a", 3], "texts[1]: is 3. Give a str"),
    (run_classifier, CLASSES, [[]], "texts[0]: is []"),
    (run_classifier, CLASSES, [b"ab"], "texts[0]: is b'ab'"),
    (run_classifier, CHOICES, [None], "texts[0]: is None. Give a list"),
    (run_classifier, CHOICES, ["abcd"], "texts[0]: is 'abcd'"),
  ],
)
def test_a_text_of_another_type_is_named(script, description, texts, message):
  with pytest.raises(InputError, match=f"^{re.escape(message)}"):
    predict(script, texts, **description)


@pytest.mark.parametrize("script", [run_squad, run_ner, run_embeddings])
@pytest.mark.parametrize("text", ["a film", b"a film"])
def test_one_text_is_not_taken_for_a_list(script, text):
  with pytest.raises(TypeError, match="not one text"):
    predict(script, text)


def test_pairs_may_be_tuples_lists_or_arrays():
  for pair in (("a", "b"), ["a", "b"], np.array(["a", "b"])):
    assert predictor.is_pair(pair)
