"""Calibration of 8-bit inference, kept in `quantization.json`.

Dense layers in 8 bits clip their inputs to a range. The ranges come from some
examples of the task, computed once in higher precision.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import tokenization
from bertlib.checkpoints import checkpoint_files, initialize
from bertlib.cli.errors import InputError
from bertlib.cli.option import FINITE
from bertlib.compute import int8, precision, same_formula
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import model_inputs
from bertlib.io import files, json_files
from bertlib.io.text_files import Encoding, read_pairs
from bertlib.settings.common import QuantizationSettings

FILE = "quantization.json"

# Examples of a calibration, sampled with this seed.
NUM_EXAMPLES = 256
_SEED = 12345

_BATCH_SIZE = 32

Ranges = Mapping[str, int8.Observation]  # by layer
Batch = Mapping[str, np.ndarray]  # `model_inputs.TOKEN_FEATURES`, int32 [B, S]


@dataclasses.dataclass(frozen=True)
class TrainedEncoder:
  """An encoder whose dense layers are to be computed in 8 bits."""

  config: modeling.BertConfig
  checkpoint: str | None  # None without trained weights
  folder: str | None  # of `quantization.json`; None to keep no ranges
  tokenizer: tokenization.Tokenizer | None  # None if unknown
  # Truncation, prefix and encoding of the texts of a calibration file.
  max_seq_length: int
  prefix: str = ""
  encoding: Encoding | None = None


def find(
  encoder: TrainedEncoder,
  calibration_file: str | None,  # texts the ranges have to be of
  # Examples where there are neither ranges nor a calibration file; None to
  # refuse the model.
  default_batches: Callable[[], Iterable[Batch]] | None = None,
  of_attention: bool = False,  # needs those of queries, keys and values too
) -> Ranges:
  """Ranges of an encoder, from its folder or measured and kept there."""
  if not encoder.checkpoint:
    raise InputError(
      "--precision=int8: needs trained weights. Name an --init_checkpoint, or"
      " train first"
    )
  batches = None
  if calibration_file:
    batches = list(text_batches(encoder, calibration_file))
  ranges = encoder.folder and load(encoder.folder, encoder.checkpoint, batches)
  if ranges and of_attention and None in next(iter(ranges.values())):
    logging.info("%s: has no ranges of attention; not used", FILE)
    ranges = None
  if ranges:
    return ranges
  if not (batches or default_batches):
    raise InputError(
      f"{encoder.folder or encoder.checkpoint}: has no {FILE} of this"
      " checkpoint, which 8-bit layers need. Name a --calibration_file with"
      " texts of the task; or run its script once with --do_eval"
      " --precision=int8"
    )
  batches = batches or list(default_batches())
  ranges = calibrate(encoder.config, encoder.checkpoint, batches)
  logging.info(
    "8-bit ranges of %d layers, of %d examples%s",
    len(ranges),
    sum(len(batch["input_ids"]) for batch in batches),
    f" of {calibration_file}" if calibration_file else "",
  )
  if encoder.folder:
    try:
      save(encoder.folder, encoder.checkpoint, batches, ranges)
    except (OSError, tf.errors.OpError) as error:
      logging.warning(
        "%s: cannot be written, so the 8-bit ranges are not kept: %s",
        encoder.folder,
        error,
      )
  return ranges


# Examples to calibrate with


def text_batches(encoder: TrainedEncoder, path: str) -> Iterator[Batch]:
  """Model inputs of a sample of a file's texts or pairs, to calibrate with."""
  if not encoder.tokenizer:
    raise InputError(
      f"{path}: cannot be tokenized without the model's vocabulary. Name a"
      " --vocab_file"
    )
  pairs = list(read_pairs(path, encoder.encoding))
  if not pairs:
    raise InputError(f"{path}: has no lines")
  rows = model_inputs.encode_pairs(
    encoder.tokenizer,
    ((encoder.prefix + first, second) for first, second in _sample(pairs)),
    encoder.max_seq_length,
  )
  rows = sorted(rows, key=lambda row: row.num_tokens)
  for first in range(0, len(rows), _BATCH_SIZE):
    batch = rows[first : first + _BATCH_SIZE]
    longest = batch[-1].num_tokens
    yield {
      name: np.array([getattr(row, name)[:longest] for row in batch], np.int32)
      for name in model_inputs.TOKEN_FEATURES
    }


