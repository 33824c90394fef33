"""Models whose formula or tokenizer was edited leave as they are, or not."""

import __future__

import dataclasses
import inspect
import os
import sys
import textwrap

import commands
import numpy as np
import pytest
import released
import run_outputs
import signatures_test
import tensorflow as tf
import tiny_huggingface
from parametrize import parametrize
from refused import assert_refused, refusal
from scipy import special
from signatures_test import TEXTS

import export_model
import modeling
import run_classifier
import run_embeddings
import tokenization
from bertlib.cli.errors import InputError
from bertlib.export import OnnxModel, onnx_graph, same_outputs
from bertlib.io import json_files
from bertlib.task import task_record
from examples import two_heads

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason=".[test]")
pytest.importorskip("gguf", reason=".[test]")
tf2onnx = pytest.importorskip("tf2onnx", reason=".[test]")

pytestmark = pytest.mark.train

CLASSIFIER = signatures_test.MODELS["classification"]

# A function, a line of it, and what becomes of that.
GELU = (
  (modeling, "gelu"),
  "  return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))",
  "  return 0.5 * x * (1.0 + tf.math.erf(x))",
)
DISTANCE = (
  (modeling, "dot_product_attention"),
  "  probs = tf.nn.softmax(scores)",
  "  places = tf.range(tf.cast(tf.shape(scores)[-1], tf.float32))\n"
  "  probs = tf.nn.softmax(scores - 0.1 * places)",
)
SWISH = (
  (modeling, "get_activation"),
  '    "tanh": tf.tanh,',
  '    "tanh": tf.tanh, "swish": tf.nn.silu,',
)
NO_SEGMENTS = (
  (modeling, "embedding_postprocessor"),
  "  output = input_tensor",
  "  output, use_token_type = input_tensor, False",
)
POOLING = (
  (run_embeddings, "create_model"),
  "  return tf.reshape(vectors",
  "  return tf.reshape(2.0 + vectors",
)
ADAPTER = (
  (modeling, "transformer_model"),
  '    with tf.variable_scope("intermediate"):',
  "    attention_output = dense(\n"
  '      attention_output, hidden_size, name="adapter"\n'
  "    )\n"
  '    with tf.variable_scope("intermediate"):',
)


@pytest.fixture
def edit(monkeypatch):
  """Edits a function as one would in its file."""
  compute = same_outputs.released_outputs.compute
  monkeypatch.setattr(same_outputs, "released_outputs", compute)

  def edit(place, before, after):
    owner, name = place
    module = inspect.getmodule(owner)
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(before) == 1, source
    changed = {}
    source = source.replace(before, after)
    flags = __future__.annotations.compiler_flag
    exec(compile(source, module.__file__, "exec", flags), vars(module), changed)
    monkeypatch.setattr(owner, name, changed[name])
    signatures_test.variables_of.cache_clear()

  yield edit
  signatures_test.variables_of.cache_clear()


@pytest.fixture
def export(tmp_path):
  """Exports the model of a folder; returns the folder of the export."""
  with commands.in_process(export_model) as main:

    def export(folder, *flags):
      main(f"--model_dir={folder}", f"--export_dir={tmp_path / 'x'}", *flags)
      return tmp_path / "x"

    yield export


def make_model(folder, **description):
  return signatures_test.make_model(folder, **(CLASSIFIER | description))


def make_encoder(folder):
  model = signatures_test.MODELS["embeddings, mean"]
  return signatures_test.make_model(folder, **model)


def set_activation(folder, name):
  run_outputs.edit_json(folder / "bert_config.json", hidden_act=name)
  # An edit that is meant.
  run_outputs.edit_json(folder / "model.json", meaning_sha256=...)


def probabilities(predictions):
  return np.array([[*p.probabilities.values()] for p in predictions])


