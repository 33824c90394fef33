"""Wrong folders of models, and all that reads them: one line each."""

import functools
import json
import shutil

import commands
import embedder_test
import pytest
import signatures_test
from refused import refusal
from signatures_test import PREDICTORS

import export_model
import run_classifier
import run_embeddings
import run_ner
import run_squad
from bertlib.export import OnnxModel
from bertlib.export.exported_model import ExportedModel

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason="pip install -e .[test]")

pytestmark = pytest.mark.train

MODELS = {
  "classification": signatures_test.MODELS["classification"],
  "ner": signatures_test.MODELS["ner"],
  "squad": signatures_test.MODELS["squad_1"],
  "embeddings": {
    "script": "run_embeddings",
    "embedding": embedder_test.SPECS["mean"],
  },
}
# SavedModels differ in nothing that is read here.
SAVED = ("classification", "embeddings")


def edit(name, **changed):
  """A change of a JSON file; a value of `...` removes its key."""

  def change(folder):
    path = folder / name
    values = json.loads(path.read_text()) | changed
    values = {key: value for key, value in values.items() if value is not ...}
    path.write_text(json.dumps(values))

  return change


description = functools.partial(edit, "model.json")
config = functools.partial(edit, "bert_config.json")


def lines(change):
  """A change of the lines of the vocabulary."""

  def rewrite(folder):
    path = folder / "vocab.txt"
    path.write_text("\n".join(change(path.read_text().split("\n"))))

  return rewrite


def cut(folder):
  path = folder / "model.json"
  path.write_text(path.read_text()[:-20])


def vectors(**changed):
  return description(embedding=embedder_test.SPECS["mean"] | changed)


DAMAGES = {
  "classification": {
    "swapped labels": description(labels=["yes", "no", "maybe"]),
    "no labels": description(labels=...),
    "fewer labels": description(labels=["no", "yes"]),
    "one label": description(labels=["no"]),
    "another kind": description(kind="multi_label"),
    "a newer format": description(format=2),
    "a negative length": description(seq_length=-3),
    "no length": description(max_seq_length=...),
    "a length that is text": description(max_seq_length="24"),
    "more tokens than positions": description(max_seq_length=64),
    "another casing": description(do_lower_case=False),
    "no casing": description(do_lower_case=...),
    "words of no length": description(max_input_chars_per_word=0),
    "half a file": cut,
    "shuffled vocabulary": lines(lambda words: [*words[:6], *words[:5:-1]]),
    "more heads": config(num_attention_heads=4),
    "another activation": config(hidden_act="relu"),
    "positions that are text": config(max_position_embeddings="40"),
    "no script": description(script=...),
    "another script": description(script="run_embeddings"),
  },
  "ner": {
    "no labels": description(labels=...),
    "fewer labels": description(labels=["O", "S-X", "S-Y"]),
  },
  "squad": {
    "no stride": description(doc_stride=...),
    "a question length that is text": description(max_query_length="6"),
  },
  "embeddings": {
    "no embedding": description(embedding=...),
    "an embedding that is text": description(embedding="mean"),
    "another pooling": vectors(pooling="max"),
    "another length of vectors": vectors(normalize=False),
  },
}
ROWS = [(kind, damage) for kind in DAMAGES for damage in DAMAGES[kind]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
  """Returns the folder of a kind of model, with its exports in it."""

  @functools.cache
  def folder_of(kind):
    folder = tmp_path_factory.mktemp("model")
    signatures_test.make_model(folder, **MODELS[kind])
    source = signatures_test.source_of(folder)
    export_model.export_onnx(source, str(folder / "onnx"))
    if kind in SAVED:
      export_model.export(source, str(folder / "saved"))
    return folder

  return folder_of


@pytest.fixture
def copy_of(folder_of, tmp_path):
  return lambda kind: shutil.copytree(folder_of(kind), tmp_path / "model")


@pytest.mark.parametrize(("kind", "damage"), ROWS)
def test_a_wrong_folder_is_refused_by_predictor_and_exports(
  kind, damage, copy_of
):
  folder, change = copy_of(kind), DAMAGES[kind][damage]
  uses = {"": PREDICTORS[MODELS[kind]["script"]], "onnx": OnnxModel}
  if kind in SAVED:
    uses["saved"] = ExportedModel
  for name, use in uses.items():
    change(folder / name / "assets" if name == "saved" else folder / name)
    assert str(folder / name) in refusal(use, str(folder / name))


COMMANDS = {
  "classification": run_classifier,
  "ner": run_ner,
  "squad": run_squad,
  "embeddings": run_embeddings,
}


# To a command, a folder of another script is an encoder, and labels are flags.
OTHERS = ("no script", "another script", "one label")


@pytest.mark.parametrize(
  ("kind", "damage"), [row for row in ROWS if row[1] not in OTHERS]
)
def test_a_wrong_folder_is_refused_by_a_command(kind, damage, copy_of):
  folder = copy_of(kind)
  DAMAGES[kind][damage](folder)
  (folder / "texts.txt").write_text("the cat sat\n")
  with commands.in_process(COMMANDS[kind]) as main:
    flags = f"--output_dir={folder}", f"--predict_file={folder}/texts.txt"
    assert str(folder) in refusal(main, *flags, "--do_predict")


def test_a_change_that_is_meant_is_kept(copy_of):
  folder = copy_of("classification")
  description(labels=[*"abc"], meaning_sha256=...)(folder)
  with run_classifier.Predictor(str(folder)) as predictor:
    assert predictor.predict(["the cat"])[0].label in [*"abc"]
