"""Models with BERT's formula from transformers: equal outputs, and back.

`golden/transformers.json` has outputs of transformers, `run_transformers.py`
there writes it. The padding token occurs within a text.
"""

import json
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_huggingface
from parametrize import parametrize
from reference_data import golden
from refused import refusal
from run_outputs import edit_json, read_json
from safetensors.numpy import load_file, save_file
from scipy import special

import modeling
import run_squad
from bertlib.checkpoints import checkpoint_files, model_folder
from bertlib.compute.fast_compute import FastCompute
from bertlib.exchange import sentence_transformers
from bertlib.export import onnx_graph, signatures
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.task import task_record

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason=".[test]")

pytestmark = pytest.mark.graph

MODELS = read_json(golden("transformers.json"))
IDS = np.array([[0, 7, 1, 9, 10, 4, 2], [0, 5, 6, 2, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
POSITIONS = np.tile(np.arange(4), [2, 1])
INPUTS = {
  "input_ids": IDS,
  "input_mask": MASK,
  "segment_ids": np.ones_like(MASK),  # of models that have none
  "masked_lm_positions": POSITIONS,
}
WORDS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *"abcdefgh"]


def write_folder(folder, name, **changed):
  """Writes the folder of a class, as transformers does."""
  tensors = {}
  for tensor, shape in MODELS[name]["shapes"].items():
    draw = np.random.RandomState(zlib.crc32(tensor.encode()))
    mean = float("orm" in tensor and tensor.endswith("weight"))
    tensors[tensor] = draw.normal(mean, 0.3, shape).astype(np.float32)
  folder.mkdir()
  save_file(tensors | changed, folder / "model.safetensors", {"format": "pt"})
  (folder / "config.json").write_text(json.dumps(MODELS[name]["config"]))
  (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
  return tensors


@pytest.fixture(
  scope="module", params=sorted(MODELS.keys() - {"ElectraForPreTraining"})
)
def converted(request, tmp_path_factory):
  """Name of a class, folder of it converted, and what transformers wrote."""
  folder = tmp_path_factory.mktemp(request.param)
  tensors = write_folder(folder / "theirs", request.param)
  tiny_huggingface.convert(folder / "theirs", folder / "ours")
  return request.param, folder / "ours", tensors


def load(folder):
  """The `SignatureModel` of a folder, its task and its weights."""
  description = model_folder.check(str(folder))
  config = model_folder.load_config(str(folder / "bert_config.json"))
  task = task_record.find(description.get("script"))
  model_class, build_model = signatures.find(task)
  model = model_class(description, config, None, build_model=build_model)
  weights = checkpoint_files.Checkpoint(str(folder / "bert_model.ckpt"))
  return model, task, dict(weights)


def at_tokens(values):
  """Values with an axis of positions, at tokens alone."""
  return values[MASK > 0] if values.shape[1:2] == MASK.shape[1:] else values


# TensorFlow 2.22.0rc0 differs from earlier releases by up to 1.5e-5 here.
TOLERANCE = 2e-5 if tf.__version__.startswith("2.22.0-rc") else 1e-5


def assert_equal(name, outputs, atol=TOLERANCE):
  """Asserts that outputs by name are those of transformers."""
  expected = [np.array(values) for values in MODELS[name]["outputs"]]
  names = ["logits"] * (len(expected) == 1)
  if name.endswith("MaskedLM"):
    logits = np.take_along_axis(expected[0], POSITIONS[:, :, np.newaxis], 1)
    expected, names = [special.softmax(logits, axis=-1)], ["probabilities"]
  elif name.endswith("MultipleChoice"):
    expected = [scores.T for scores in expected]  # of each text here
  elif name.endswith("Model"):
    names = ["last_hidden_state", "pooler_output"][: len(expected)]
  elif name.endswith("QuestionAnswering"):
    names = ["start_logits", "end_logits"]
  for key, values in zip(names, expected, strict=True):
    np.testing.assert_allclose(
      at_tokens(outputs[key]), at_tokens(values), atol=atol
    )


def test_outputs_are_those_of_transformers(converted):
  name, folder, _ = converted
  model, _, weights = load(folder)
  # Output layers are those of BERT, with padding or without.
  for unpad in (True, False) if name.endswith("Model") else (True,):
    model.compute = FastCompute(unpad=unpad)
    with tf.Graph().as_default(), tf.Session() as session:
      outputs = model.outputs(
        {key: tf.constant(INPUTS[key], tf.int32) for key in model.features()}
      )
      session.run(tf.global_variables_initializer())
      for variable in tf.global_variables():
        if variable.op.name in weights:
          variable.load(weights[variable.op.name], session)
      assert_equal(name, session.run(outputs))


def test_the_onnx_graph_gives_the_same(converted):
  name, folder, _ = converted
  model, task, weights = load(folder)
  graph = onnx_graph.Graph()
  encoder = onnx_graph.Encoder(graph, vars(model.config), weights, {})
  head = task.onnx_head(model.description) if task else onnx_graph.hidden_states
  onnx_model = graph.model(head(encoder))
  session = onnxruntime.InferenceSession(onnx_model.SerializeToString())
  named = {onnx_graph.INPUT_NAMES.get(n, n): v for n, v in INPUTS.items()}
  inputs = {each.name: named[each.name] for each in session.get_inputs()}
  assert "token_type_ids" not in inputs
  outputs = [each.name for each in session.get_outputs()]
  assert_equal(name, dict(zip(outputs, session.run(None, inputs))), atol=2e-5)


def test_a_folder_of_transformers_comes_back(converted, tmp_path):
  name, folder, tensors = converted
  path = f"{folder}/bert_model.ckpt"
  lines = tiny_huggingface.convert_back(path, tmp_path / "back")
  assert f"architecture: {name}" in lines
  found = load_file(tmp_path / "back" / "model.safetensors")
  assert found.keys() == tensors.keys()
  for key, tensor in tensors.items():
    np.testing.assert_array_equal(found[key], tensor)
  config = read_json(tmp_path / "back" / "config.json")
  sizes = {
    key: value
    for key, value in MODELS[name]["config"].items()
    if isinstance(value, (int, float)) or key in ("activation", "hidden_act")
  }
  assert config == config | sizes | {"architectures": [name]}


def test_a_pooler_has_a_dropout_of_its_own():
  config = modeling.BertConfig.from_dict(
    MODELS["RobertaForMaskedLM"]["config"]
    | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    # Rounds to 1 in float32: nothing is kept.
    | {"pooler_dropout_prob": 1 - 1e-9}
  )
  with tf.Graph().as_default(), tf.Session() as session:
    model = modeling.BertModel(config, True, tf.constant(IDS))
    session.run(tf.global_variables_initializer())
    assert not np.any(session.run(model.get_pooled_output()))  # biases are 0


@parametrize("name, expected", ("Roberta", 0.1), ("DistilBert", None))
def test_a_classifier_of_roberta_has_a_second_dropout(tmp_path, name, expected):
  write_folder(tmp_path / "a", f"{name}ForSequenceClassification")
  tiny_huggingface.convert(tmp_path / "a", tmp_path / "b")
  config = read_json(tmp_path / "b" / "bert_config.json")
  assert config.get("pooler_dropout_prob") == expected


def test_answers_of_distilbert_have_a_dropout():
  with tf.Graph().as_default(), tf.Session() as session:
    logits = run_squad.create_model(
      modeling.BertConfig.from_dict(
        MODELS["RobertaForMaskedLM"]["config"] | {"qa_dropout": 1 - 1e-9}
      ),
      *(True, tf.constant(IDS), tf.constant(MASK), tf.zeros_like(IDS), False),
    )
    session.run(tf.global_variables_initializer())
    assert not np.any(session.run(logits))


def test_a_second_pooler_of_a_classifier_is_left_out(tmp_path):
  name, scope = "RobertaForSequenceClassification", "roberta.pooler.dense"
  second = {f"{scope}.weight": np.float32(np.eye(8))}
  second |= {f"{scope}.bias": np.zeros(8, np.float32)}
  tensors = write_folder(tmp_path / "a", name, **second)
  tiny_huggingface.convert(tmp_path / "a", tmp_path / "b")
  kernel = load(tmp_path / "b")[2]["bert/pooler/dense/kernel"]
  np.testing.assert_array_equal(kernel.T, tensors["classifier.dense.weight"])


def test_a_masked_lm_head_of_roberta_has_gelu(tmp_path):
  write_folder(tmp_path / "a", "RobertaForMaskedLM")
  edit_json(tmp_path / "a" / "config.json", hidden_act="relu")
  message = refusal(tiny_huggingface.read, tmp_path / "a")
  assert "hidden_act is relu, but the masked LM head of roberta has" in message


def test_what_no_model_of_a_kind_has_is_refused(tmp_path):
  write_folder(tmp_path / "a", "DistilBertModel")
  path, _ = tiny_huggingface.convert(tmp_path / "a", tmp_path / "b")
  edit_json(tmp_path / "b" / "bert_config.json", pooler_act="tanh")
  message = refusal(tiny_huggingface.convert_back, path, tmp_path / "c")
  assert 'pooler_act is "tanh", but "relu" in every distilbert' in message


def test_sentence_vectors_of_distilbert_come_back(tmp_path):
  write_folder(tmp_path / "a", "DistilBertModel")
  described = {"embedding": EmbeddingSpec().as_json(), "max_seq_length": 9}
  sentence_transformers.write(str(tmp_path / "a"), described, {}, 8)
  path, _ = tiny_huggingface.convert(tmp_path / "a", tmp_path / "b")
  tiny_huggingface.convert_back(path, tmp_path / "c")
  for name in ("1_Pooling/config.json", "modules.json"):
    written = (tmp_path / "c" / name).read_text()
    assert written == (tmp_path / "a" / name).read_text()


def test_the_longest_text_leaves_room_for_the_offset(tmp_path):
  write_folder(tmp_path / "a", "CamembertModel")
  tiny_huggingface.convert(tmp_path / "a", tmp_path / "b")
  model = load(tmp_path / "b")[0]
  assert model.max_seq_length == 14
  config = vars(model.config)
  model_folder.check_max_seq_length(14, config)
  message = refusal(model_folder.check_max_seq_length, 15, config)
  assert message.endswith("embeddings less its position_offset, 2, 14")


def test_a_config_of_roberta_has_its_positions(tmp_path):
  path = tmp_path / "config.json"
  config = MODELS["RobertaForMaskedLM"]["config"]
  path.write_text(json.dumps(config))
  assert model_folder.load_config(str(path)).position_offset == 2
  path.write_text(json.dumps(config | {"model_type": "bert"}))
  assert model_folder.load_config(str(path)).position_offset == 0
