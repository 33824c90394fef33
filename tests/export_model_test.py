"""Tests of exported models: files, loading elsewhere, fine-tuning."""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import warnings

import commands
import numpy as np
import pytest
import run_outputs
import signatures_test
import tensorflow as tf
from parametrize import parametrize
from signatures_test import CONFIG, MODELS, TEXTS, assert_equal, call
from tensorflow.core.protobuf import saved_model_pb2

import export_model
import modeling
import run_classifier
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError
from bertlib.compute import onednn
from bertlib.data import model_inputs
from bertlib.exchange import rewrite
from bertlib.export import OnnxModel, exported_model
from bertlib.io import folder_lock, output_folders
from bertlib.settings import model_description

pytestmark = pytest.mark.train

NEEDS_INT8 = pytest.mark.skipif(
  not onednn.has_int8_matmul(), reason="no 8-bit products in this TensorFlow"
)

PAIRS = {"text_a": TEXTS, "text_b": TEXTS[::-1]}


@pytest.fixture(scope="module")
def main():
  """Runs the script in this process, which has imported TensorFlow."""
  with commands.in_process(export_model) as main:
    yield main


@pytest.fixture(scope="module")
def export(main):
  """Exports the model in a folder to a folder in it; returns that."""

  def export(model_dir, name, *flags):
    main(
      f"--model_dir={model_dir}", f"--export_dir={model_dir / name}/", *flags
    )
    return model_dir / name

  return export


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  """Output folder of training a classifier of pairs."""
  folder = tmp_path_factory.mktemp("trained")
  return signatures_test.make_model(
    folder, **MODELS["classification"], has_pairs=True
  )


@pytest.fixture(scope="module")
def exported(export, model_dir):
  return export(model_dir, "exported/1")


@pytest.fixture(scope="module")
def loaded(exported):
  return tf.saved_model.load(str(exported))


@parametrize(
  "flags, load",
  ([], exported_model.ExportedModel),
  (["--format=onnx"], OnnxModel),
  ids=["saved model", "onnx"],
)
def test_unused_weights_need_not_be_there(export, tmp_path, flags, load):
  whole, part = tmp_path / "whole", tmp_path / "part"
  signatures_test.make_model(whole, **MODELS["ner"])
  shutil.copytree(whole, part)  # as transformers writes it: without pooler
  weights = rewrite.read_weights(str(whole / "model.ckpt-7"))
  weights = {n: v for n, v in weights.items() if "/pooler/" not in n}
  checkpoint_files.write_variables(str(part / "model.ckpt-7"), weights)
  outputs = []
  for folder in (whole, part):
    model = load(str(export(folder, "exported", *flags)))
    if load is OnnxModel:
      outputs.append(model.predict(TEXTS))
    else:
      outputs.append({n: v.tolist() for n, v in model(text=TEXTS).items()})
  assert outputs[0] == outputs[1]


def test_only_weights_are_exported(exported, model_dir):
  weights = rewrite.read_weights(str(model_dir / "model.ckpt-7")).values()
  kept = tf.train.list_variables(str(exported / "variables" / "variables"))
  kept = [shape for name, shape in kept if name.startswith("variables/")]
  assert sorted(kept) == sorted([*weight.shape] for weight in weights)


def test_each_label_has_one_line(model_dir, tmp_path):
  source = export_model.find_source(
    str(model_dir), None, None, None, True, None
  )
  source.description["labels"] = ["a\nb", "no"]
  export_model.write_assets(source, str(tmp_path))
  assert (tmp_path / "labels.txt").read_text() == "a\\nb\nno\n"


def test_model_files_are_assets(exported, model_dir, tmp_path):
  folder = shutil.copytree(exported, tmp_path / "elsewhere")
  model = tf.saved_model.load(str(folder))
  paths = [pathlib.Path(a.asset_path.numpy().decode()) for a in model.assets]
  assert {path.parent for path in paths} == {folder / "assets"}
  texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
  assert texts.pop("labels.txt") == "no\nyes\nmaybe\n"
  graph = (folder / "saved_model.pb").read_bytes()
  assert run_outputs.read_json(folder / "assets" / "format.json") == {
    "precision": "float32",
    "max_kernel_value": None,
    "graph_sha256": hashlib.sha256(graph).hexdigest(),
  }
  description = model_description.load(str(model_dir))
  trained = {"folder": str(model_dir), "step": 7}
  exported_as = description | {"trained": trained}
  assert json.loads(texts.pop("model.json")) == exported_as
  assert texts == {
    name: (model_dir / name).read_text(encoding="utf-8")
    for name in ("bert_config.json", "vocab.txt")
  }


