"""Tests of the folders, arguments and texts that predictors take."""

import re
import shutil
import types

import numpy as np
import pandas
import pytest
import run_outputs
import wrong_input_world
from parametrize import parametrize
from refused import assert_refused, refusal

import export_model
import run_classifier
import run_embeddings
import run_ner
import run_reranker
import run_squad
from bertlib.cli.errors import InputError
from bertlib.data import batch_predictor, vocabulary
from bertlib.io import processes
from bertlib.settings import embedding_spec

pytestmark = pytest.mark.graph

CLASSES = {"labels": ["0", "1"]}
SINGLE = CLASSES | {"has_pairs": False}
CHOICES = {"labels": ["0", "1"], "kind": "multiple_choice"}


PREDICTORS = run_classifier, run_squad, run_ner, run_embeddings, run_reranker


def predict(script, texts, **description):
  """Predicts with a model that is not loaded, since no text is valid."""
  model = script.Predictor.__new__(script.Predictor)
  model.description = description
  if script is run_embeddings:
    model.description["embedding"] = embedding_spec.EmbeddingSpec().as_json()
    return model.encode(texts)
  return model.predict(texts)


@pytest.mark.unit
@parametrize(
  "script, description, texts, message",
  (run_squad, {}, [("a", "b"), ("who ?", None)], "pairs[1]: is ('who ?', "),
  (run_squad, {}, [None], "pairs[0]: is None. Give a question and a passage"),
  (run_squad, {}, ["ab"], "pairs[0]: is 'ab'"),
  (run_squad, {}, [("a", "b", "c")], "pairs[0]: is ('a', 'b', 'c')"),
  (run_ner, {}, ["a", None], "texts[1]: is None. Give a str"),
  (run_ner, {}, [["a", 3]], "texts[0]: is ['a', 3]"),
  (run_reranker, {}, ["ab"], "pairs[0]: is 'ab'. Give a pair of str"),
  (run_embeddings, {}, [float("nan")], "texts[0]: is nan. Give a str"),
  (run_classifier, CLASSES, ["a", 3], "texts[1]: is 3. Give a str"),
  (run_classifier, CLASSES, [b"ab"], "texts[0]: is b'ab'"),
  (run_classifier, CHOICES, [None], "texts[0]: is None. Give a list"),
  (run_classifier, SINGLE, [("a", "b")], "texts[0]: is ('a', 'b'). Give a"),
  (run_classifier, SINGLE, [["a", "b"]], "texts[0]: is ['a', 'b']. Give a"),
  (run_classifier, CLASSES, [np.array("a")], "texts[0]: is array('a'"),
  (run_classifier, CLASSES, pandas.Series(["a", None]), "texts[1]: is "),
)
def test_a_text_of_another_type_is_named(script, description, texts, message):
  with pytest.raises(InputError, match=f"^{re.escape(message)}"):
    predict(script, texts, **description)


@pytest.mark.unit
@parametrize("script", run_squad, run_ner, run_reranker)
@parametrize("text", "a film", b"a film", np.array("a film"))
def test_one_text_is_not_taken_for_a_list(script, text):
  with pytest.raises(TypeError, match="not one text"):
    predict(script, text)


@pytest.mark.unit
@parametrize("script", *PREDICTORS)
@parametrize(
  "table",
  pandas.DataFrame({"text": ["a", "b", "c"]}),
  {"text": np.array(["a", "b"]), "id": np.array([1, 2])},
  types.MappingProxyType({"text": ["a"]}),
)
def test_a_table_is_not_taken_for_its_columns(script, table):
  with pytest.raises(TypeError, match=f"not a {type(table).__name__}: give"):
    predict(script, table, **CLASSES)


@pytest.mark.unit
def test_pairs_may_be_tuples_lists_or_arrays():
  for pair in (("a", "b"), ["a", "b"], np.array(["a", "b"])):
    assert batch_predictor.is_pair(pair)


@pytest.mark.unit
@parametrize("script", *PREDICTORS)
@parametrize(
  "argument, value",
  *(("batch_size", value) for value in (-1, 0, 2.5, float("nan"), "8")),
  *(("precision", value) for value in ("int4", "auto", None)),
  *(("num_threads", value) for value in (10**6, 1025, -1)),
)
def test_an_argument_that_its_flag_refuses_is_refused(script, argument, value):
  with pytest.raises(InputError, match=f"^{argument}={value!r}: not allowed"):
    script.Predictor("nowhere", **{argument: value})


