"""Comparing two models, by their outputs for the same text or by weights.

A model is a TensorFlow checkpoint, run by `modeling.py`; a Hugging Face folder,
run by the package `transformers`, an independent implementation; or an encoder
exported by `export_model.py`, run through its signature.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf_v2
import tensorflow.compat.v1 as tf

import modeling
import tokenization
from bertlib.checkpoints import (
  checkpoint_files,
  finding,
  initialize,
  loading,
  model_files,
  model_json,
  rewrite,
)
from bertlib.cli.errors import InputError
from bertlib.compute import pooling
from bertlib.data import model_inputs, vocabulary
from bertlib.exchange import huggingface_runner, sentence_transformers
from bertlib.io import json_files, text_files
from bertlib.settings import embedding_spec

# Batch: int32 [B, S] for each of `model_inputs.TOKEN_FEATURES`. Outputs: float
# [B, S, H] for "embeddings", "layer 1", "layer 2", ...; [B, H] for "pooled", if
# the model has a pooler; [B, width] for "vector", if it is one of sentence
# vectors.
Batch = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]


class Model(NamedTuple):
  """A model to compare."""

  name: str  # path, and implementation that runs it, for messages
  vocab_size: int  # number of word embeddings
  max_seq_length: int  # in tokens
  run: Callable[[Batch], Outputs]  # computes the outputs of a batch


def compare_on_text(
  paths: Sequence[str],
  text_file: str,
  config_file: str | None = None,
  vocab_file: str | None = None,
  do_lower_case: bool | None = None,
  max_seq_length: int = 128,
  tolerance: float = 1e-4,
  encoding: text_files.Encoding = text_files.UTF8,
) -> bool:
  """Runs two models on the same lines and prints how they differ."""
  models = [load(path, config_file) for path in paths]
  tokenizer = find_tokenizer(
    paths, min(model.vocab_size for model in models), vocab_file, do_lower_case
  )
  # Lines are truncated to the positions of the smaller model too.
  longest = min(model.max_seq_length for model in models)
  batches = encode_lines(
    text_file, tokenizer, min(max_seq_length, longest), encoding=encoding
  )
  return compare_outputs(models, batches, tolerance)


# Models


def load(path: str, config_file: str | None = None) -> Model:
  """Loads a model of any format, from a folder or a checkpoint's path."""
  model_format = rewrite.model_format(path)
  if model_format == "huggingface":
    return load_huggingface(path)
  if model_format == "saved_model":
    return load_saved_model(path)
  checkpoint = finding.find_checkpoint(path)
  folder = _files_dir(path)
  return load_checkpoint(
    checkpoint,
    config_file or os.path.join(folder, model_files.CONFIG),
    model_json.load_description(folder),
  )


def load_checkpoint(
  checkpoint: str, config_file: str, description: Mapping[str, Any]
) -> Model:
  """Loads a TensorFlow checkpoint into the graph of `modeling.py`."""
  config = loading.load_config(config_file)
  with tf.Graph().as_default():
    inputs = {
      name: tf.placeholder(tf.int32, [None, None], name)
      for name in model_inputs.TOKEN_FEATURES
    }
    model = modeling.BertModel(
      config,
      is_training=False,
      input_ids=inputs["input_ids"],
      input_mask=inputs["input_mask"],
      token_type_ids=inputs["segment_ids"],
    )
    layers = model.get_all_encoder_layers()
    outputs = {"embeddings": model.get_embedding_output(), **_numbered(layers)}
    weights = rewrite.Checkpoint(checkpoint)
    # A converted model may lack the pooler.
    if "bert/pooler/dense/kernel" in weights:
      outputs["pooled"] = model.get_pooled_output()
    # The model computes sentence vectors.
    if "embedding" in description:
      sentence_transformers.find_projection(weights, description, checkpoint)
      spec = embedding_spec.from_json(description["embedding"])
      vectors = pooling.sentence_vectors(
        model.get_sequence_output(), inputs["input_mask"], spec
      )
      outputs["vector"] = pooling.output_vectors(vectors, spec)
    initialize.initialize_from_checkpoint(checkpoint)
    session = tf.Session()
    with checkpoint_files.as_input_errors(checkpoint):
      session.run(tf.global_variables_initializer())

  def run(batch: Batch) -> Outputs:
    feed = {tensor: batch[name] for name, tensor in inputs.items()}
    return session.run(outputs, feed)

  name = f"{checkpoint}, by modeling.py"
  return Model(name, config.vocab_size, config.max_position_embeddings, run)


def load_huggingface(folder: str) -> Model:
  """Loads a Hugging Face folder into `transformers`, in float32."""
  model = huggingface_runner.HuggingFaceModel(folder)
  name = f"{folder}, by {model.packages}"
  return Model(name, model.vocab_size, model.max_seq_length, model.run)


