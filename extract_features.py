"""Writes features of texts: hidden states of layers, or one vector per text.

Texts are first written to a file of records, so that neither all texts nor all
results are held in memory.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.settings.feature_extraction import FeatureSettings

  app.parse_flags(FeatureSettings, True, [initial_model.check])

import dataclasses
import errno
import functools
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
import tokenization
from bertlib.checkpoints import checkpoint_files, initialize, model_folder
from bertlib.cli import app, option, terminal
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.compat import estimator_api
from bertlib.compute.pooling import output_vectors, pool, sentence_vectors
from bertlib.data import (
  example_checks,
  input_pipeline,
  model_inputs,
  tf_records,
)
from bertlib.data.model_inputs import _truncate_seq_pair
from bertlib.exchange import resolve
from bertlib.export import eight_bits
from bertlib.hardware import devices
from bertlib.io import files, folder_lock, json_files, text_files, vector_files
from bertlib.io.output_folders import folders_for
from bertlib.reporting import receipts
from bertlib.settings import embedding_spec, model_description
from bertlib.settings.common import TRUNCATE, LongTextSettings
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.settings.feature_extraction import FeatureSettings

FLAGS = flags.FLAGS

# Batches of texts whose hidden states wait in memory for those of earlier ones.
_MAX_WAITING_BATCHES = 4

# Features of the tokens of a text, in the order of `TOKEN_FEATURES`.
_TOKENS = "input_ids", "input_mask", "input_type_ids"

# Records


class InputExample(NamedTuple):
  """A text or a pair of texts.

  Attributes:
    unique_id: line number, from 0.
    text_a: the first text.
    text_b: the second text, or None.
  """

  unique_id: int
  text_a: str
  text_b: str | None = None


def read_examples(input_file: str) -> list[InputExample]:
  """Reads an example per line, even if blank; the last " ||| " separates.

  Bytes that are not UTF-8 are dropped.
  """
  pairs = text_files.read_pairs(input_file, text_files.AS_ORIGINAL)
  return [InputExample(index, *pair) for index, pair in enumerate(pairs)]


@dataclasses.dataclass
class InputFeatures:
  """An encoded example, padded to the sequence length.

  Attributes:
    unique_id: `unique_id` of the example.
    tokens: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], without padding.
    input_ids: ids of the tokens, 0 at padding.
    input_mask: 1 at tokens, 0 at padding.
    input_type_ids: 1 at B and its [SEP], else 0.
  """

  unique_id: int
  tokens: list[str]
  input_ids: list[int]
  input_mask: list[int]
  input_type_ids: list[int]


def convert_examples_to_features(
  examples: Iterable[InputExample], seq_length: int, tokenizer
) -> list[InputFeatures]:
  """Tokenizes, truncates and pads examples.

  Args:
    examples: the examples.
    seq_length: tokens per example; longer texts are truncated.
    tokenizer: object with `tokenize` and `convert_tokens_to_ids`.

  Returns:
    The features of each example.

  Raises:
    ValueError: `seq_length` is too small for [CLS] and [SEP].
  """
  special = getattr(tokenizer, "special_tokens", tokenization.BERT_TOKENS)
  if seq_length < special.num():
    raise ValueError(
      f"seq_length={seq_length}: must be at least {special.num()}"
    )
  features = []
  for example in examples:
    tokens_a, tokens_b = (
      list(tokenizer.tokenize(text)) if text else []
      for text in (example.text_a, example.text_b)
    )
    room = seq_length - special.num(bool(tokens_b))
    _truncate_seq_pair(tokens_a, tokens_b, room)
    tokens, segment_ids = special.join(tokens_a, tokens_b)
    inputs = model_inputs.token_features(
      tokenizer.convert_tokens_to_ids(tokens), segment_ids, seq_length
    )
    features.append(InputFeatures(example.unique_id, tokens, *inputs.values()))
  return features


def record_layout(max_seq_length: int) -> tf_records.Layout:
  """Layout of records with `max_seq_length` tokens."""
  tokens = tf_records.Feature((max_seq_length,), per_token=True)
  return {"unique_ids": tf_records.Feature(), **dict.fromkeys(_TOKENS, tokens)}


def input_fn_builder(features: Sequence[InputFeatures], seq_length: int):
  """Creates an `input_fn` over features in memory: one pass, in order.

  Args:
    features: see `convert_examples_to_features`.
    seq_length: length of each.

  Returns:
    A function of `params`, which must contain `batch_size`. Its dataset yields
    int32 `unique_ids` [B] and `input_ids`, `input_mask`, `input_type_ids`
    [B, S].
  """

  def int32(values, shape):
    return np.array(values, np.int32).reshape([len(features), *shape])

  arrays = {"unique_ids": int32([f.unique_id for f in features], [])}
  for name in _TOKENS:
    arrays[name] = int32([getattr(f, name) for f in features], [seq_length])

  def input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    return dataset.batch(params["batch_size"], drop_remainder=False)

  return input_fn


# Model


def model_fn_builder(
  bert_config: modeling.BertConfig,
  init_checkpoint: str,
  layer_indexes: Sequence[int],
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  pooling: str | None = None,
  compute: modeling.Compute | None = None,
  embedding: EmbeddingSpec | None = None,
):
  """Creates a `model_fn` of the encoder, to predict with TPUEstimator.

  Args:
    bert_config: hyperparameters of the encoder.
    init_checkpoint: checkpoint with its weights.
    layer_indexes: layers to return, from 0, or from -1 for the last.
    use_tpu: whether the model runs on a TPU.
    use_one_hot_embeddings: see `modeling.BertModel`.
    pooling: see `pool`; None for the hidden states of all tokens.
    compute: None for `modeling.Compute()`.
    embedding: sentence vectors of the model, instead of `layer_indexes` and
      `pooling`.

  Returns:
    A function of features, labels, mode, params and config. The features are
    those of `input_fn_builder`. The predictions are the features, `unique_id`
    [B], and float32 `layer_output_0` [B, S, H] for the first of
    `layer_indexes`, `layer_output_1` for the second and so on; or with pooling
    `vectors` [B, num_layers * H]; or with embedding `vectors` [B, width].
  """

  def model_fn(features, labels, mode, params, config=None):
    del labels, params, config
    model = modeling.BertModel(
      config=bert_config,
      is_training=False,
      input_ids=features["input_ids"],
      input_mask=features["input_mask"],
      token_type_ids=features["input_type_ids"],
      use_one_hot_embeddings=use_one_hot_embeddings,
      compute=compute,
    )
    all_layers = model.get_all_encoder_layers()
    layers = [tf.cast(all_layers[i], tf.float32) for i in layer_indexes]
    if embedding:
      vectors = sentence_vectors(
        model.get_sequence_output(), features["input_mask"], embedding
      )
      outputs = {"vectors": output_vectors(vectors, embedding)}
    elif pooling:
      states = tf.stack(layers, axis=2)
      outputs = {"vectors": pool(states, features["input_mask"], pooling)}
    else:
      outputs = {
        f"layer_output_{number}": layer for number, layer in enumerate(layers)
      }
    return estimator_api.TPUEstimatorSpec(
      mode=mode,
      predictions=features | {"unique_id": features["unique_ids"]} | outputs,
      scaffold_fn=initialize.initialize_from_checkpoint(
        init_checkpoint, use_tpu=use_tpu
      ),
    )

  return model_fn


# Output files


def write_jsonl(
  file: IO[str],
  rows: Iterable[Mapping[str, np.ndarray]],
  layer_indexes: Sequence[int],
  tokenizer: tokenization.Tokenizer,
) -> None:
  """Writes one JSON object per text; numbers are rounded to six decimals."""

  def rounded(array):
    return array.astype(np.float64).round(6).tolist()

  for row in rows:
    line = {"linex_index": int(row["unique_id"])}
    if "vectors" in row:
      line["vector"] = rounded(row["vectors"])
    else:
      ids = row["input_ids"][row["input_mask"] > 0]
      layers = [
        rounded(row[f"layer_output_{number}"][: len(ids)])
        for number in range(len(layer_indexes))
      ]
      line["features"] = [
        {
          "token": token,
          "layers": [
            {"index": index, "values": values}
            for index, values in zip(layer_indexes, token_layers)
          ],
        }
        for token, *token_layers in zip(
          tokenizer.convert_ids_to_tokens(ids), *layers
        )
      ]
    file.write(json_files.dumps(line) + "\n")


# Command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(FeatureSettings, required=required)


def parse_layers(layers: str, num_hidden_layers: int) -> list[int]:
  """Parses --layers: comma-separated indexes of layers that the model has."""
  first, last = -num_hidden_layers, num_hidden_layers - 1
  try:
    indexes = [int(layer) for layer in layers.split(",")]
    if all(first <= index <= last for index in indexes):
      return indexes
  except ValueError:
    pass
  raise InputError(
    f"--layers={layers}: give comma-separated integers from {first} to {last},"
    f" since the model has {num_hidden_layers} layers"
  )


class Vectors(NamedTuple):
  """Choice of the features to write per text, see `model_fn_builder`."""

  layer_indexes: Sequence[int]
  pooling: str | None
  embedding: EmbeddingSpec | None
  prefix: str  # put before each text
  cutting: LongTextSettings = TRUNCATE

  @property
  def is_per_text(self) -> bool:
    """True for one vector per text, false for one per token."""
    return bool(self.pooling or self.embedding)

  def width(self, hidden_size: int) -> int:
    """Numbers of a text or of a token."""
    if self.embedding:
      return self.embedding.width(hidden_size)
    return len(self.layer_indexes) * hidden_size


class Model(NamedTuple):
  """A loaded model, its devices, and the features to write."""

  devices: devices.Devices
  config: modeling.BertConfig
  tokenizer: tokenization.Tokenizer
  vectors: Vectors


def main(_) -> None:
  """Writes the features of every line of --input_file to --output_file."""
  settings = option.from_flags(FeatureSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    settings, model = prepare(settings, step)
  if step.is_dry_run:
    return
  receipt.start(settings, [(settings.input_file, "text")], model.devices)
  devices.log_devices(model.devices)
  with (
    folders_for([settings.output_file]),
    folder_lock.lock_files([settings.output_file]),
    tempfile.TemporaryDirectory() as folder,
  ):
    num_texts = write_features(settings, model, folder)
  logging.info("Features of %d texts in %s", num_texts, settings.output_file)
  receipt.finish(
    {
      "texts": num_texts,
      "sha256": receipts.fingerprint(settings.output_file)["sha256"],
    }
  )


def write_features(
  settings: FeatureSettings,
  model: Model,
  folder: str,  # for temporary files; empty
) -> int:
  """Writes the features of all texts; returns the number of texts."""
  config, vectors = model.config, model.vectors
  length, num_windows = settings.model.max_seq_length, array("i")

  def make_records() -> Iterator[dict[str, Any]]:
    """Yields the records of texts; logs how many were truncated."""
    num_truncated, texts = 0, read_texts(settings, vectors)
    encoded = model_inputs.encode_windows(
      model.tokenizer, texts, length, vectors.cutting
    )
    for unique_id, rows in enumerate(encoded):
      model_inputs.warn_of_many_windows(f"line {unique_id + 1}", len(rows))
      num_windows.append(len(rows))
      for *features, num_lost in rows:
        num_truncated += num_lost > 0
        yield {"unique_ids": unique_id, **dict(zip(_TOKENS, features))}
    if num_truncated:
      logging.warning("%d lines truncated to %d tokens", num_truncated, length)

  is_npz = settings.output_format == "npz"
  mode = "wb" if is_npz else "w"
  with files.atomic_write(settings.output_file, mode) as output:
    records = os.path.join(folder, "input.tf_record")
    num_rows = tf_records.write_records(
      records, make_records(), record_layout(length)
    )
    if not num_windows:
      raise InputError(f"{settings.input_file}: has no lines")
    rows = predict(settings, model, records, folder)
    rows = tf_records.restore_input_order(
      terminal.follow(rows, num_rows, "texts")
    )
    if vectors.cutting.has_windows:
      joined = model_inputs.join_vectors(
        (row["vectors"] for row in rows),
        num_windows,
        bool(vectors.embedding and vectors.embedding.normalize),
      )
      rows = ({"unique_id": n, "vectors": v} for n, v in enumerate(joined))
    if is_npz:
      vector_files.write_npz(
        output,
        (row["vectors"] for row in rows),
        len(num_windows),
        vectors.width(config.hidden_size),
      )
    else:
      write_jsonl(output, rows, vectors.layer_indexes, model.tokenizer)
  return len(num_windows)


def read_texts(
  settings: FeatureSettings, vectors: Vectors
) -> Iterator[tuple[str, str | None, str]]:
  """Yields the texts of --input_file, see `model_inputs.encode_windows`."""
  pairs = text_files.read_pairs(settings.input_file, settings.text.codec)
  for text_a, text_b in pairs:
    yield vectors.prefix + text_a, text_b, vectors.prefix


def predict(
  settings: FeatureSettings, model: Model, records: str, folder: str
) -> Iterator[Mapping[str, np.ndarray]]:
  """Computes the features of records, in batches of similar length."""
  on_tpu, config, vectors = model.devices.on_tpu, model.config, model.vectors
  layout = record_layout(settings.model.max_seq_length)

  def input_fn(params, block_size=input_pipeline.BLOCK_SIZE):
    return input_pipeline.record_batches(
      records,
      layout,
      params["batch_size"],
      drop_remainder=False,
      trim=not on_tpu,
      by_length=not on_tpu,
      block_size=block_size,
    )

  model_fn = model_fn_builder(
    config,
    settings.model.init_checkpoint,
    vectors.layer_indexes,
    on_tpu,
    settings.use_one_hot_embeddings,
    vectors.pooling,
    model.devices.compute(),
    vectors.embedding,
  )
  estimator = devices.make_estimator(
    model.devices,
    eight_bits.inference_model_fn(
      model_fn,
      settings,
      input_fn,
      settings.batch_size,
      config=config,
      checkpoint=settings.model.init_checkpoint,
      folder=None,  # keeps no ranges
      tokenizer=model.tokenizer,
      prefix=vectors.prefix,
    ),
    model_dir=folder,  # empty: a checkpoint in it would take precedence
    predict_batch_size=settings.batch_size,
  )
  # Texts to sort by length at a time.
  block_size = input_pipeline.BLOCK_SIZE
  if not vectors.is_per_text:
    block_size = _MAX_WAITING_BATCHES * settings.batch_size
  return estimator.predict(functools.partial(input_fn, block_size=block_size))


# Checks


def prepare(
  asked: FeatureSettings, step: Steps
) -> tuple[FeatureSettings, Model]:
  """Loads the model and checks it; writes nothing."""
  settings = step("model", resolve.complete, asked)
  found = step("devices", devices.find_and_choose, settings)
  config = step("config", lambda s: model_folder.config_of(s.model), settings)
  step("output", check_output, settings)
  tokenizer = step(
    "vocabulary",
    lambda s, config: model_folder.tokenizer_of(s.model, config),
    settings,
    config,
  )
  step(
    "checkpoint",
    lambda s: checkpoint_files.check_checkpoint(s.model.init_checkpoint),
    settings,
  )
  vectors = step("layers", find_vectors, settings, config)
  if step.is_dry_run:
    step("weights", check_weights, settings, config, vectors)
    lengths = step("texts", check_texts, settings, config, tokenizer, vectors)
    step("disk", check_disk, settings, config, vectors, lengths)
  return settings, Model(found, config, tokenizer, vectors)


def find_vectors(
  settings: FeatureSettings, config: modeling.BertConfig
) -> Vectors:
  """Features that the flags name, or those that the model was trained for."""
  folder, spec = settings.model.folder, None
  description = model_description.load(folder) if folder else {}
  if "embedding" in description:
    model_folder.check(folder)
    spec = embedding_spec.from_json(description["embedding"])
  elif settings.prompt:
    raise InputError(
      f"--prompt={settings.prompt}: {settings.model.init_checkpoint} is not a"
      " model of sentence vectors, and has no prompts. Put the text before each"
      " line of --input_file"
    )
  cutting = settings.cutting
  if spec and not cutting.long_texts:
    cutting = LongTextSettings.of_model(description)
  if spec and not {"pooling", "layers"} & settings.given:
    return Vectors([-1], None, spec, spec.prompt(settings.prompt), cutting)
  if settings.cutting.has_windows and not settings.pooling:
    raise InputError(
      "--long_texts=windows joins vectors of texts: select them with --pooling"
    )
  if settings.output_format == "npz" and not settings.pooling:
    raise InputError(
      "--output_format=npz holds one vector per text: select it with --pooling"
    )
  use_last_layer = settings.pooling and "layers" not in settings.given
  layer_indexes = parse_layers(
    "-1" if use_last_layer else settings.layers, config.num_hidden_layers
  )
  prefix = spec.prompt(settings.prompt) if settings.prompt else ""
  if not settings.pooling:
    cutting = cutting.in_one_row()
  return Vectors(layer_indexes, settings.pooling, None, prefix, cutting)


def check_output(settings: FeatureSettings) -> None:
  """Refuses an --output_file that is an input."""
  files.check_outputs(
    [settings.output_file, receipts.path_of(settings)],
    [
      settings.input_file,
      settings.model.vocab_file,
      settings.model.bert_config_file,
      *files.checkpoint_files(settings.model.init_checkpoint),
    ],
  )


def check_weights(
  settings: FeatureSettings, config: modeling.BertConfig, vectors: Vectors
) -> None:
  """Refuses a checkpoint that is corrupt or of another model."""
  devices.check_model_fn(
    settings.model.init_checkpoint,
    model_fn_builder(
      config,
      settings.model.init_checkpoint,
      vectors.layer_indexes,
      False,
      False,
      vectors.pooling,
      embedding=vectors.embedding,
    ),
    record_layout(settings.model.max_seq_length),
  )


def check_texts(
  settings: FeatureSettings,
  config: modeling.BertConfig,
  tokenizer: tokenization.Tokenizer,
  vectors: Vectors,
) -> example_checks.LengthSummary:
  """Encodes a sample of the texts; warns if many are truncated."""
  texts = list(read_texts(settings, vectors))
  if not texts:
    raise InputError(f"{settings.input_file}: has no lines")
  sample = example_checks.sample(texts)
  length, cutting = settings.model.max_seq_length, vectors.cutting
  return example_checks.check_encoded(
    model_inputs.encode_pairs(tokenizer, sample, length, cutting),
    config.vocab_size,
    len(texts),
    tokenizer,
    (f"{text_a} {text_b or ''}" for text_a, text_b, _ in sample),
    length,
    len(sample),
  )


def check_disk(
  settings: FeatureSettings,
  config: modeling.BertConfig,
  vectors: Vectors,
  lengths: example_checks.LengthSummary,
) -> None:
  """Refuses an output folder with too little disk space."""
  numbers = lengths.num_examples * vectors.width(config.hidden_size)
  if not vectors.is_per_text:
    numbers *= lengths.num_tokens
  # A number in JSON takes about ten characters and a separator.
  size = 4 if settings.output_format == "npz" else 11
  folder = os.path.dirname(settings.output_file) or "."
  if not tf.gfile.IsDirectory(folder):
    raise InputError(f"{settings.output_file}: {os.strerror(errno.ENOENT)}")
  files.check_disk(folder, int(numbers * size))


if __name__ == "__main__":
  app.run(main)
