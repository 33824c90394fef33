"""Tests of inference in 8 bits: products, calibration, commands."""

import dataclasses
import functools
import os
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_classifier
import tiny_embeddings
import tiny_model
import trained_models
from parametrize import parametrize
from refused import assert_refused

import modeling
import run_classifier
import run_embeddings
from bertlib.cli.errors import InputError
from bertlib.compute import int8, onednn
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import model_inputs
from bertlib.export import quantization
from bertlib.settings.common import QuantizationSettings


def _runs_int8():
  try:
    onednn.check_int8()
  except InputError:
    return False
  return True


pytestmark = [
  pytest.mark.graph,
  pytest.mark.skipif(not _runs_int8(), reason="needs a CPU and TF 2.17"),
]

MANY_ROWS = 2048  # enough for the kernels that take a matrix in one pass


@pytest.fixture
def random():
  return np.random.RandomState(0)


@pytest.fixture(params=[None, 63], ids=["here", "without VNNI"])
def kernel_values(request, monkeypatch):
  """Kernels for this processor, and for one on which 16-bit sums overflow."""
  if request.param:
    monkeypatch.setattr(onednn, "max_kernel_value", lambda: request.param)


def least_correlation(least):
  """`least` where kernels have 8 bits; less for the rounding of fewer."""
  steps = onednn.MAX_INT8 / onednn.max_kernel_value()
  # As many bits of the other factor are rounded always.
  return 1 - (1 - least) * (1 + steps**2) / 2


def run(build):
  with tf.Graph().as_default(), tf.Session() as session:
    fetches = build()
    session.run(tf.global_variables_initializer())
    return session.run(fetches)


@parametrize("num_rows", 3, MANY_ROWS)
def test_quantized_values_are_rounded_and_clipped_per_column(num_rows, random):
  tensor = random.normal(size=[num_rows, 64]).astype(np.float32)
  ranges = np.linspace(0.5, 2, 64, dtype=np.float32)
  values = run(
    lambda: tf.bitcast(int8.quantize(tf.constant(tensor), ranges), tf.int8)
  )
  expected = np.clip(np.rint(tensor / ranges * 127), -127, 127)
  assert np.abs(values - expected).max() <= 1  # ties may round either way
  assert np.mean(values == expected) > 0.999


def _layer(random, activation, limits=None):
  """A float layer [5, 32] x [32, 16] and its result with an 8-bit kernel."""
  inputs = random.normal(size=[5, 32])
  kernel = random.normal(scale=32**-0.5, size=[32, 16])  # sums are about 1
  bias = random.normal(size=[16]).astype(np.float32)
  observed = int8.Observation(inputs.min(), inputs.max())
  quantized = int8.quantize_kernel(kernel, observed, output_limits=limits)

  def build():
    tensors = tf.constant(inputs, tf.float32), tf.constant(bias)
    dense = modeling.Compute().dense
    plain = dense(tensors[0], tf.constant(kernel, tf.float32), bias, activation)
    return plain, quantized.dense(*tensors, activation)

  return build


@parametrize(
  "activation", None, modeling.gelu, modeling.gelu_tanh, tf.nn.relu, tf.sin
)
@pytest.mark.usefixtures("kernel_values")
def test_product_is_that_of_float32_but_for_rounding(activation, random):
  plain, quantized = run(_layer(random, activation))
  found = np.corrcoef(plain.ravel(), quantized.ravel())[0, 1]
  assert found > least_correlation(0.999)


@pytest.mark.usefixtures("kernel_values")
def test_inner_values_pass_in_8_bits_between_two_limits(random):
  limits = int8.Limits(-0.17, 2.0)

  def build():
    plain, values = _layer(random, modeling.gelu, limits)()
    assert values.dtype == tf.quint8
    return plain, tf.bitcast(values, tf.uint8)

  plain, values = run(build)
  shown = limits.low + values * (limits.high - limits.low) / 255
  clipped = np.clip(plain, *limits)
  assert clipped.max() == limits.high
  assert np.abs(shown - clipped).max() < 0.06
  found = np.corrcoef(clipped.ravel(), shown.ravel())[0, 1]
  assert found > least_correlation(0.999)


@pytest.mark.unit
def test_columns_with_large_inputs_get_larger_ranges():
  columns = [0.1, 1.0, 30.0]
  observed = int8.Observation(-30.0, 30.0, columns)
  quantized = int8.quantize_kernel(np.ones([3, 4]), observed)
  assert (np.diff(quantized.input_ranges) > 0).all()
  assert (quantized.input_ranges * 1.001 >= columns).all()


