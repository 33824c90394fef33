"""Compares two models: by what they make of the same text, or by weights.

A model is a checkpoint of TensorFlow, run by `modeling.py`; a Hugging Face
folder, run by the package `transformers`, which is an implementation of its
own; or an encoder that `export_model.py` wrote, run by its signature.
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
from bertlib import json_files, text_files
from bertlib.checkpoints import (
  checkpoint_files,
  finding,
  huggingface_runner,
  initialize,
  loading,
  model_json,
  rewrite,
)
from bertlib.data import model_inputs, vocabulary
from bertlib.errors import InputError

# A batch is int32 [B, S] of each of `model_inputs.TOKEN_FEATURES`. Outputs are
# float [B, S, H] called "embeddings" and "layer 1" to the last, and [B, H]
# called "pooled", which a model without a pooler leaves out.
Batch = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]


class Model(NamedTuple):
  """A model to compare.

  Attributes:
    name: of the model, and of what runs it.
    vocab_size: of its embeddings.
    max_seq_length: the most tokens that it takes.
    run: computes outputs.
  """

  name: str
  vocab_size: int
  max_seq_length: int
  run: Callable[[Batch], Outputs]


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
  """Runs two models on the same lines and prints how they differ.

  Args:
    paths: of the two, see `load`.
    text_file: see `encode_lines`.
    config_file: see `load`.
    vocab_file: see `find_tokenizer`.
    do_lower_case: see `find_tokenizer`.
    max_seq_length: tokens that are kept of a line; fewer where a model has
      fewer positions.
    tolerance: see `compare_outputs`.
    encoding: of the text.

  Returns:
    Whether they agree.

  Raises:
    InputError: a model or the text cannot be read, or they do not go together.
  """
  models = [load(path, config_file) for path in paths]
  tokenizer = find_tokenizer(
    paths, min(model.vocab_size for model in models), vocab_file, do_lower_case
  )
  longest = min(model.max_seq_length for model in models)
  batches = encode_lines(
    text_file, tokenizer, min(max_seq_length, longest), encoding=encoding
  )
  return compare_outputs(models, batches, tolerance)


# The kinds of models


def load(path: str, config_file: str | None = None) -> Model:
  """Loads a model of any kind.

  Args:
    path: a folder, or a TensorFlow checkpoint without `.index`.
    config_file: sizes of a TensorFlow checkpoint; None for those beside it.

  Returns:
    The model, ready to run.

  Raises:
    InputError: there is none, or it is not BERT, or a package is not there.
  """
  kind = rewrite.model_format(path)
  if kind == "huggingface":
    return load_huggingface(path)
  if kind == "saved_model":
    return load_saved_model(path)
  checkpoint = finding.find_checkpoint(path)
  beside = os.path.join(os.path.dirname(checkpoint), loading.CONFIG_FILE)
  return load_checkpoint(checkpoint, config_file or beside)


def load_checkpoint(checkpoint: str, config_file: str) -> Model:
  """Loads a TensorFlow checkpoint into the graph of `modeling.py`.

  Args:
    checkpoint: without `.index`.
    config_file: the model's `bert_config.json`.

  Returns:
    The model.

  Raises:
    InputError: the checkpoint is damaged, lacks weights of the encoder, or is
      of another size.
  """
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
    if "bert/pooler/dense/kernel" in rewrite.Checkpoint(checkpoint):
      outputs["pooled"] = model.get_pooled_output()
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
  """Loads a Hugging Face folder into `transformers`, in float32.

  Args:
    folder: has `config.json` and weights.

  Returns:
    The model.

  Raises:
    InputError: the packages are not there, or they cannot load the folder.
  """
  model = huggingface_runner.HuggingFaceModel(folder)
  name = f"{folder}, by transformers {model.version}"
  return Model(name, model.vocab_size, model.max_seq_length, model.run)


# An exported encoder's signature of all layers.
_SIGNATURE = "layers"


def load_saved_model(folder: str) -> Model:
  """Loads an encoder that `export_model.py` wrote.

  Args:
    folder: of the SavedModel.

  Returns:
    The model.

  Raises:
    InputError: it is another SavedModel.
  """
  loaded = tf_v2.saved_model.load(folder)
  if _SIGNATURE not in loaded.signatures:
    raise InputError(
      f"{folder}: has no signature {_SIGNATURE}; export it with --encoder"
    )
  config = loading.load_config(
    os.path.join(_folder_of_parts(folder), loading.CONFIG_FILE)
  )
  _, inputs = loaded.signatures[_SIGNATURE].structured_input_signature
  length = inputs["input_word_ids"].shape[1]  # None for any

  def run(batch: Batch) -> Outputs:
    num_tokens = batch["input_ids"].shape[1]
    padding = [(0, 0), (0, (length or num_tokens) - num_tokens)]
    # Looked up each time: the variables live as long as `loaded` does.
    result = loaded.signatures[_SIGNATURE](
      **{
        theirs: tf_v2.constant(np.pad(batch[ours], padding))
        for ours, theirs in model_inputs.HUB_NAMES.items()
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
  """Reads the weights of any SavedModel; prints how many.

  Args:
    folder: of the SavedModel.

  Returns:
    The weights under the names of the checkpoint that was exported.
  """
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
  vocab_size: int | None = None,
  vocab_file: str | None = None,
  do_lower_case: bool | None = None,
) -> tokenization.FullTokenizer:
  """The tokenizer of two models, which has to be one.

  Args:
    paths: of the models.
    vocab_size: most entries that it may have; None for any number.
    vocab_file: None for the `vocab.txt` that comes with them.
    do_lower_case: None for what is said beside them.

  Returns:
    The tokenizer.

  Raises:
    InputError: nothing comes with them, they differ, or the vocabulary is not
      one of theirs.
  """
  folders = [_folder_of_parts(path) for path in paths]
  if vocab_file is None:
    files = [os.path.join(f, loading.VOCAB_FILE) for f in folders]
    vocab_file, _ = _agreed(
      {f: vocabulary.read_entries(f) for f in files if os.path.exists(f)},
      "vocab_file",
    )
  if do_lower_case is None:
    _, do_lower_case = _agreed(
      dict(filter(None, map(_stated_case, folders))), "do_lower_case"
    )
  return vocabulary.load_tokenizer(vocab_file, do_lower_case, vocab_size)


def _folder_of_parts(path: str) -> str:
  """Where a model's vocabulary and JSON files are."""
  if rewrite.model_format(path) == "saved_model":
    return os.path.join(path, "assets")
  return path if os.path.isdir(path) else os.path.dirname(path)