# Signature of an exported encoder that returns all layers.
_SIGNATURE = "layers"


def load_saved_model(folder: str) -> Model:
  """Loads an encoder exported by `export_model.py --encoder`."""
  loaded = tf_v2.saved_model.load(folder)
  if _SIGNATURE not in loaded.signatures:
    raise InputError(
      f"{folder}: has no signature {_SIGNATURE}; export it with --encoder"
    )
  config = loading.load_config(
    os.path.join(_files_dir(folder), model_files.CONFIG)
  )
  _, inputs = loaded.signatures[_SIGNATURE].structured_input_signature
  length = inputs["input_word_ids"].shape[1]  # None for any

  def run(batch: Batch) -> Outputs:
    num_tokens = batch["input_ids"].shape[1]
    padding = [(0, 0), (0, (length or num_tokens) - num_tokens)]
    # Refer to `loaded` here: it keeps the variables alive.
    result = loaded.signatures[_SIGNATURE](
      **{
        hub_name: tf_v2.constant(np.pad(batch[name], padding))
        for name, hub_name in model_inputs.HUB_NAMES.items()
      }
    )
    states = np.moveaxis(result["all_layers"][:, :, :num_tokens].numpy(), 1, 0)
    return {
      "embeddings": states[0],
      **_numbered(states[1:]),
      "pooled": result["pooled_output"].numpy(),
    }

  return Model(
    f"{folder}, by its signature {_SIGNATURE}",
    config.vocab_size,
    length or config.max_position_embeddings,
    run,
  )


def saved_model_weights(folder: str) -> dict[str, np.ndarray]:
  """Reads the weights of any SavedModel, by checkpoint name."""
  loaded = tf_v2.saved_model.load(folder)
  weights = {
    variable.name.partition(":")[0]: variable.numpy()
    for signature in loaded.signatures.values()
    for variable in signature.variables
  }
  print(f"read: {folder}, {len(weights)} tensors")
  return weights


def _numbered(layers: Iterable[Any]) -> dict[str, Any]:
  return {f"layer {n}": layer for n, layer in enumerate(layers, start=1)}


# Text


def find_tokenizer(
  paths: Sequence[str],
  vocab_size: int | None = None,  # maximum number of entries
  vocab_file: str | None = None,  # None: `vocab.txt` in the models' folders
  # None for the value in the models' JSON files.
  do_lower_case: bool | None = None,
) -> tokenization.FullTokenizer:
  """Tokenizer of two models; InputError if theirs differ in it."""
  folders = [_files_dir(path) for path in paths]
  if vocab_file is None:
    files = [os.path.join(f, model_files.VOCAB) for f in folders]
    vocab_file, _ = _common_value(
      {f: vocabulary.read_entries(f) for f in files if tf.gfile.Exists(f)},
      "vocab_file",
    )
  if do_lower_case is None:
    _, do_lower_case = _common_value(
      dict(filter(None, map(_read_casing, folders))), "do_lower_case"
    )
  return vocabulary.load_tokenizer(vocab_file, do_lower_case, vocab_size)


def _files_dir(path: str) -> str:
  """Folder of a model's vocabulary and JSON files."""
  if rewrite.model_format(path) == "saved_model":
    return os.path.join(path, "assets")
  return path if tf.gfile.IsDirectory(path) else os.path.dirname(path)


def _read_casing(folder: str) -> tuple[str, bool] | None:
  """The file that contains `do_lower_case`, and its value."""
  for name in (
    model_files.DESCRIPTION,
    model_files.CONFIG,
    "tokenizer_config.json",
  ):
    path = os.path.join(folder, name)
    if tf.gfile.Exists(path):
      do_lower_case = json_files.read(path, dict).get("do_lower_case")
      if do_lower_case is not None:
        return path, do_lower_case
  return None


def _common_value(values: Mapping[str, Any], flag: str) -> tuple[str, Any]:
  """The first file and its value, if the values of all files are equal."""
  if not values:
    raise InputError(f"--{flag}: comes with neither model; give it")
  (path, value), *others = values.items()
  for other_path, other in others:
    if other != value:
      raise InputError(
        f"{path} and {other_path}: differ, so the models tokenize text"
        f" differently. Set one tokenizer for both with --{flag}"
      )
  return path, value