@parametrize(
  "change, problem",
  (DISTANCE, "differs by"),
  (ADAPTER, "does not use bert/encoder/layer_0/adapter/bias, "),
  (SWISH, "swish"),
  (NO_SEGMENTS, "token_type_embeddings"),
  ids=["distance", "adapter", "swish", "no segments"],
)
def test_onnx_has_an_edit_by_tf2onnx_or_is_refused(
  edit, export, tmp_path, monkeypatch, caplog, change, problem
):
  edit(*change)
  folder = make_model(tmp_path / "model")
  if change is SWISH:
    set_activation(folder, "swish")
  with monkeypatch.context() as context:
    context.setitem(sys.modules, "tf2onnx", None)
    message = refusal(export, folder, "--format=onnx")
  assert problem in message and "pip install -e" in message
  assert not (tmp_path / "x").exists()
  exported = export(folder, "--format=onnx")
  assert "tf2onnx has converted that of TensorFlow" in caplog.text
  with run_classifier.Predictor(str(folder)) as predictor:
    expected = probabilities(predictor.predict(TEXTS))
  found = probabilities(OnnxModel(str(exported)).predict(TEXTS))
  np.testing.assert_allclose(found, expected, atol=1e-5)


def declared(folder):
  """What programs see of an ONNX file."""
  session = onnxruntime.InferenceSession(folder / onnx_graph.MODEL_FILE)
  values = [*session.get_inputs(), *session.get_outputs()]
  import onnx

  model = onnx.load(folder / onnx_graph.MODEL_FILE)
  versions = [(opset.domain, opset.version) for opset in model.opset_import]
  types = [(value.name, value.type, len(value.shape)) for value in values]
  return types, model.ir_version, versions


# Of other kinds the outputs are those of one of these.
@parametrize(
  "kind",
  *("classification", "regression", "multiple_choice", "ner", "squad_1"),
  *("pretraining", "ranking", "embeddings, mean", "encoder"),
)
def test_a_converted_graph_is_declared_alike(edit, export, tmp_path, kind):
  flags = ["--format=onnx", "--overwrite"] + ["--encoder"] * (kind == "encoder")
  model = signatures_test.MODELS.get(kind, CLASSIFIER)
  folder = signatures_test.make_model(tmp_path / "model", **model)
  written = declared(export(folder, *flags))
  edit(*GELU)
  assert declared(export(folder, *flags)) == written


def test_the_reference_of_onnx_compares(edit, export, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "onnxruntime", None)
  monkeypatch.setitem(sys.modules, "tf2onnx", None)
  folder = make_model(tmp_path / "model")
  assert (export(folder, "--format=onnx") / onnx_graph.MODEL_FILE).exists()
  edit(*GELU)
  assert_refused("differs by", export, folder, "--format=onnx", "--overwrite")


def test_other_precisions_and_graphs_above_2_gb_are_not_converted(
  edit, export, tmp_path, monkeypatch
):
  edit(*GELU)
  folder = make_model(tmp_path / "model")
  for flag in ("--quantize=int8", "--precision=float16", "--precision=float32"):
    if flag == "--precision=float32":
      monkeypatch.setattr(same_outputs, "MAX_BYTES", 1000)
    fault = f"^{flag}: .* float32 only, up to 2 G"
    assert_refused(fault, export, folder, "--format=onnx", flag)


# GGUF and Hugging Face


@parametrize(
  "change, problem",
  (GELU, "differs"),
  (DISTANCE, "differs"),
  (POOLING, "differs"),
  (SWISH, "swish"),
  ids=["gelu", "distance", "pooling", "swish"],
)
def test_gguf_refuses_an_edit(edit, export, tmp_path, change, problem):
  edit(*change)
  folder = make_encoder(tmp_path / "model")
  if change is SWISH:
    set_activation(folder, "swish")
  with pytest.raises(InputError, match=f"^--format=gguf: .*{problem}"):
    export(folder, "--format=gguf")
  assert not (tmp_path / "x").exists()