def _stated_case(folder: str) -> tuple[str, bool] | None:
  """The file that says whether words are lower-cased, and what it says."""
  for name in (
    model_json.MODEL_FILE,
    loading.CONFIG_FILE,
    "tokenizer_config.json",
  ):
    path = os.path.join(folder, name)
    if os.path.exists(path):
      stated = json_files.read(path, dict).get("do_lower_case")
      if stated is not None:
        return path, stated
  return None


def _agreed(found: Mapping[str, Any], flag: str) -> tuple[str, Any]:
  """The first of what files hold, if all hold the same."""
  if not found:
    raise InputError(f"--{flag}: comes with neither model; give it")
  (path, value), *others = found.items()
  for other, theirs in others:
    if theirs != value:
      raise InputError(
        f"{path} and {other}: differ in it, so the models do not read text the"
        f" same way; say how with --{flag}"
      )
  return path, value


def encode_lines(
  text_file: str,
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  batch_size: int = 32,
  encoding: text_files.Encoding = text_files.UTF8,
) -> Iterator[Batch]:
  """Makes batches of the lines of a file, and prints how many were cut.

  Args:
    text_file: a text a line, or a pair with " ||| " between; blank lines are
      left out. Unpacked if its name ends in .gz.
    tokenizer: gives the ids.
    max_seq_length: tokens that are kept of a line.
    batch_size: lines a batch.
    encoding: of the file.

  Yields:
    Batches, each as long as its longest line.

  Raises:
    InputError: all lines are blank.
  """
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
    longest = max(sum(row.input_mask) for row in rows)
    yield {
      name: np.array([getattr(row, name)[:longest] for row in rows], np.int32)
      for name in model_inputs.TOKEN_FEATURES
    }
  if is_empty:
    raise InputError(f"{text_file}: has no text")
  if num_cut:
    print(f"{num_cut} lines cut to {max_seq_length} tokens")