def encode_lines(
  text_file: str,
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  batch_size: int = 32,
  encoding: text_files.Encoding = text_files.UTF8,
) -> Iterator[Batch]:
  """Yields non-blank lines in batches, each as long as its longest line."""
  pairs = filter(any, model_inputs.read_pairs(text_file, encoding))
  num_cut = 0
  is_empty = True
  while batch := list(itertools.islice(pairs, batch_size)):
    is_empty = False
    rows = [
      model_inputs.encode_pair(tokenizer, *pair, max_seq_length)
      for pair in batch
    ]
    num_cut += sum(row.num_cut > 0 for row in rows)
    yield model_inputs.as_batch(rows)
  if is_empty:
    raise InputError(f"{text_file}: has no text")
  if num_cut:
    print(f"{num_cut} lines truncated to {max_seq_length} tokens")


# Comparison


class Difference:
  """Statistics of the difference of two arrays, accumulated in parts."""

  def __init__(self):
    self.largest = 0.0  # maximum absolute difference; NaN if any value is
    self._count = 0
    self._sums = np.zeros(2)  # of the differences and of the first's values
    self._squares = np.zeros(2)

  def add(self, values: np.ndarray, others: np.ndarray) -> None:
    """Adds two arrays of the same shape."""
    values = values.astype(np.float64)
    difference = values - others
    self.largest = np.maximum(self.largest, np.abs(difference).max())
    self._count += values.size
    self._sums += difference.sum(), values.sum()
    self._squares += np.square(difference).sum(), np.square(values).sum()

  @property
  def mean(self) -> float:
    """Mean signed difference."""
    return self._sums[0] / self._count

  @property
  def deviations(self) -> np.ndarray:
    """Standard deviations of the differences and of the first's values."""
    variances = self._squares / self._count - (self._sums / self._count) ** 2
    return np.sqrt(np.maximum(variances, 0.0))


def compare_outputs(
  models: Sequence[Model], batches: Iterable[Batch], tolerance: float
) -> bool:
  """Runs two models on the same batches and prints how they differ."""
  differences: dict[str, Difference] = collections.defaultdict(Difference)
  names = " and ".join(model.name for model in models)
  unmatched: set[str] = set()  # outputs of one model only
  num_texts = num_tokens = 0
  for batch in batches:
    is_token = batch["input_mask"] > 0
    num_texts += len(is_token)
    num_tokens += is_token.sum()
    first, second = (model.run(batch) for model in models)
    unmatched |= first.keys() ^ second.keys()
    if not unmatched <= {"pooled", "vector"}:
      raise InputError(f"{names}: only one has {', '.join(sorted(unmatched))}")
    for name in filter(second.__contains__, first):
      values, others = first[name], second[name]
      if values.shape != others.shape:
        raise InputError(
          f"{names}: {name} is {values.shape[-1]} wide in one and"
          f" {others.shape[-1]} in the other"
        )
      if values.ndim == 3:
        # Without padding, whose outputs mean nothing.
        values, others = values[is_token], others[is_token]  # [R, H]
      differences[name].add(values, others)

  for ordinal, model in zip(("first", "second"), models):
    print(f"{ordinal}: {model.name}")
  print(f"{num_texts} texts, {num_tokens} tokens")
  print(f"{'':12}{'max diff':>12}{'mean diff':>12}{'std diff':>12}{'std':>12}")
  for name, found in differences.items():
    figures = (found.largest, found.mean, *found.deviations)
    print(f"{name:12}" + "".join(f"{figure:#12.3g}" for figure in figures))
  for name in sorted(unmatched):
    print(f"{name:12} in one of the models only, not compared")
  return _verdict([d.largest for d in differences.values()], tolerance)


def compare_weights(
  first: Mapping[str, np.ndarray],
  second: Mapping[str, np.ndarray],
  tolerance: float,
) -> bool:
  """Prints how the weights of two models differ; True if all agree."""
  # Bitwise equal ones are only counted.
  largest = []  # maximum difference of each variable that is not equal
  num_equal = 0
  for name in sorted(first.keys() | second.keys()):
    if name not in first or name not in second:
      largest.append(np.inf)
      print(f"{name}: only in the {'first' if name in first else 'second'}")
      continue
    values, others = first[name], second[name]
    if values.shape != others.shape:
      largest.append(np.inf)
      print(f"{name}: {values.shape} and {others.shape}")
    elif values.dtype == others.dtype and values.tobytes() == others.tobytes():
      num_equal += 1
    else:
      difference = Difference()
      difference.add(values, others)
      largest.append(difference.largest)
      print(f"{name}: {difference.largest:.3g}")
  print(f"{num_equal} variables are bitwise equal, {len(largest)} are not")
  return _verdict(largest, tolerance)


def _verdict(largest: Iterable[float], tolerance: float) -> bool:
  # A comparison with NaN is false.
  agree = all(value <= tolerance for value in largest)
  verdict = "agree" if agree else "do not agree"
  print(f"they {verdict} within {tolerance:g}")
  return agree
