"""Exported models: their files, where they load, what trains on them."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import commands
import numpy as np
import pytest
import signatures_test
import tensorflow as tf
from signatures_test import CONFIG, TEXTS, ask, assert_equal

import export_model
import modeling
import run_classifier
from bertlib.checkpoints import checkpoint_writer, model_json
from bertlib.data import model_inputs
from bertlib.errors import InputError

pytestmark = pytest.mark.train

PAIRS = {"text_a": TEXTS, "text_b": TEXTS[::-1]}


@pytest.fixture(scope="module")
def main():
  """Runs the script in this process, which spares importing TensorFlow."""
  with commands.in_process(export_model) as main:
    yield main


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  """The folder of a classifier of pairs, as training leaves it."""
  return signatures_test.make_model(
    tmp_path_factory.mktemp("trained"),
    **signatures_test.MODELS["classification"],
    has_pairs=True,
  )


@pytest.fixture(scope="module")
def exported(main, model_dir):
  """That model exported: the folder."""
  path = model_dir / "exported" / "1"
  main(f"--model_dir={model_dir}", f"--export_dir={path}/")
  return path


@pytest.fixture(scope="module")
def loaded(exported):
  return tf.saved_model.load(str(exported))


# The files


def test_only_weights_are_kept(exported, model_dir):
  trained = tf.train.load_checkpoint(str(model_dir / "model.ckpt-7"))
  weights = [
    shape
    for name, shape in trained.get_variable_to_shape_map().items()
    if name != "global_step"
    and not checkpoint_writer.is_optimizer_variable(name)
  ]
  kept = tf.train.list_variables(str(exported / "variables" / "variables"))
  kept = [shape for name, shape in kept if name.startswith("variables/")]
  assert sorted(kept) == sorted(weights)


def test_parts_of_the_model_travel_along(exported, model_dir, tmp_path):
  shutil.copytree(exported, tmp_path / "elsewhere")
  model = tf.saved_model.load(str(tmp_path / "elsewhere"))
  paths = [asset.asset_path.numpy().decode() for asset in model.assets]
  assert {os.path.dirname(path) for path in paths} == {
    str(tmp_path / "elsewhere" / "assets")
  }
  files = {os.path.basename(path): path for path in paths}
  texts = {}
  for name, path in files.items():
    with open(path, encoding="utf-8") as file:
      texts[name] = file.read()
  assert texts.pop("labels.txt") == "no\nyes\nmaybe\n"
  description = model_json.load_description(str(model_dir))
  assert json.loads(texts.pop("model.json")) == description
  assert texts == {
    name: (model_dir / name).read_text(encoding="utf-8")
    for name in ("bert_config.json", "vocab.txt")
  }


def test_all_operations_are_of_tensorflow(exported):
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    model = tf.compat.v1.saved_model.load(session, ["serve"], str(exported))
  graph = model.graph_def
  functions = {function.signature.name for function in graph.library.function}
  used = {node.op for node in graph.node}
  used |= {
    node.op for function in graph.library.function for node in function.node_def
  }
  assert "UnicodeDecode" in used
  assert used - functions <= set(dir(tf.raw_ops))
  assert not [op for op in used if "PyFunc" in op]


def test_signatures(loaded):
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


# Elsewhere

LOAD = """
import importlib.util, json, sys
import tensorflow as tf
assert importlib.util.find_spec("bertlib") is None
model = tf.saved_model.load(sys.argv[1])
texts = {name: tf.constant(of) for name, of in json.loads(sys.argv[2]).items()}
said = model.signatures["serving_default"](**texts)
probabilities, label = said["probabilities"].numpy(), said["label"].numpy()
print(json.dumps([probabilities.tolist(), [text.decode() for text in label]]))
"""


def run(*command, folder):
  done = subprocess.run(
    [*map(str, command)],
    capture_output=True,
    text=True,
    cwd=folder,
    check=False,
    env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.process
def test_tensorflow_alone_loads_it(exported, model_dir, tmp_path):
  said = run(
    *(sys.executable, "-I", "-c", LOAD, exported, json.dumps(PAIRS)),
    folder=tmp_path,
  )
  probabilities, labels = json.loads(said.splitlines()[-1])
  with run_classifier.Predictor(str(model_dir)) as host:
    expected = host.predict(list(zip(*PAIRS.values())))
  rows = [list(one.probabilities.values()) for one in expected]
  assert_equal(probabilities, rows)
  assert labels == [one.label for one in expected]


def saved_model_cli(*arguments, folder):
  program = os.path.join(os.path.dirname(sys.executable), "saved_model_cli")
  return run(program, *arguments, folder=folder)


@pytest.mark.process
def test_saved_model_cli_runs_it(exported, loaded, tmp_path):
  saved_model_cli(
    *("run", "--dir", exported, "--tag_set", "serve"),
    *("--signature_def", "pair", "--outdir", tmp_path),
    *("--input_exprs", 'text_a=["the cat", ""];text_b=["a dog", "中文"]'),
    folder=tmp_path,
  )
  said = ask(loaded, "pair", text_a=["the cat", ""], text_b=["a dog", "中文"])
  assert_equal(np.load(tmp_path / "probabilities.npy"), said["probabilities"])


# One length for all


@pytest.fixture(scope="module")
def static(main, model_dir):
  """That model for batches of one length; and without a vocabulary."""
  folder, path = model_dir / "without_vocab", model_dir / "static"
  names = shutil.ignore_patterns("exported", "vocab.txt")
  shutil.copytree(model_dir, folder, ignore=names)
  flags = [f"--model_dir={folder}", f"--export_dir={path}"]
  main(*flags, "--seq_length=16")
  return tf.saved_model.load(str(path))


def test_without_a_vocabulary_ids_are_taken(static):
  assert set(static.signatures) == {"ids", "serving_default"}
  files = {os.path.basename(a.asset_path.numpy()) for a in static.assets}
  assert files == {b"bert_config.json", b"labels.txt", b"model.json"}


def test_a_fixed_length_changes_no_answer(static, model_dir, loaded):
  _, inputs = static.signatures["ids"].structured_input_signature
  assert [*inputs] and {(*of.shape,) for of in inputs.values()} == {(None, 16)}
  source = signatures_test.source_of(model_dir)
  padded = signatures_test.unsaved(source, seq_length=16)
  short = [text for text in TEXTS if len(text) < 20]
  texts = {"text_a": short, "text_b": short[::-1]}
  ids = ask(padded, "tokenize", **texts)
  for name, array in ask(loaded, "tokenize", **texts).items():
    padding = 16 - array.shape[1]
    assert padding > 0
    expected = np.pad(array, ((0, 0), (0, padding)))
    np.testing.assert_array_equal(ids[name], expected)
  said, expected = ask(static, "ids", **ids), ask(loaded, "pair", **texts)
  assert_equal(said["probabilities"], expected["probabilities"])
  assert said["label"].tolist() == expected["label"].tolist()


# Encoders


@pytest.fixture(scope="module")
def encoder_dir(main, model_dir):
  """The encoder of that model, from its checkpoint alone."""
  path = model_dir / "encoder"
  main(
    f"--init_checkpoint={model_dir / 'model.ckpt-7'}",
    f"--bert_config_file={model_dir / 'bert_config.json'}",
    "--max_seq_length=24",
    f"--export_dir={path}",
  )
  return path


@pytest.fixture(scope="module")
def encoder(encoder_dir):
  import tensorflow_hub

  return tensorflow_hub.load(str(encoder_dir))


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
  """Of all that an encoder gives, with another weight for each number."""
  loss = tf.reduce_sum(tf.sin(pooled))
  for tensor in (states, *layers):
    is_token = tf.cast(INPUTS["input_mask"], tf.float32)[:, :, tf.newaxis]
    loss += tf.reduce_sum(is_token * tf.sin(2.0 * tensor))
  return loss


def in_training_graph(model_dir):
  """Loss, outputs and gradients by name, with the weights of a checkpoint."""
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


def test_gradients_are_those_of_the_training_graph(encoder, model_dir):
  loss, outputs, expected = in_training_graph(model_dir)
  with tf.GradientTape() as tape:
    said = encoder(dict(INPUTS))
    own = loss_of(
      said["pooled_output"], said["sequence_output"], said["encoder_outputs"]
    )
  weights = encoder.trainable_variables
  gradients = tape.gradient(own, weights)
  assert_equal(said["pooled_output"], outputs[0])
  assert_equal(said["default"], outputs[0])
  states = said["sequence_output"]
  assert_equal(states, outputs[1], INPUTS["input_mask"][:, :, np.newaxis])
  np.testing.assert_allclose(own, loss, rtol=1e-6)
  assert {weight.name.split(":")[0] for weight in weights} == set(expected)
  for weight, gradient in zip(weights, gradients):
    np.testing.assert_allclose(
      tf.convert_to_tensor(gradient),
      expected[weight.name.split(":")[0]],
      rtol=1e-4,
      atol=1e-5,
      err_msg=weight.name,
    )


def test_only_training_drops_out(encoder):
  once, again = (encoder(dict(INPUTS))["default"] for _ in range(2))
  np.testing.assert_array_equal(once, again)
  once, again = (encoder(dict(INPUTS), training=True)["default"] for _ in "ab")
  assert not np.allclose(once, again, atol=1e-3)


# Words at the second place say which of two labels a text has.
TRAIN_IDS = np.random.default_rng(1).integers(12, 22, [64, 6], np.int32)
TRAIN_IDS[:, 0] = 2
TRAIN_SET = {
  "input_word_ids": TRAIN_IDS,
  "input_mask": np.ones_like(TRAIN_IDS),
  "input_type_ids": np.zeros_like(TRAIN_IDS),
}
TRAIN_LABELS = (TRAIN_IDS[:, 1] > 16).astype(np.int32)


def test_a_layer_of_keras_2_trains(encoder_dir):
  import tensorflow_hub
  from tensorflow import keras

  keras.utils.set_random_seed(1)
  layer = tensorflow_hub.KerasLayer(str(encoder_dir), trainable=True)
  assert len(layer.trainable_weights) == len(layer.weights) == 23
  inputs = {
    name: keras.Input([None], dtype=tf.int32, name=name) for name in INPUTS
  }
  # An output layer that stays as it is.
  scores = keras.layers.Dense(2, trainable=False)(layer(inputs)["default"])
  model = keras.Model(inputs, scores)
  model.compile(
    keras.optimizers.Adam(3e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  history = model.fit(
    TRAIN_SET, TRAIN_LABELS, batch_size=16, epochs=20, verbose=0
  )
  losses = history.history["loss"]
  assert losses[-1] < 0.7 * losses[0]


KERAS_3 = """
import json, sys
import keras
import numpy as np
train_set, labels = json.loads(sys.argv[2])
train_set = {name: np.array(of, np.int32) for name, of in train_set.items()}
keras.utils.set_random_seed(1)
layer = keras.layers.TFSMLayer(
  sys.argv[1], call_endpoint="encode", call_training_endpoint="encode_training"
)
inputs = {
  name: keras.Input([None], dtype="int32", name=name) for name in train_set
}
scores = keras.layers.Dense(2, trainable=False)(layer(inputs)["default"])
model = keras.Model(inputs, scores)
model.compile(
  keras.optimizers.SGD(5e-2),
  keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(
  train_set, np.array(labels), batch_size=16, epochs=20, verbose=0
)
vectors = layer(train_set)["default"]
print(json.dumps([history.history["loss"], len(layer.trainable_weights)]))
"""


@pytest.mark.process
def test_a_layer_of_keras_3_trains(encoder_dir, tmp_path):
  if importlib.metadata.version("keras") < "3":
    pytest.skip("Keras 3 is not installed")
  train_set = {name: ids.tolist() for name, ids in TRAIN_SET.items()}
  data = json.dumps([train_set, TRAIN_LABELS.tolist()])
  without = ("env", "--unset=TF_USE_LEGACY_KERAS")
  said = run(
    *(*without, sys.executable, "-I", "-c", KERAS_3, encoder_dir, data),
    folder=tmp_path,
  )
  losses, num_weights = json.loads(said.splitlines()[-1])
  assert num_weights == 23
  assert losses[-1] < 0.7 * losses[0]


# What is refused


@pytest.fixture
def refuse(main, tmp_path):
  """Runs the script, which has to fail and to leave nothing; its message."""
  folder = tmp_path / "exports"
  folder.mkdir()

  def refuse(*flags):
    with pytest.raises(InputError) as refused:
      main(f"--export_dir={folder / 'model'}", *flags)
    assert not list(folder.iterdir())
    return str(refused.value)

  return refuse


def test_nothing_to_export(refuse):
  assert "name --model_dir" in refuse()


def test_a_folder_without_a_model(refuse, tmp_path):
  assert (
    refuse(f"--model_dir={tmp_path}") == f"{tmp_path}: holds no trained model"
  )


def test_a_folder_that_is_there(main, model_dir, tmp_path):
  with pytest.raises(InputError, match="exists already"):
    main(f"--model_dir={model_dir}", f"--export_dir={tmp_path}")
  assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_is_not_there(refuse, model_dir):
  line = refuse(f"--model_dir={model_dir}", "--init_checkpoint=nowhere/x.ckpt")
  assert line.startswith("nowhere/x.ckpt: no such checkpoint")


def test_sizes_of_another_model(refuse, model_dir, tmp_path):
  other = modeling.BertConfig.from_dict(CONFIG.to_dict() | {"hidden_size": 16})
  (tmp_path / "other.json").write_text(other.to_json_string())
  line = refuse(
    f"--model_dir={model_dir}", f"--bert_config_file={tmp_path / 'other.json'}"
  )
  assert "model.ckpt-7: has bert/embeddings/word_embeddings" in line
  assert f"[{CONFIG.vocab_size}, 32], but the model needs" in line


def test_a_checkpoint_without_the_task(refuse, model_dir, tmp_path):
  encoder = signatures_test.make_model(
    tmp_path / "other", **signatures_test.MODELS["pretraining"]
  )
  line = refuse(
    f"--model_dir={model_dir}", f"--init_checkpoint={encoder / 'model.ckpt-7'}"
  )
  assert "has output_weights with the shape None" in line
  assert "or give --encoder" in line


def test_a_vocabulary_of_the_other_case(refuse, model_dir, tmp_path):
  words = [
    f"{a}{b}{c}"
    for a in "ABCDEFGHIJ"
    for b in "klmnopqrst"
    for c in "abcdefghij"
  ]
  entries = [*signatures_test.VOCAB[:5], *words]
  (tmp_path / "vocab.txt").write_text("\n".join(entries))
  larger = CONFIG.to_dict() | {"vocab_size": len(entries)}
  (tmp_path / "larger.json").write_text(json.dumps(larger))
  # A folder that has no vocabulary of its own to compare with.
  bare = shutil.copytree(
    model_dir, tmp_path / "bare", ignore=shutil.ignore_patterns("vocab.txt")
  )
  line = refuse(
    f"--model_dir={bare}",
    f"--bert_config_file={tmp_path / 'larger.json'}",
    f"--vocab_file={tmp_path / 'vocab.txt'}",
  )
  assert "vocab.txt: is cased, but text is lower-cased" in line


def test_a_length_that_the_model_has_no_places_for(refuse, model_dir):
  line = refuse(f"--model_dir={model_dir}", "--seq_length=41")
  assert "=41 is not between 3 and the model's max_position_embeddings" in line