def input_batches(input_fn, batch_size: int) -> list[Batch]:
  """Model inputs of a sample of an `input_fn`'s batches, to calibrate with."""
  batches: list[Any] = []
  count = -(-NUM_EXAMPLES // batch_size)
  generator = np.random.RandomState(_SEED)
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = input_fn({"batch_size": batch_size})
    features = tf.data.make_one_shot_iterator(dataset).get_next()
    # The second name is that of TensorFlow Hub.
    segments = features.get("segment_ids", features.get("input_type_ids"))
    ids = features["input_ids"], features["input_mask"], segments
    # [B, S], of choices and groups of texts too.
    rows = [tf.reshape(t, [-1, tf.shape(t)[-1]]) for t in ids]
    with contextlib.suppress(tf.errors.OutOfRangeError):
      for number in itertools.count():
        batch = session.run(rows)
        # Each batch so far is kept with the same probability.
        index = number if number < count else generator.randint(number + 1)
        if index < count:
          batches[index : index + 1] = [batch]
  return [dict(zip(model_inputs.TOKEN_FEATURES, batch)) for batch in batches]


def _sample(items: Sequence[Any]) -> Sequence[Any]:
  """At most `NUM_EXAMPLES` items, chosen with a fixed seed."""
  if len(items) <= NUM_EXAMPLES:
    return items
  generator = np.random.RandomState(_SEED)
  chosen = generator.choice(len(items), NUM_EXAMPLES, replace=False)
  return [items[index] for index in sorted(chosen)]


# Calibration


def calibrate(
  config: modeling.BertConfig, checkpoint: str, batches: Iterable[Batch]
) -> Ranges:
  """Extremes of the inputs of the encoder's dense layers, over all batches."""

  def observed(name: str, value: np.ndarray):
    layer = _layer_of(name)
    kernel = tf.constant(value)
    if not layer:
      return kernel
    # Outliers of intermediate (FFN) activations would waste most of the range.
    is_inner = "/output/" in layer and "/attention/" not in layer
    return int8.ObservedKernel(layer, kernel, clips=is_inner)

  seen: dict[str, list[int8.Observation]] = collections.defaultdict(list)
  with tf.Graph().as_default(), tf.Session() as session:
    inputs = initialize.token_placeholders()
    getter = initialize.constant_getter(checkpoint, observed)
    with tf.variable_scope("", custom_getter=getter):
      modeling.BertModel(
        config, False, *inputs.values(), compute=FastCompute(unpad=True)
      )
    observations = int8.observations()
    session.run(tf.global_variables_initializer())
    for batch in batches:
      feed = {tensor: batch[name] for name, tensor in inputs.items()}
      for layer, found in session.run(observations, feed).items():
        seen[layer].append(found)
  return {layer: _extremes(layer, found) for layer, found in seen.items()}


def _extremes(
  layer: str, found: Sequence[int8.Observation]
) -> int8.Observation:
  """Extremes of the observations of a layer in all batches."""
  lows, highs, *magnitudes = zip(*found)
  columns, outputs = (
    [_shortened(value) for value in np.max(values, axis=0)]
    for values in magnitudes
  )
  return int8.Observation(
    _shortened(min(lows)),
    _shortened(max(highs)),
    columns,
    outputs if "/self/" in layer else [],
  )


def _follows_layer_norm(layer: str) -> bool:
  """True for a layer whose inputs `int8` takes with a range per column."""
  return "/self/" in layer or "/intermediate/" in layer


def _shortened(value: float) -> float:
  """A number with the five digits that are written to the file."""
  return float(f"{value:.5g}")


def _layer_of(name: str) -> str | None:
  """Name of the dense layer of the encoder whose kernel this is, or None."""
  layer, _, variable = name.rpartition("/")
  return layer if variable == "kernel" and "/layer_" in layer else None


# Kernels


def weight_getter(
  encoder: TrainedEncoder,
  settings: QuantizationSettings,
  default_batches: Callable[[], Iterable[Batch]] | None = None,  # see `find`
  # Of queries, keys and values; None for bfloat16 where the processor has
  # instructions for it, else float32.
  attention_dtype=None,
) -> Callable:
  """Custom getter of variables: kernels in 8 bits, calibrated if necessary."""
  skipped = settings.int8_skip_layers
  ranges = find(encoder, settings.calibration_file, default_batches)
  ranges = without_skipped(ranges, skipped)
  if not same_formula.is_used("8-bit dense layers", int8.QuantizedKernel):
    return initialize.constant_getter(encoder.checkpoint)
  attention_dtype = attention_dtype or best_attention_dtype()
  logging.info(
    "%d dense layers in 8 bits, attention in %s; in float32: %s",
    len(ranges),
    attention_dtype.name,
    ", ".join(skipped) or "output layers only",
  )

  def converted(name: str, value: np.ndarray):
    layer = _layer_of(name)
    if layer not in ranges:
      return tf.constant(value)
    # Intermediate (FFN) activations pass on to the output layer in 8 bits.
    is_inner = "/intermediate/" in layer
    following = is_inner and ranges.get(
      layer.replace("/intermediate", "/output")
    )
    observed = ranges[layer]
    if not _follows_layer_norm(layer):
      observed = observed._replace(columns=None)
    return int8.quantize_kernel(
      value,
      observed,
      output_limits=int8.Limits(*following[:2]) if following else None,
      dtype=attention_dtype if "/self/" in layer else tf.float32,
    )

  return initialize.constant_getter(encoder.checkpoint, converted)


def without_skipped(ranges: Ranges, skip_layers: Sequence[str]) -> Ranges:
  """Ranges of the layers that --int8_skip_layers does not name."""
  kept = dict(ranges)
  for part in skip_layers:
    named = [layer for layer in ranges if f"/layer_{part}/" in f"{layer}/"]
    if not named:
      raise InputError(
        f"--int8_skip_layers={part}: there is no such layer. Give numbers, of"
        " which 0 is the first, or parts such as 0/output"
      )
    for layer in named:
      kept.pop(layer, None)
  return kept


def best_attention_dtype():
  """Dtype of attention beside 8-bit layers on this processor."""
  has_bfloat16 = "bfloat16" in precision.supported_dtypes()
  return tf.bfloat16 if has_bfloat16 else tf.float32


# Ranges in a file


def load(
  folder: str, checkpoint: str, batches: Iterable[Batch] | None = None
) -> Ranges | None:
  """Ranges of a `quantization.json`; None if of other weights or examples."""
  path, fix = os.path.join(folder, FILE), "Delete it to calibrate again"
  if not tf.gfile.Exists(path):
    return None
  schema = {"checkpoint_sha256": str, "examples_sha256?": str, "ranges": dict}
  content = json_files.read(path, schema, fix)
  if content["checkpoint_sha256"] != _hash(checkpoint):
    logging.info("%s: belongs to another checkpoint; not used", path)
    return None
  if batches and content.get("examples_sha256") != _hash_of_examples(batches):
    logging.info("%s: is of other examples; not used", path)
    return None
  for name, shape in checkpoint_files.shapes_of(checkpoint).items():
    if layer := _layer_of(name):
      values = content["ranges"].get(layer)
      if not _is_valid(values, shape, _follows_layer_norm(layer)):
        raise InputError(f"{path}: the range of {layer} is not valid. {fix}")
  logging.info("8-bit ranges: %s", path)
  return {
    layer: int8.Observation(*values)
    for layer, values in content["ranges"].items()
  }


def _is_valid(values: Any, shape: Sequence[int], needs_columns: bool) -> bool:
  """True for low, high, columns and outputs of a kernel of this shape."""
  # Files of earlier versions have no outputs, and not all columns.
  if not isinstance(values, list) or len(values) not in (3, 4):
    return False
  low, high, *magnitudes = values
  if needs_columns and not magnitudes[0]:
    return False
  for row, size in zip(magnitudes, shape):
    if row and not (isinstance(row, list) and len(row) == size):
      return False
    if row and not (all(x in FINITE and x >= 0 for x in row) and max(row) > 0):
      return False
  return low in FINITE and high in FINITE and low < high


def save(
  folder: str, checkpoint: str, batches: Iterable[Batch], ranges: Ranges
) -> None:
  """Writes `quantization.json`, see `load`."""
  content = {
    "checkpoint_sha256": _hash(checkpoint),
    "examples_sha256": _hash_of_examples(batches),
    "ranges": ranges,
  }
  path = os.path.join(folder, FILE)
  with files.atomic_write(path) as file:
    file.write(json_files.dumps(content) + "\n")
  logging.info("8-bit ranges are kept in %s", path)


def _hash(checkpoint: str) -> str:
  """Hash of a checkpoint's index, which has checksums of all weights."""
  with (
    checkpoint_files.as_input_errors(checkpoint),
    tf.gfile.GFile(f"{checkpoint_files.kept(checkpoint)}.index", "rb") as file,
  ):
    return hashlib.sha256(file.read()).hexdigest()


def _hash_of_examples(batches: Iterable[Batch]) -> str:
  """Hash of the ids of all batches."""
  digest = hashlib.sha256()
  for batch in batches:
    for name in model_inputs.TOKEN_FEATURES:
      digest.update(np.ascontiguousarray(batch[name], "<i4").tobytes())
  return digest.hexdigest()


def int8_model_fn(
  model_fn: Callable,
  settings: QuantizationSettings,
  encoder: TrainedEncoder,
  default_batches: Callable,
) -> Callable:
  """A `model_fn` for --precision=int8."""
  # The weights are constants of the graph, those of the checkpoint; Estimator
  # restores only the global step.
  getter = weight_getter(encoder, settings, default_batches)

  def with_constants(features, labels, mode, params, config=None):
    with tf.variable_scope("", custom_getter=getter):
      return model_fn(features, labels, mode, params, config)

  return with_constants