def test_signatures_have_their_names_and_inputs(loaded):
  signatures = {
    name: set(signature.structured_input_signature[1])
    for name, signature in loaded.signatures.items()
  }
  pair = {"text_a", "text_b"}
  assert signatures == {
    "ids": set(model_inputs.TOKEN_FEATURES),
    "text": {"text_a"},
    "pair": pair,
    "tokenize": pair,
    "serving_default": pair,
  }


# Loading without this project

LOAD = """
import importlib.util, json, sys
import tensorflow as tf
assert importlib.util.find_spec("bertlib") is None
model = tf.saved_model.load(sys.argv[1])
texts = {k: tf.constant(v) for k, v in json.loads(sys.argv[2]).items()}
outputs = model.signatures["serving_default"](**texts)
probabilities = outputs["probabilities"].numpy().tolist()
labels = [text.decode() for text in outputs["label"].numpy()]
print(json.dumps([probabilities, labels]))
"""


def predict_elsewhere(exported, folder):
  """Probabilities and labels of an export in a folder without this project."""
  done = subprocess.run(
    [sys.executable, "-I", "-c", LOAD, exported, json.dumps(PAIRS)],
    capture_output=True,
    text=True,
    cwd=folder,
    check=False,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.process
def test_tensorflow_alone_loads_an_export(exported, model_dir, tmp_path):
  probabilities, labels = predict_elsewhere(exported, tmp_path)
  with run_classifier.Predictor(str(model_dir)) as host:
    expected = host.predict(list(zip(*PAIRS.values())))
  rows = [list(p.probabilities.values()) for p in expected]
  assert_equal(probabilities, rows)
  assert labels == [p.label for p in expected]


@pytest.fixture(scope="module")
def rounded(export, model_dir):
  return export(model_dir, "rounded", "--precision=bfloat16")


def nodes_of(graph):
  """The nodes of a graph and of its functions."""
  functions = (function.node_def for function in graph.library.function)
  return [*graph.node, *itertools.chain(*functions)]


def constants(folder, dtype):
  """Sizes of the matrices of a dtype among a SavedModel's constants."""
  saved = saved_model_pb2.SavedModel()
  saved.ParseFromString((folder / "saved_model.pb").read_bytes())
  shapes = [
    tf.TensorShape(node.attr["value"].tensor.tensor_shape)
    for node in nodes_of(saved.meta_graphs[0].graph_def)
    if node.op == "Const" and node.attr["dtype"].type == dtype.as_datatype_enum
  ]
  return sorted(shape.as_list() for shape in shapes if shape.rank == 2)


def test_kernels_are_stored_once_in_bfloat16(rounded, model_dir):
  weights = rewrite.read_weights(str(model_dir / "model.ckpt-7"))
  kernels = [[*v.shape] for n, v in weights.items() if n.endswith("/kernel")]
  assert constants(rounded, tf.bfloat16) == sorted(kernels)
  assert not tf.saved_model.load(str(rounded)).variables


def test_signatures_are_equal_in_bfloat16(rounded, loaded):
  model = tf.saved_model.load(str(rounded))
  assert set(model.signatures) == set(loaded.signatures)
  outputs = call(model, "pair", **PAIRS)["probabilities"]
  difference = abs(outputs - call(loaded, "pair", **PAIRS)["probabilities"])
  assert 1e-4 < difference.max() < 0.05


@pytest.fixture(scope="module")
def to_8_bits(model_dir):
  path = model_dir / "calibration.txt"
  lines = [f"{a} ||| {b}\n" for a, b in zip(*PAIRS.values()) if a.strip()]
  path.write_text("".join(lines), encoding="utf-8")
  return "--quantize=int8", f"--calibration_file={path}"


@pytest.fixture(scope="module")
def in_8_bits(export, model_dir, to_8_bits):
  return export(model_dir, "int8", *to_8_bits)


@NEEDS_INT8
@pytest.mark.process
def test_tensorflow_alone_runs_an_8_bit_export(in_8_bits, loaded, tmp_path):
  probabilities, _ = predict_elsewhere(in_8_bits, tmp_path)
  expected = call(loaded, "pair", **PAIRS)["probabilities"]
  assert 1e-4 < abs(np.array(probabilities) - expected).max() < 0.1


@NEEDS_INT8
def test_kernels_of_the_encoder_are_stored_in_8_bits(in_8_bits):
  width, inner = CONFIG.hidden_size, CONFIG.intermediate_size
  num_values = sum(a * b for a, b in constants(in_8_bits, tf.int8))
  assert num_values == 4 * width * width + 2 * width * inner


@NEEDS_INT8
def test_skipped_layers_and_encoders_are_exported(export, model_dir, to_8_bits):
  flags = "--encoder", "--int8_skip_layers=0/output", "--precision=float32"
  path = export(model_dir, "int8_encoder", *to_8_bits, *flags)
  width, inner = CONFIG.hidden_size, CONFIG.intermediate_size
  num_values = sum(a * b for a, b in constants(path, tf.int8))
  assert num_values == 4 * width * width + width * inner
  source = signatures_test.source_of(model_dir)
  expected = call(signatures_test.unsaved(source, True), "pair", **PAIRS)
  outputs = call(tf.saved_model.load(str(path)), "pair", **PAIRS)
  for name in ("pooled_output", "mean_output"):
    pair = outputs[name].ravel(), expected[name].ravel()
    assert np.corrcoef(*pair)[0, 1] > 0.99


def lite_interpreter(folder):
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    path = str(folder / exported_model.TFLITE_FILE)
    return tf.lite.Interpreter(path, num_threads=2)


def test_a_lite_model_takes_batches_of_choices(export, tmp_path):
  model_dir = signatures_test.make_model(
    tmp_path / "trained", **MODELS["multiple_choice"]
  )
  folder = export(model_dir, "lite", "--quantize=dynamic_int8")
  exported_model.check_export_dir(str(folder), overwrite=True)
  run = lite_interpreter(folder).get_signature_runner("serving_default")
  model = signatures_test.unsaved(signatures_test.source_of(model_dir))
  encoded = call(model, "tokenize", **PAIRS)
  encoded = {k: v[:9].reshape(3, 3, -1) for k, v in encoded.items()}
  for num_rows in (1, 3):
    rows = {name: ids[:num_rows] for name, ids in encoded.items()}
    expected = call(model, "ids", **rows)["probabilities"]
    assert abs(run(**rows)["probabilities"] - expected).max() < 0.05


@parametrize("pooling", "mean", "max")
def test_a_lite_model_encodes_sentences(export, tmp_path, pooling):
  embedding = {"pooling": pooling, "normalize": True}
  model_dir = signatures_test.make_model(
    tmp_path / "trained", "run_embeddings", embedding=embedding
  )
  folder = export(model_dir, "lite", "--quantize=dynamic_int8")
  interpreter = lite_interpreter(folder)
  order = [details["name"] for details in interpreter.get_input_details()]
  features = "segment_ids", "input_mask", "input_ids"  # as the page has it
  assert order == [f"serving_default_{name}:0" for name in features]
  model = signatures_test.unsaved(signatures_test.source_of(model_dir))
  encoded = call(model, "tokenize", text=TEXTS)
  found = interpreter.get_signature_runner()(**encoded)["vectors"]
  expected = call(model, "ids", **encoded)["vectors"]
  assert (found * expected).sum(axis=1).min() > 0.99


@pytest.fixture(scope="module")
def static(export, model_dir):
  """The model exported with a fixed length and without a vocabulary."""
  names = shutil.ignore_patterns("exported", "vocab.txt")
  folder = shutil.copytree(model_dir, model_dir / "without_vocab", ignore=names)
  path = export(folder, "static", "--seq_length=16")
  return tf.saved_model.load(str(path))


def test_without_a_vocabulary_only_ids_are_accepted(static):
  assert set(static.signatures) == {"ids", "serving_default"}
  files = {os.path.basename(a.asset_path.numpy()) for a in static.assets}
  assert files == {b"bert_config.json", b"labels.txt", b"model.json"}


def test_a_fixed_length_does_not_change_predictions(static, model_dir, loaded):
  _, inputs = static.signatures["ids"].structured_input_signature
  shapes = {(*spec.shape,) for spec in inputs.values()}
  assert [*inputs] and shapes == {(None, 16)}
  source = signatures_test.source_of(model_dir)
  padded = signatures_test.unsaved(source, seq_length=16)
  short = [text for text in TEXTS if len(text) < 20]
  texts = {"text_a": short, "text_b": short[::-1]}
  ids = call(padded, "tokenize", **texts)
  for name, array in call(loaded, "tokenize", **texts).items():
    padding = 16 - array.shape[1]
    assert padding > 0
    expected = np.pad(array, ((0, 0), (0, padding)))
    np.testing.assert_array_equal(ids[name], expected)
  outputs, expected = call(static, "ids", **ids), call(loaded, "pair", **texts)
  assert_equal(outputs["probabilities"], expected["probabilities"])
  assert outputs["label"].tolist() == expected["label"].tolist()


@pytest.fixture(scope="module")
def encoder(main, model_dir):
  """The model's encoder, exported from only its checkpoint."""
  import tensorflow_hub

  main(
    f"--init_checkpoint={model_dir / 'model.ckpt-7'}",
    f"--bert_config_file={model_dir / 'bert_config.json'}",
    "--max_seq_length=24",
    f"--export_dir={model_dir / 'encoder'}",
  )
  return tensorflow_hub.load(str(model_dir / "encoder"))


IDS = np.array(
  [[2, 12, 15, 9, 3], [2, 13, 3, 0, 0], [2, 3, 22, 8, 3]], np.int32
)
SEGMENTS = np.array([[0] * 5, [0] * 5, [0, 0, 1, 1, 1]], np.int32)
INPUTS = {
  "input_word_ids": IDS,
  "input_mask": (IDS > 0).astype(np.int32),
  "input_type_ids": SEGMENTS,
}


def loss_of(pooled, states, layers):
  """A loss that depends on all outputs of an encoder."""
  loss = tf.reduce_sum(tf.sin(pooled))
  for tensor in (states, *layers):
    is_token = tf.cast(INPUTS["input_mask"], tf.float32)[:, :, tf.newaxis]
    loss += tf.reduce_sum(is_token * tf.sin(2.0 * tensor))
  return loss


def run_training_graph(model_dir):
  """Computes loss, outputs and gradients by name in the training graph."""
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    model = modeling.BertModel(
      CONFIG, False, *map(tf.constant, INPUTS.values())
    )
    outputs = [model.get_pooled_output(), model.get_sequence_output()]
    loss = loss_of(*outputs, model.get_all_encoder_layers())
    weights = v1.trainable_variables()
    v1.train.Saver(weights).restore(session, str(model_dir / "model.ckpt-7"))
    gradients = map(tf.convert_to_tensor, tf.gradients(loss, weights))
    names = [weight.op.name for weight in weights]
    return session.run([loss, outputs, dict(zip(names, gradients))])


def test_gradients_equal_those_of_the_training_graph(encoder, model_dir):
  expected_loss, expected_outputs, expected = run_training_graph(model_dir)
  with tf.GradientTape() as tape:
    outputs = encoder(dict(INPUTS))
    loss = loss_of(
      outputs["pooled_output"],
      outputs["sequence_output"],
      outputs["encoder_outputs"],
    )
  weights = encoder.trainable_variables
  gradients = tape.gradient(loss, weights)
  assert_equal(outputs["pooled_output"], expected_outputs[0])
  assert_equal(outputs["default"], expected_outputs[0])
  is_token = INPUTS["input_mask"][:, :, np.newaxis]
  assert_equal(outputs["sequence_output"], expected_outputs[1], is_token)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
  assert {weight.name.split(":")[0] for weight in weights} == set(expected)
  for weight, gradient in zip(weights, gradients):
    np.testing.assert_allclose(
      tf.convert_to_tensor(gradient),
      expected[weight.name.split(":")[0]],
      rtol=1e-4,
      atol=1e-5,
      err_msg=weight.name,
    )


def test_dropout_is_only_used_in_training(encoder):
  first, second = (encoder(dict(INPUTS))["default"] for _ in range(2))
  np.testing.assert_array_equal(first, second)
  first, second = (
    encoder(dict(INPUTS), training=True)["default"] for _ in range(2)
  )
  assert not np.allclose(first, second, atol=1e-3)


# Invalid input


@pytest.fixture
def refuse(main, tmp_path):
  """Runs the script, which must fail and write nothing; returns its error."""
  folder = tmp_path / "exports"
  folder.mkdir()

  def refuse(*flags):
    with pytest.raises(InputError) as refused:
      main(f"--export_dir={folder / 'model'}", *flags)
    assert not list(folder.iterdir())
    return str(refused.value)

  return refuse


@parametrize(
  "flags, message",
  ([], "name --model_dir"),
  (["--model_dir={empty}"], "{empty}: holds no trained model"),
  (
    ["--model_dir={model}", "--seq_length=41"],
    "=41 is not between 3 and the model's max_position_embeddings",
  ),
  (
    ["--model_dir={model}", "--bert_config_file={empty}/other.json"],
    "word_embeddings has shape",
  ),
)
def test_flags_that_name_no_whole_model_are_refused(
  flags, message, refuse, model_dir, tmp_path
):
  other = modeling.BertConfig.from_dict(CONFIG.to_dict() | {"hidden_size": 16})
  (tmp_path / "other.json").write_text(other.to_json_string())
  names = {"empty": tmp_path, "model": model_dir}
  found = refuse(*(flag.format(**names) for flag in flags))
  assert message.replace("{empty}", str(tmp_path)) in found


def test_a_model_of_an_unknown_script_is_refused(refuse, model_dir, tmp_path):
  shutil.copytree(model_dir, tmp_path / "model")
  file = tmp_path / "model" / "model.json"
  description = json.loads(file.read_text()) | {"script": "two_heads"}
  file.write_text(json.dumps(description))
  assert "is a model of two_heads" in refuse(f"--model_dir={file.parent}")


def test_an_existing_export_dir_is_refused_first(main, tmp_path):
  with pytest.raises(InputError, match=r"exists already.* add --overwrite"):
    main("--model_dir=nowhere", f"--export_dir={tmp_path}")
  assert not list(tmp_path.iterdir())


def test_a_second_export_to_a_folder_is_refused_first(main, tmp_path):
  path = str(tmp_path / "exported" / "1")
  with (
    output_folders.folders_for([path]),
    folder_lock.lock_files([path]),
    pytest.raises(InputError, match=r"/1: process \d+ .* another --export_dir"),
  ):
    main("--model_dir=nowhere", f"--export_dir={path}/")


def test_an_earlier_export_is_replaced(main, model_dir, tmp_path):
  path = tmp_path / "exported"
  path.mkdir()
  for name in ("model.json", exported_model.TFLITE_FILE):
    (path / name).write_text("earlier")
  main(f"--model_dir={model_dir}", f"--export_dir={path}", "--overwrite")
  assert not (path / exported_model.TFLITE_FILE).exists()
  tf.saved_model.load(str(path))
  assert [*tmp_path.iterdir()] == [path]


@parametrize(
  "names",
  [],
  ["notes.txt"],
  ["saved_model.pb", "variables/variables.index"],
  ["saved_model.pb", "assets/model.json", "notes.txt"],
  ["model.json", "vocab.txt", "bert_config.json"],
  ["model.json", "model.tflite", "model.ckpt-7.index"],
  ["model.json", "onnx"],
)
def test_only_an_export_is_replaced(main, tmp_path, names):
  for name in names:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("kept")
  with pytest.raises(InputError, match="other files than an export"):
    main("--model_dir=nowhere", f"--export_dir={tmp_path}", "--overwrite")
  assert all((tmp_path / name).read_text() == "kept" for name in names)


@NEEDS_INT8
def test_8_bits_need_texts_or_ranges(refuse, model_dir, tmp_path):
  names = shutil.ignore_patterns("exported", "quantization.json")
  shutil.copytree(model_dir, tmp_path / "model", ignore=names)
  flags = f"--model_dir={tmp_path / 'model'}", "--quantize=int8"
  assert "Name a --calibration_file" in refuse(*flags)


def test_8_bits_need_their_kernels(refuse, model_dir, monkeypatch):
  monkeypatch.setattr(onednn, "has_int8_matmul", lambda: False)
  error = refuse(f"--model_dir={model_dir}", "--quantize=int8")
  assert "Install TensorFlow 2.17 or newer" in error


def test_a_checkpoint_without_the_task_is_refused(refuse, model_dir, tmp_path):
  other = signatures_test.make_model(tmp_path / "a", **MODELS["pretraining"])
  flags = f"--model_dir={model_dir}", f"--init_checkpoint={other}/model.ckpt-7"
  assert "is of a model with script 'run_pretraining'" in refuse(*flags)
  (other / "model.json").unlink()
  line = refuse(*flags)
  assert "lacks output_weights, of shape [" in line
  assert "or give --encoder" in line