def test_gguf_refuses_weights_that_it_does_not_name(edit, export, tmp_path):
  # In the small model this is the released formula.
  edit(
    (modeling, "transformer_model"),
    '    with tf.variable_scope("intermediate"):',
    "    if hidden_size == 32:\n"
    '      attention_output = dense(attention_output, 32, name="adapter")\n'
    '    with tf.variable_scope("intermediate"):',
  )
  folder = make_model(tmp_path / "model")
  with pytest.raises(InputError, match="compute with bert/encoder/layer_0/ad"):
    export(folder, "--format=gguf", "--encoder")


def convert(folder, tmp_path):
  checkpoint = os.path.join(folder, "model.ckpt-7")
  return tiny_huggingface.convert_back(checkpoint, tmp_path / "theirs")


@parametrize(
  "change, problem",
  (GELU, "differs"),
  (ADAPTER, "has tensors that BERT does not have: bert/encoder/layer_0/adap"),
  (SWISH, 'hidden_act "swish" cannot be converted'),
  ids=["gelu", "adapter", "swish"],
)
def test_a_hugging_face_folder_refuses_an_edit(edit, tmp_path, change, problem):
  edit(*change)
  folder = make_model(tmp_path / "model")
  if change is SWISH:
    set_activation(folder, "swish")
  assert_refused(problem, convert, folder, tmp_path)
  assert not (tmp_path / "theirs").exists()


@parametrize("kind", "classification", "squad_2")
def test_a_hugging_face_folder_refuses_an_edited_head(edit, tmp_path, kind):
  place, product = (modeling, "_output_layer"), "tf.matmul("
  edit(place, f"  logits = {product}", f"  logits = 1.1 * {product}")
  model = signatures_test.MODELS[kind]
  folder = signatures_test.make_model(tmp_path / "model", **model)
  assert_refused("differs", convert, folder, tmp_path)


def test_a_hugging_face_folder_has_what_an_edited_head_does_not_change(
  edit, tmp_path
):
  edit(*POOLING)
  assert convert(make_model(tmp_path / "model"), tmp_path)


# Tokenizers


TOKENIZERS = {
  "accents": (
    (tokenization.BasicTokenizer, "_run_strip_accents"),
    "return ",
    "return text or ",
  ),
  "pieces": (
    (tokenization.WordpieceTokenizer, "_split_word"),
    "mark = CONTINUATION",
    'mark = "@@"',
  ),
}


@parametrize("change", *TOKENIZERS)
@parametrize("file_format", "onnx", "gguf", "huggingface")
def test_an_edited_tokenizer_does_not_leave(
  edit, export, tmp_path, change, file_format
):
  folder = make_encoder(tmp_path / "model")
  edit(*TOKENIZERS[change])
  with pytest.raises(InputError, match=r"^--.*: tokenization.py splits"):
    if file_format == "huggingface":
      convert(folder, tmp_path)
    else:
      export(folder, f"--format={file_format}")


def test_accents_do_not_matter_to_a_cased_model(edit, export, tmp_path):
  folder = make_model(tmp_path / "model", do_lower_case=False)
  edit(*TOKENIZERS["accents"])
  assert (export(folder, "--format=onnx") / "tokenizer.json").exists()


# Tasks of one's own


class ScoredHeads(two_heads.ExportedModel):
  """Both heads of the example side by side."""

  output = "scores"

  def outputs(self, inputs):
    return {"scores": tf.concat(self.build(inputs), axis=1)}


def heads(*scopes):
  """Draws the logits of heads of `examples/two_heads.py`."""

  def draw(encoder):
    states = encoder.sequence_output(onnx_graph.CLS).outputs()
    node, weights = encoder.graph.node, encoder.weights
    pooler = "bert/pooler/dense"
    bias = weights[f"{pooler}/bias"]
    pooled = encoder.dense(pooler, node("Squeeze", states, [1]), bias=bias)
    pooled = encoder.activation(pooled, "tanh")
    logits = [
      node(
        "Add",
        node("MatMul", pooled, weights[f"{scope}/output_weights"].T),
        weights[f"{scope}/output_bias"],
      )
      for scope in scopes
    ]
    scores = node("Concat", *logits, axis=1)
    return {"scores": onnx_graph.Output(scores, ["batch", 4])}

  return draw