@parametrize("clips", False, True)
def test_the_range_of_inner_values_leaves_out_a_few_high_ones(clips, random):
  inputs = random.uniform(0, 1, size=[1000, 50]).astype(np.float32)
  inputs[0, :4] = 24.0

  def build():
    kernel = int8.ObservedKernel("a", tf.zeros([50, 1]), clips)
    kernel.dense(tf.constant(inputs), tf.zeros([1]), None)
    return int8.observations()["a"].high

  high = run(build)
  if clips:
    assert high == pytest.approx(2 * np.percentile(inputs, 99.99), rel=1e-3)
  else:
    assert high == 24.0


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
CONFIG = tiny_model.config(40, initializer_range=0.3, **SIZES)


def _batches():
  random = np.random.RandomState(1)
  mask = (np.arange(16) < random.randint(3, 17, [24, 1])).astype(np.int32)
  ids = random.randint(0, 40, mask.shape) * mask
  return [dict(zip(model_inputs.TOKEN_FEATURES, (ids, mask, 0 * mask)))]


def _hidden_states(checkpoint, getter=None, compute=None):
  def build():
    inputs = [tf.constant(values) for values in _batches()[0].values()]
    with tf.variable_scope("", custom_getter=getter):
      model = modeling.BertModel(CONFIG, False, *inputs, compute=compute)
    if not getter:
      found, _ = modeling.get_assignment_map_from_checkpoint(
        tf.trainable_variables(), checkpoint
      )
      tf.train.init_from_checkpoint(checkpoint, found)
    mask = tf.cast(inputs[1], tf.float32)[:, :, tf.newaxis]
    return model.get_sequence_output() * mask

  return run(build)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp("model")
  return tiny_model.write_encoder(folder / "model.ckpt", CONFIG)


@pytest.fixture(scope="module")
def plain(checkpoint):
  """The hidden states in float32."""
  return _hidden_states(checkpoint)


@pytest.fixture(scope="module")
def ranges(checkpoint, tmp_path_factory):
  """A folder with the ranges of the layers."""
  folder = str(tmp_path_factory.mktemp("ranges"))
  encoder = quantization.TrainedEncoder(CONFIG, checkpoint, folder, None, 8)
  quantization.find(encoder, None, _batches)
  return folder


def _in_int8(checkpoint, ranges, *skipped):
  encoder = quantization.TrainedEncoder(CONFIG, checkpoint, ranges, None, 8)
  how = QuantizationSettings(int8_skip_layers=skipped), _batches, tf.float32
  getter = quantization.weight_getter(encoder, *how)
  compute = FastCompute(unpad=True, use_onednn=True)
  return _hidden_states(checkpoint, getter, compute)


@pytest.mark.parametrize(
  "skipped",
  [(), ("1/output",)],  # the layer before a skipped one returns floats
)
@pytest.mark.usefixtures("kernel_values")
def test_hidden_states_are_near_float32(checkpoint, ranges, plain, skipped):
  quantized = _in_int8(checkpoint, ranges, *skipped)
  assert not np.array_equal(plain, quantized)
  found = np.corrcoef(plain.ravel(), quantized.ravel())[0, 1]
  assert found > least_correlation(0.995)


def test_skipped_layers_are_computed_in_float32(checkpoint, ranges, plain):
  found = _in_int8(checkpoint, ranges, "0", "1")
  np.testing.assert_allclose(found, plain, atol=2e-4)


def test_a_layer_to_skip_that_does_not_exist_is_refused(checkpoint, ranges):
  for part in ("2", "0/outputs", "encoder"):
    with pytest.raises(InputError, match=f"--int8_skip_layers={part}: "):
      _in_int8(checkpoint, ranges, "0", part)


@pytest.fixture
def encoder(checkpoint, ranges, tmp_path):
  """The encoder, with its ranges in `tmp_path`."""
  shutil.copy(f"{ranges}/{quantization.FILE}", tmp_path)
  return quantization.TrainedEncoder(
    CONFIG, checkpoint, str(tmp_path), tiny_model.tokenizer("a", "b"), 8
  )


def _refuse():
  raise AssertionError("calibrated again")


def test_ranges_are_calibrated_once_per_checkpoint(encoder, tmp_path):
  quantization.find(encoder, None, _refuse)
  path = tmp_path / quantization.FILE
  run_outputs.edit_json(path, checkpoint_sha256="of another")
  with pytest.raises(AssertionError, match="calibrated again"):
    quantization.find(encoder, None, _refuse)


SELF = "bert/encoder/layer_0/attention/self/query"
INNER = "bert/encoder/layer_1/output/dense"


