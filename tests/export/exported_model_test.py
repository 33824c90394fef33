"""Tests of calling exported models from Python."""

import collections
import contextlib
import json
import shutil

import pytest
import run_outputs
import signatures_test
import tensorflow as tf
from parametrize import parametrize
from refused import assert_refused, refusal
from signatures_test import TEXTS, assert_equal
from wrong_input_files import flip

import export_model
import run_classifier
from bertlib.cli.errors import InputError
from bertlib.compute import onednn
from bertlib.export import exported_model
from bertlib.export.exported_model import ExportedModel
from bertlib.io import processes

pytestmark = pytest.mark.train

PAIRS = list(zip(TEXTS, TEXTS[::-1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Folder of a trained classifier, exported in its folder `exported`."""
  folder = tmp_path_factory.mktemp("model")
  described = signatures_test.MODELS["classification"] | {"has_pairs": True}
  signatures_test.make_model(folder, **described)
  source = signatures_test.source_of(folder)
  export_model.export(source, str(folder / "exported"))
  return folder


@pytest.fixture(scope="module")
def model(folder):
  return ExportedModel(str(folder / "exported"))


def test_an_exported_model_predicts_like_the_predictor(model, folder):
  with run_classifier.Predictor(str(folder)) as predictor:
    expected = predictor.predict(PAIRS)
  rows = [list(p.probabilities.values()) for p in expected]
  inputs = dict(zip(["text_a", "text_b"], zip(*PAIRS)))
  assert model.signatures["tokenize"] == model.signatures["pair"] == [*inputs]
  ids = model("tokenize", **inputs)
  found = model(**inputs), model("pair", **inputs), model("ids", **ids)
  for outputs in found:
    assert outputs["label"].tolist() == [p.label for p in expected]
    assert_equal(outputs["probabilities"], rows)


@parametrize(
  "call, message",
  (lambda model: model("texts", text_a=TEXTS), "no signature 'texts'"),
  (lambda model: model(text=TEXTS), "takes the inputs text_a, text_b"),
  (lambda model: model("text", text_a="a cat"), r"text_a: has shape \(\)"),
  (lambda model: model("text", text_a=[1]), "text_a: Cannot convert"),
  (lambda model: model(text_a=["a", "b"], text_b=["c"]), "2 in text_a, 1 in"),
)
def test_a_wrong_call_is_refused(model, call, message):
  assert_refused(message, call, model)


def test_a_folder_without_a_model_is_refused(folder):
  assert_refused("contains no SavedModel", ExportedModel, str(folder))


def cut(content):
  return content[:-20]


def set_format(**values):
  return lambda content: json.dumps(json.loads(content) | values).encode()


GRAPH, FORMAT = "saved_model.pb", "assets/format.json"
# Protocol buffers ignore it, the hash of the graph does not.
UNKNOWN_FIELD = b"\x98\x3e\x01"


@parametrize(
  "changes",
  {GRAPH: cut},
  {GRAPH: flip(5000)},
  {GRAPH: lambda content: b""},
  {GRAPH: lambda content: content + UNKNOWN_FIELD},
  {GRAPH: cut, FORMAT: set_format(graph_sha256=None)},  # as earlier versions
  {"variables/variables.index": cut},
  {"variables/variables.data-00000-of-00001": flip(5000)},
  {FORMAT: cut},
  {FORMAT: set_format(precision="float23")},
  {FORMAT: set_format(max_kernel_value="many")},
)
def test_a_damaged_export_is_refused_by_one_line(changes, folder, tmp_path):
  damaged = shutil.copytree(folder / "exported", tmp_path / "exported")
  for file, change in changes.items():
    (damaged / file).write_bytes(change((damaged / file).read_bytes()))
  message = refusal(ExportedModel, str(damaged))
  assert message.startswith(str(damaged))
  assert "Export the model again" in message


def test_files_beside_an_export_are_checked(folder, tmp_path):
  exported = shutil.copytree(folder / "exported", tmp_path / "exported")
  path = exported / "assets" / "model.json"
  run_outputs.edit_json(path, do_lower_case=False)
  assert refusal(ExportedModel, str(exported)).startswith(f"{path}: ")


@parametrize(
  "number_formats, has_int8, logged, refused",
  (["float32"], False, None, None),
  (["bfloat16"], True, None, None),
  (["float32", 63], True, None, None),
  (["float32", 127], True, "sums overflow", None),
  (["float32", 127], False, None, "load an export in float32"),
  (["bfloat16", 63], True, None, "attention in bfloat16"),
)
def test_what_a_machine_computes_differently_is_reported(
  tmp_path, monkeypatch, caplog, number_formats, has_int8, logged, refused
):
  monkeypatch.setattr(onednn, "has_int8_matmul", lambda: has_int8)
  monkeypatch.setattr(processes, "features", lambda: {"avx2"})
  monkeypatch.setattr(onednn, "max_kernel_value", lambda: 63)
  (tmp_path / "assets").mkdir()
  exported_model.write_format(str(tmp_path), *number_formats)
  expected = contextlib.nullcontext()
  if refused:
    expected = pytest.raises(InputError, match=refused)
  with expected:
    exported_model.check_format(str(tmp_path))
  assert logged in caplog.text if logged else not caplog.messages


def test_text_is_tokenized_on_the_host_and_the_model_runs_anywhere(folder):
  text = tf.saved_model.load(str(folder / "exported")).signatures["text"]
  devices = collections.defaultdict(set)
  for function in text.graph.as_graph_def().library.function:
    for node in function.node_def:
      devices[node.op].add(node.device)
  assert devices["MatMul"] == {""}
  for op in ("UnicodeDecode", "StatelessWhile", "RaggedTensorToTensor"):
    (host,) = devices[op]
    assert "CPU:0" in host