@parametrize(
  "scopes, problem",
  (["head_0", "head_1"], None),
  (["head_1", "head_0"], "differs by"),
  (["head_0", "head_0"], "does not use head_1/output_bias"),
)
def test_a_task_of_ones_own_is_compared(tmp_path, monkeypatch, scopes, problem):
  monkeypatch.setitem(sys.modules, "tf2onnx", None)
  record = dataclasses.replace(
    two_heads.RECORD,
    export=lambda: ScoredHeads,
    onnx_head=lambda description: heads(*scopes),
  )
  monkeypatch.setattr(task_record, "find", lambda script: record)
  labels = {"label_sets": [["a", "b"], ["c", "d"]]}
  folder = signatures_test.make_model(tmp_path / "a", "two_heads", **labels)
  arguments = signatures_test.source_of(folder), str(tmp_path / "x")
  if problem:
    assert_refused(problem, export_model.export_onnx, *arguments)
  else:
    export_model.export_onnx(*arguments)
  assert (tmp_path / "x").exists() == (problem is None)


# What is kept


def kept_cases():
  kept = json_files.read(same_outputs.RELEASED, dict)
  for name, cases in kept["outputs"].items():
    script, hidden_act = name.split()
    if hidden_act != "gelu" and script != "encoder":
      continue
    for number, (description, outputs) in enumerate(cases):
      task = None if script == "encoder" else task_record.find(script)
      yield pytest.param(
        task, description, hidden_act, outputs, id=f"{name} {number}"
      )


@parametrize("task, description, hidden_act, kept", *kept_cases())
def test_what_is_kept_is_that_of_another_implementation(
  task, description, hidden_act, kept
):
  model, weights = same_outputs.small_model(task, description, hidden_act)
  graph = onnx_graph.Graph()
  encoder = onnx_graph.Encoder(graph, vars(model.config), weights, {})
  head = task.onnx_head(description) if task else onnx_graph.hidden_states
  onnx_model = graph.model(head(encoder))
  session = onnxruntime.InferenceSession(onnx_model.SerializeToString())
  length = model.config.max_position_embeddings
  inputs = same_outputs.two_texts(model, length)
  found = session.run(None, inputs)
  if not task:  # without the embeddings and the first layer
    kept = kept[-2:]
  if task and task.script == "run_squad":  # [B, 2, S]
    found = [found[0].transpose(0, 2, 1)]
  for values, expected in zip(found, kept):
    if values.ndim == 3 and values.shape[1] == length:
      values = values[inputs["attention_mask"] > 0]
    if task and task.fills_masks:  # probabilities
      if values.ndim == 1:  # the first of two
        values = np.stack([values, 1 - values], axis=-1)
      values = np.log(values)
      expected = np.reshape(expected, values.shape)
      expected -= special.logsumexp(expected, axis=-1, keepdims=True)
    values = values.ravel()[:: -(-values.size // 64)]
    np.testing.assert_allclose(values, np.ravel(expected), rtol=1e-4, atol=1e-5)


@parametrize("hidden_act", *released.ACTIVATIONS)
def test_unedited_code_gives_what_is_kept(hidden_act):
  kept = json_files.read(same_outputs.RELEASED, dict)["outputs"]
  for task in [None, *task_record.all_records()]:
    script = task.script if task else "encoder"
    assert kept[f"{script} {hidden_act}"]
    # The output layers of other tasks do not depend on it.
    if hidden_act == "gelu" or script in ("encoder", "run_pretraining"):
      same_outputs.check_formula("--x", hidden_act, task)


@parametrize("do_lower_case", True, False)
def test_the_unedited_tokenizer_gives_what_is_kept(do_lower_case):
  same_outputs.check_tokenizer("--x", do_lower_case)