@parametrize(
  "layer, change",
  (SELF, lambda low, high, of: None),
  (SELF, lambda low, high, of: 3.5),
  (SELF, lambda low, high, of: [low, high]),
  (SELF, lambda low, high, of: [low, high, None]),
  (SELF, lambda low, high, of: [low, high, of[1:]]),
  (SELF, lambda low, high, of: [low, high, [*of[1:], "1"]]),
  (SELF, lambda low, high, of: [low, high, [*of[1:], -1]]),
  (SELF, lambda low, high, of: [low, high, [0] * len(of)]),
  (SELF, lambda low, high, of: [float("nan"), high, of]),
  (SELF, lambda low, high, of: [low, float("inf"), of]),
  (INNER, lambda low, high, of: [0, 0, None]),
  (INNER, lambda low, high, of: [low, "high", None]),
  (INNER, lambda low, high, of: [low, high, 7]),
  (SELF, lambda low, high, of: [low, high, of, [1]]),
)
def test_ranges_in_the_file_are_checked(encoder, tmp_path, layer, change):
  path = tmp_path / quantization.FILE
  ranges = run_outputs.read_json(path)["ranges"]
  ranges[layer] = change(*ranges[layer][:3])
  run_outputs.edit_json(path, ranges=ranges)
  message = f"^{path}: the range of {layer} .* Delete it to calibrate again"
  assert_refused(message, quantization.find, encoder, None, _refuse)


def test_an_earlier_file_serves_all_but_attention(encoder, tmp_path):
  found = quantization.find(encoder, None, _refuse)
  path = tmp_path / quantization.FILE
  ranges = run_outputs.read_json(path)["ranges"]
  for layer, values in ranges.items():
    ranges[layer] = [*values[:2], None if "/output/" in layer else values[2]]
  run_outputs.edit_json(path, ranges=ranges)
  assert quantization.find(encoder, None, _refuse)[SELF][:3] == found[SELF][:3]
  with pytest.raises(AssertionError, match="calibrated again"):
    quantization.find(encoder, None, _refuse, of_attention=True)


def test_calibration_file_replaces_other_ranges(encoder, tmp_path, monkeypatch):
  others = quantization.find(encoder, None, _refuse)
  texts = tmp_path / "texts.txt"
  texts.write_text("a\nb a\n")
  found = quantization.find(encoder, str(texts), _refuse)
  assert found != others
  assert quantization.find(encoder, None, _refuse) == found
  monkeypatch.setattr(quantization, "calibrate", lambda *unused: _refuse())
  assert quantization.find(encoder, str(texts), _refuse) == found
  texts.write_text("b\nb a\n")
  with pytest.raises(AssertionError, match="calibrated again"):
    quantization.find(encoder, str(texts), _refuse)


def test_ranges_serve_without_being_written(encoder, monkeypatch, caplog):
  expected = quantization.find(encoder, None, _refuse)
  os.remove(os.path.join(encoder.folder, quantization.FILE))

  def refuse(*_):
    raise PermissionError(13, "Permission denied")

  monkeypatch.setattr(quantization, "save", refuse)
  assert quantization.find(encoder, None, _batches) == expected
  assert "Permission denied" in caplog.messages[-1]


@pytest.mark.unit
def test_a_calibration_file_needs_a_vocabulary(encoder):
  encoder = dataclasses.replace(encoder, tokenizer=None)
  with pytest.raises(InputError, match="Name a --vocab_file"):
    quantization.find(encoder, "texts.txt", _refuse)


def test_calibration_samples_a_long_input():
  """Each batch is kept as often as any other, and not all of them."""

  def input_fn(params):
    ids = tf.data.Dataset.range(500, output_type=tf.int32)
    rows = ids.map(lambda i: {n: [i] for n in model_inputs.TOKEN_FEATURES})
    return rows.batch(params["batch_size"])

  first, second = (quantization.input_batches(input_fn, 2) for _ in range(2))
  ids = [int(batch["input_ids"][0, 0]) for batch in first]
  assert len(set(ids)) == quantization.NUM_EXAMPLES // 2
  assert 200 < np.mean(ids) < 300 and max(ids) > 400
  assert ids == [int(batch["input_ids"][0, 0]) for batch in second]


@pytest.mark.unit
def test_calibration_takes_the_same_256_lines_every_time(tmp_path):
  path = tmp_path / "texts.txt"
  words = [f"w{i}" for i in range(300)]
  path.write_text("\n".join(words))
  tokenizer = tiny_model.tokenizer(*words)
  encoder = quantization.TrainedEncoder(CONFIG, None, None, tokenizer, 8)

  def first_words():
    batches = quantization.text_batches(encoder, str(path))
    return [n for batch in batches for n in batch["input_ids"][:, 1].tolist()]

  found = first_words()
  assert len(set(found)) == quantization.NUM_EXAMPLES
  assert first_words() == found