@pytest.mark.unit
@parametrize(
  "argument, value",
  *(("n_best_size", value) for value in (-1, 0, 1.5)),
  ("max_answer_length", 0),
  *(("null_score_diff_threshold", float(value)) for value in ("nan", "inf")),
  ("null_score_diff_threshold", "0"),
)
def test_an_argument_of_decoding_is_in_the_range_of_its_flag(argument, value):
  model = run_squad.Predictor.__new__(run_squad.Predictor)
  model.description = {}
  with pytest.raises(InputError, match=f"^{argument}={value!r}: not allowed"):
    model.predict([("a", "b")], **{argument: value})


def edit_json(name, **changed):
  return lambda folder, world: run_outputs.edit_json(folder / name, **changed)


def take_checkpoint(of):
  def take(folder, world):
    for path in (world / of).glob("model.ckpt-1.*"):
      shutil.copyfile(path, folder / path.name)

  return take


CONFIG = "bert_config.json"
DAMAGES = {
  "a head of more labels": (take_checkpoint("trained_ner"), "output_weights"),
  "another head": (take_checkpoint("trained_squad"), "lacks output_weights"),
  "fewer layers": (
    edit_json(CONFIG, num_hidden_layers=1),
    "16 weights that the model does not use (such as bert/encoder/layer_1/",
  ),
  "more layers": (edit_json(CONFIG, num_hidden_layers=3), "encoder/layer_2/"),
  "another width": (edit_json(CONFIG, hidden_size=16), "needs [24, 16]"),
  "more tokens": (edit_json("model.json", max_seq_length=64), "seq_length=64"),
}


def float32(folder):
  run_classifier.Predictor(folder).close()


def bfloat16(folder):
  run_classifier.Predictor(folder, precision="bfloat16").close()


def export(folder):
  source = export_model.find_source(folder, None, None, None, True, None)
  export_model.export(source, f"{folder}/exported")


USES = [
  *((float32, damage) for damage in DAMAGES),
  (bfloat16, "more layers"),
  (export, "more layers"),
]


@pytest.fixture
def trained(world, tmp_path):
  return shutil.copytree(world / "trained", tmp_path / "model")


@parametrize("use, damage", *USES)
def test_parts_of_different_models_are_refused(use, damage, trained, world):
  change, message = DAMAGES[damage]
  change(trained, world)
  assert message in refusal(use, str(trained))


@parametrize("of", "trained_ner", "trained_squad", "trained_mrpc")
def test_a_named_checkpoint_of_another_task_is_refused(of, trained, world):
  checkpoint = str(world / of / "model.ckpt-1")
  with pytest.raises(InputError, match=f"{checkpoint}: is of a model with"):
    run_classifier.Predictor(str(trained), checkpoint)


def test_a_projection_that_model_json_lacks_is_refused(world, tmp_path):
  folder, heads = tmp_path / "model", {"sentence_projection/kernel": [8, 3]}
  description = run_outputs.read_json(world / "trained_embeddings/model.json")
  wrong_input_world.write_trained(str(folder), description, heads)
  with pytest.raises(InputError, match="such as sentence_projection/kernel"):
    run_embeddings.Predictor(str(folder))


@parametrize("hash_is_known", True, False)
def test_line_ends_and_folders_of_earlier_versions_are_accepted(
  hash_is_known, trained, world
):
  if hash_is_known:
    path = trained / "vocab.txt"
    known = vocabulary.hash_of(str(path))
    edit_json("model.json", vocab_sha256=known)(trained, world)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
  with run_classifier.Predictor(str(trained)) as model:
    assert len(model.predict(["the cat sat"])) == 1


def test_a_precision_without_instructions_is_reported(
  trained, monkeypatch, caplog
):
  monkeypatch.setattr(processes, "features", lambda: {"avx2"})
  run_classifier.Predictor(str(trained), precision="bfloat16").close()
  assert "bfloat16: this device has no instructions for it" in caplog.text


def test_a_closed_predictor_says_so(trained):
  model = run_classifier.Predictor(str(trained))
  model.close()
  assert_refused("predictor is closed", model.predict, ["the cat sat"])


def test_a_question_that_leaves_no_room_is_refused(world, tmp_path):
  folder = shutil.copytree(world / "trained_squad", tmp_path / "model")
  edit_json("model.json", max_query_length=14)(folder, world)
  assert_refused("leaves no room for text", run_squad.Predictor, str(folder))