# Comparison


class Difference:
  """What two arrays of values differ by, gathered part by part.

  Attributes:
    largest: absolute difference; NaN where there is one.
  """

  def __init__(self):
    self.largest = 0.0
    self._count = 0
    self._sums = np.zeros(2)  # of differences and of values
    self._squares = np.zeros(2)

  def add(self, values: np.ndarray, others: np.ndarray) -> None:
    """Adds two arrays of one shape."""
    values = values.astype(np.float64)
    difference = values - others
    self.largest = np.maximum(self.largest, np.abs(difference).max())
    self._count += values.size
    self._sums += difference.sum(), values.sum()
    self._squares += np.square(difference).sum(), np.square(values).sum()

  @property
  def mean(self) -> float:
    """Mean difference, which shows a bias."""
    return self._sums[0] / self._count

  @property
  def deviations(self) -> np.ndarray:
    """Standard deviations: of the differences, and of the first's values."""
    variances = self._squares / self._count - (self._sums / self._count) ** 2
    return np.sqrt(np.maximum(variances, 0.0))


def compare_outputs(
  models: Sequence[Model], batches: Iterable[Batch], tolerance: float
) -> bool:
  """Runs two models on the same batches and prints how they differ.

  Tokens alone count, not padding.

  Args:
    models: the two.
    batches: of texts.
    tolerance: the largest difference of two numbers that still agree.

  Returns:
    Whether all do.

  Raises:
    InputError: the models have other numbers of layers, or other widths.
  """
  differences: dict[str, Difference] = collections.defaultdict(Difference)
  names = " and ".join(model.name for model in models)
  alone: set[str] = set()
  num_texts = num_tokens = 0
  for batch in batches:
    is_token = batch["input_mask"] > 0
    num_texts += len(is_token)
    num_tokens += is_token.sum()
    ours, theirs = (model.run(batch) for model in models)
    alone |= ours.keys() ^ theirs.keys()
    if not alone <= {"pooled"}:
      raise InputError(f"{names}: only one has {', '.join(sorted(alone))}")
    for name in filter(theirs.__contains__, ours):
      values, others = ours[name], theirs[name]
      if values.shape != others.shape:
        raise InputError(
          f"{names}: {name} is {values.shape[-1]} wide in one and"
          f" {others.shape[-1]} in the other"
        )
      if values.ndim == 3:
        values, others = values[is_token], others[is_token]  # [T, H]
      differences[name].add(values, others)

  for which, model in zip(("first", "second"), models):
    print(f"{which}: {model.name}")
  print(f"{num_texts} texts, {num_tokens} tokens")
  print(f"{'':12}{'largest':>12}{'mean':>12}{'deviation':>12}{'of values':>12}")
  for name, found in differences.items():
    figures = (found.largest, found.mean, *found.deviations)
    print(f"{name:12}" + "".join(f"{figure:#12.3g}" for figure in figures))
  for name in alone:
    print(f"{name:12} in one of the models only, not compared")
  return _verdict([d.largest for d in differences.values()], tolerance)


def compare_weights(
  ours: Mapping[str, np.ndarray],
  theirs: Mapping[str, np.ndarray],
  tolerance: float,
) -> bool:
  """Prints how two models' weights differ, one line for each that does.

  Args:
    ours: weights by name.
    theirs: those of the other.
    tolerance: the largest difference of two numbers that still agree.

  Returns:
    Whether all do, and each model has the weights of the other.
  """
  largest = []  # difference of each variable that is not equal
  num_equal = 0
  for name in sorted(ours.keys() | theirs.keys()):
    if name not in ours or name not in theirs:
      largest.append(np.inf)
      print(f"{name}: in the {'first' if name in ours else 'second'} only")
      continue
    values, others = ours[name], theirs[name]
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
  print(f"{num_equal} variables are equal bit by bit, {len(largest)} are not")
  return _verdict(largest, tolerance)


def _verdict(largest: Iterable[float], tolerance: float) -> bool:
  # Whatever is compared with NaN is false.
  agree = all(value <= tolerance for value in largest)
  verdict = "agree" if agree else "do not agree"
  print(f"they {verdict} within {tolerance:g}")
  return agree