@pytest.mark.unit
def test_a_calibration_file_in_latin_1_is_to_be_converted(encoder, tmp_path):
  """The error of a command without --encoding does not advise that flag."""
  texts = tmp_path / "texts.txt"
  texts.write_bytes("a é".encode("latin-1"))
  fault = "0xE9 is not UTF-8: the file ends within a character. Convert it to"
  message = f"{fault} UTF-8$"
  assert_refused(message, quantization.find, encoder, str(texts), _refuse)


@pytest.fixture(scope="module")
def folder(once, tmp_path_factory):
  """The folder of a trained classifier and its data."""
  path = tmp_path_factory.mktemp("classifier")
  trained_models.copy(once, "classifier", path)
  return path


@pytest.mark.train
def test_classifier_evaluates_and_predicts_in_8_bits(folder):
  flags = tiny_classifier.flags(folder, output_dir=folder / "trained")
  flags += ["--do_eval", "--do_predict", "--precision=int8"]
  result = commands.succeed("run_classifier.py", *flags)
  assert "8-bit ranges of 12 layers" in result.stderr
  assert "12 dense layers in 8 bits" in result.stderr
  assert (folder / "trained" / "test_results.tsv").read_text()


@pytest.mark.train
def test_predictor_calibrates_on_a_file(folder, tmp_path):
  pairs = [(a, b) for a, b, _ in tiny_classifier.SENTENCES]
  path = tmp_path / "texts.txt"
  path.write_text("\n".join(" ||| ".join(pair) for pair in pairs))
  model_dir = folder / "trained"
  (model_dir / quantization.FILE).unlink(missing_ok=True)
  load = functools.partial(run_classifier.Predictor, str(model_dir))
  assert_refused(quantization.FILE, load, precision="int8")
  predicted = {}
  for precision in ("float32", "int8"):
    with load(precision=precision, calibration_file=str(path)) as predictor:
      predicted[precision] = [
        list(p.probabilities.values()) for p in predictor.predict(pairs)
      ]
  np.testing.assert_allclose(predicted["int8"], predicted["float32"], atol=0.05)
  assert predicted["int8"] != predicted["float32"]


@pytest.mark.train
def test_features_are_extracted_in_8_bits(folder, tmp_path):
  (tmp_path / "texts.txt").write_text("the cat sat\nthe dog ran home\n")
  done = commands.succeed(
    "extract_features.py",
    *(f"--input_file={tmp_path}/texts.txt", f"--output_file={tmp_path}/out"),
    *(f"--init_checkpoint={folder}/trained", "--layers=-1"),
    *("--precision=int8", "--max_seq_length=16"),
  )
  assert "12 dense layers in 8 bits" in done.stderr


@pytest.mark.train
def test_sentences_are_encoded_in_8_bits(once, tmp_path):
  trained = trained_models.copy(once, "embeddings", tmp_path)
  texts = [text for _, text in tiny_embeddings.PAIRS]
  with run_embeddings.Predictor(str(trained.folder)) as predictor:
    expected = predictor.encode(texts)
  done = commands.succeed(
    "run_embeddings.py",
    f"--output_dir={trained.folder}",
    *("--do_eval", "--do_predict", "--precision=int8"),
    f"--dev_file={tmp_path / 'beir'}",
    f"--predict_file={tmp_path / 'corpus.txt'}",
  )
  assert "8-bit ranges of 6 layers, of 32 examples" in done.stderr
  folder = str(trained.folder)
  with run_embeddings.Predictor(folder, precision="int8") as predictor:
    vectors = predictor.encode(texts)
  written = np.load(trained.folder / "corpus_vectors.npy")
  np.testing.assert_allclose(written, vectors, atol=0.02)
  assert np.abs(vectors - expected).max() > 1e-5
  assert np.sum(vectors * expected, axis=1).min() > 0.98


@pytest.mark.train
def test_sentences_are_calibrated_with_the_default_prompt(once, tmp_path):
  trained = trained_models.copy(once, "embeddings", tmp_path)
  ranges = []
  for prompts, prefix in (({"query": "query : "}, ""), ({}, "query : ")):
    path = trained.folder / "model.json"
    embedding = run_outputs.read_json(path)["embedding"] | {
      "prompts": prompts,
      "default_prompt": next(iter(prompts), None),
    }
    run_outputs.edit_json(path, embedding=embedding)
    texts = tmp_path / "texts.txt"
    lines = [f"{prefix}{a}\n" for a, _ in tiny_embeddings.PAIRS]
    texts.write_text("".join(lines))
    run_embeddings.Predictor(
      str(trained.folder), precision="int8", calibration_file=str(texts)
    ).close()
    ranges.append((trained.folder / quantization.FILE).read_text())
  assert ranges[0] == ranges[1]
