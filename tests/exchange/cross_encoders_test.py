"""Cross-encoders of sentence-transformers, by the files of its releases.

That their scores are equal is in `round_trip_test.py`.
"""

import pytest
import run_outputs
import tiny_huggingface
from parametrize import parametrize
from refused import refusal

from bertlib.checkpoints import checkpoint_files

pytestmark = pytest.mark.unit

CLASSIFIER = "BertForSequenceClassification"
IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
QUERY = {"prompts": {"query": "search: "}, "default_prompt_name": "query"}
PACKAGE = "sentence_transformers"
CONFIG = "config_sentence_transformers.json"
MODULE = {"type": f"{PACKAGE}.base.modules.transformer.Transformer", "path": ""}
MODULES = {
  "modules.json": [MODULE],
  "sentence_bert_config.json": {
    "transformer_task": "sequence-classification",
    "max_seq_length": 9,
    "module_output_name": "scores",
  },
}
DENSE = {"type": f"{PACKAGE}.models.Dense", "path": "1_Dense"}
REGRESSION = {"problem_type": "regression"}


def of_release_4(activation):
  """What releases 4 to 5.3 add to `config.json`."""
  return {PACKAGE: {"activation_fn": activation, "version": "5.1.0"}}


def of_release_6(**values):
  """Files that releases from 5.4 on add."""
  return {**MODULES, CONFIG: {"model_type": "CrossEncoder"} | values}


def write(folder, files=(), num_labels=1, architecture=CLASSIFIER, **config):
  weights = tiny_huggingface.tensors(architecture, num_labels=num_labels)
  classes = [architecture]
  return tiny_huggingface.write_folder(
    folder, weights, files=files, architectures=classes, **config
  )


def converted(folder, tmp_path, name="ours", **options):
  """A folder of ours, and its `model.json`."""
  tiny_huggingface.convert(folder, tmp_path / name, **options)
  return tmp_path / name, run_outputs.read_json(tmp_path / name / "model.json")


def back(ours, tmp_path):
  tiny_huggingface.convert_back(f"{ours}/bert_model.ckpt", tmp_path / "theirs")
  return tmp_path / "theirs"


@parametrize(
  "files, config, expected",
  (of_release_6(activation_fn=IDENTITY), {}, "identity"),
  (of_release_6(activation_fn=SIGMOID), of_release_4(IDENTITY), "sigmoid"),
  ({CONFIG: of_release_6(activation_fn=IDENTITY)[CONFIG]}, {}, "sigmoid"),
  ((), of_release_4(IDENTITY) | REGRESSION, "identity"),
  (of_release_6(), of_release_4("torch.nn.Identity"), "identity"),
  ((), {"sbert_ce_default_activation_function": IDENTITY}, "identity"),
  ((), {}, "sigmoid"),
)
def test_one_output_makes_a_reranker(files, config, expected, tmp_path):
  ours, found = converted(write(tmp_path / "a", files, **config), tmp_path)
  assert (found["script"], found["activation"]) == ("run_reranker", expected)
  assert found["max_seq_length"] == (9 if "modules.json" in files else 400)
  theirs = back(ours, tmp_path)
  assert converted(theirs, tmp_path, "again")[1] == found
  # As each release reads it.
  name = {"identity": IDENTITY, "sigmoid": SIGMOID}[expected]
  assert run_outputs.read_json(theirs / CONFIG)["activation_fn"] == name
  mark = run_outputs.read_json(theirs / "config.json")[PACKAGE]
  assert mark == {"activation_fn": name}


def test_the_default_prompt_goes_there_and_back(tmp_path):
  prompts = QUERY["prompts"] | {"other": "other: "}
  files = of_release_6(**QUERY | {"prompts": prompts})
  ours, found = converted(write(tmp_path / "a", files), tmp_path)
  assert found["query_prefix"] == "search: "
  written = run_outputs.read_json(back(ours, tmp_path) / CONFIG)
  assert QUERY.items() <= written.items()


@parametrize(
  "files, num_labels, message",
  (of_release_6(activation_fn="torch.nn.modules.activation.Tanh"), 1, "Tanh"),
  (
    of_release_6(activation_fn="torch.nn.modules.activation.LogSigmoid"),
    1,
    "only Sigmoid and Identity of torch.nn",
  ),
  (of_release_6(activation_fn="my.Sigmoid"), 1, "is my.Sigmoid; only"),
  (of_release_6(keep_in_fp32_modules=["0.model"]), 1, "keep_in_fp32_modules"),
  (of_release_6() | {"modules.json": [MODULE, DENSE]}, 1, "models.Dense. On"),
  (of_release_6(**QUERY), 3, "put 'search: ' before the first texts yours"),
  (of_release_6(default_prompt_name="x"), 1, "is 'x', which is no prompt"),
  (of_release_6(prompts=["x"]), 1, "prompts is a list, not an object"),
)
def test_another_computation_is_refused(files, num_labels, message, tmp_path):
  folder = write(tmp_path / "a", files, num_labels)
  assert message in refusal(converted, folder, tmp_path)


@parametrize(
  "files, config, num_labels, kind",
  ((), REGRESSION, 1, "regression"),
  (of_release_6(activation_fn=IDENTITY), {}, 2, "classification"),
  ((), of_release_4(SIGMOID), 3, "multi_label"),
)
def test_numbers_and_more_labels_are_of_a_classifier_there_and_back(
  files, config, num_labels, kind, tmp_path
):
  folder = write(tmp_path / "a", files, num_labels, **config)
  ours, found = converted(folder, tmp_path)
  assert (found["script"], found["kind"]) == ("run_classifier", kind)
  theirs = back(ours, tmp_path)
  mark = run_outputs.read_json(theirs / "config.json")[PACKAGE]
  is_sigmoid = kind == "multi_label"
  assert mark == {"activation_fn": SIGMOID if is_sigmoid else IDENTITY}
  _, again = converted(theirs, tmp_path, "again")
  keys = ("script", "kind", "labels")
  assert [again[key] for key in keys] == [found[key] for key in keys]


def test_a_classifier_that_was_converted_earlier_keeps_its_activation(tmp_path):
  ours, _ = converted(write(tmp_path / "a", num_labels=3), tmp_path)
  run_outputs.edit_json(ours / "bert_config.json", **of_release_4(SIGMOID))
  earlier = {"kind": "multi_label", "problem_type": None}
  run_outputs.edit_json(ours / "model.json", **earlier)
  config = run_outputs.read_json(back(ours, tmp_path) / "config.json")
  assert config[PACKAGE]["activation_fn"] == SIGMOID


def weights_of(folder):
  stored = checkpoint_files.Checkpoint(f"{folder}/bert_model.ckpt")
  return stored["output_weights"], stored["output_bias"]


def test_two_labels_make_the_score_of_a_reranker(tmp_path):
  names = {**tiny_huggingface.name("no", "yes"), **of_release_4(IDENTITY)}
  folder = write(tmp_path / "a", num_labels=2, **names)
  weights, bias = weights_of(converted(folder, tmp_path)[0])
  ours, found = converted(folder, tmp_path, "one", as_reranker=True)
  assert (found["script"], found["activation"]) == ("run_reranker", "sigmoid")
  one_weight, one_bias = weights_of(ours)
  assert (one_weight == weights[1:] - weights[:1]).all()
  assert (one_bias == bias[1:] - bias[:1]).all()


@parametrize(
  "architecture, num_labels, message",
  (CLASSIFIER, 3, "has 3 labels of pairs; a reranker is made of"),
  ("BertForTokenClassification", 2, "has no labels of pairs"),
  ("BertModel", None, "has no labels of pairs"),
)
def test_other_heads_do_not_rank(architecture, num_labels, message, tmp_path):
  folder = write(tmp_path / "a", (), num_labels, architecture)
  assert message in refusal(converted, folder, tmp_path, as_reranker=True)
