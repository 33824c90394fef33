"""Comparing two models, by their weights or by their outputs for a text.

Outputs are those of a TensorFlow checkpoint, by `modeling.py`, and of a Hugging
Face folder, by the package `transformers`: an independent implementation.
"""

from __future__ import annotations

import functools
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
  rewrite,
)
from bertlib.cli.errors import InputError
from bertlib.data import model_inputs, vocabulary
from bertlib.exchange import (
  from_huggingface,
  huggingface_runner,
  huggingface_tokenizer,
  initial_model,
)
from bertlib.exchange.huggingface_runner import Batch, Outputs, numbered
from bertlib.io import json_files, model_files, text_files
from bertlib.settings import model_description
from bertlib.settings.conversion import ConversionSettings


class Model(NamedTuple):
  """A model to run."""

  name: str  # path, and implementation that runs it, for messages
  vocab_size: int  # number of word embeddings
  max_seq_length: int  # in tokens
  run: Callable[[Sequence[Batch]], Iterator[Outputs]]  # outputs per batch


def compare_on_text(settings: ConversionSettings) -> bool:
  """Runs two models on the same lines and prints how they differ."""
  paths = settings.input, settings.compare
  models = [load(path, settings.bert_config_file) for path in paths]
  tokenizer = find_tokenizer(
    paths,
    min(model.vocab_size for model in models),
    settings.vocab_file,
    settings.do_lower_case,
  )
  # Lines are truncated to the positions of the smaller model too.
  lengths = settings.max_seq_length, *(m.max_seq_length for m in models)
  encoding = settings.text.codec
  batches = encode_lines(settings.text_file, tokenizer, min(lengths), encoding)
  return compare_outputs(models, batches, settings.tolerance)


# Models


def load(path: str, config_file: str | None = None) -> Model:
  """Loads a checkpoint or a Hugging Face folder."""
  if initial_model.is_huggingface(path):
    config = json_files.read(os.path.join(path, "config.json"), dict)
    return Model(
      f"{path}, by transformers",
      config["vocab_size"],
      config["max_position_embeddings"],
      functools.partial(huggingface_runner.run, path),
    )
  checkpoint = finding.find_checkpoint(path)
  config = loading.load_config(
    config_file or os.path.join(_folder(path), model_files.CONFIG)
  )
  with tf.Graph().as_default():
    inputs = initialize.token_placeholders()
    weights = checkpoint_files.Checkpoint(checkpoint)
    outputs = _build(config, weights, *inputs.values())
    initialize.initialize_from_checkpoint(checkpoint)
    session = tf.Session()
    with checkpoint_files.as_input_errors(checkpoint):
      session.run(tf.global_variables_initializer())

  def run(batches: Sequence[Batch]) -> Iterator[Outputs]:
    for batch in batches:
      feed = {tensor: batch[name] for name, tensor in inputs.items()}
      yield session.run(outputs, feed)

  name = f"{checkpoint}, by modeling.py"
  return Model(name, config.vocab_size, config.max_position_embeddings, run)


def _build(
  config: modeling.BertConfig, weights, ids, mask, segments
) -> dict[str, Any]:
  """Hidden states, and outputs of the heads that the checkpoint has."""
  model = modeling.BertModel(config, False, ids, mask, segments)
  last = model.get_sequence_output()
  outputs = {
    "embeddings": model.get_embedding_output(),
    **numbered(model.get_all_encoder_layers()),
  }
  # A converted model may lack the pooler.
  if "bert/pooler/dense/kernel" in weights:
    outputs["pooled"] = model.get_pooled_output()
  if "cls/predictions/output_bias" in weights:
    middle = tf.reduce_sum(mask, axis=-1, keepdims=True) // 2
    outputs["masked LM"] = modeling.masked_lm_logits(
      config, last, model.get_embedding_table(), middle
    )
  if "cls/seq_relationship/output_weights" in weights:
    outputs["next sentence"] = modeling.next_sentence_logits(
      config, model.get_pooled_output()
    )
  if "cls/squad/output_weights" in weights:
    outputs["answer spans"] = tf.stack(modeling.span_logits(last), axis=-1)
  return outputs


# Text


def find_tokenizer(
  paths: Sequence[str],
  vocab_size: int | None = None,  # maximum number of entries
  vocab_file: str | None = None,  # None: `vocab.txt` in the models' folders
  # None: as the files of the models say, else as the vocabulary is.
  do_lower_case: bool | None = None,
) -> tokenization.FullTokenizer:
  """Tokenizer of two models; InputError if their vocabularies differ."""
  if vocab_file is None:
    files = [os.path.join(_folder(path), model_files.VOCAB) for path in paths]
    files = list(filter(tf.gfile.Exists, files))
    if not files:
      raise InputError("--vocab_file: comes with neither model; give it")
    vocab_file, other = files[0], files[-1]
    if different := vocabulary.difference(vocab_file, other):
      raise InputError(
        f"{vocab_file} and {other}: differ ({different}). Set one vocabulary"
        " for both models with --vocab_file"
      )
  stated = [do_lower_case, *(_stated_case(p, vocab_file) for p in paths)]
  do_lower_case = next((case for case in stated if case is not None), None)
  if do_lower_case is None:
    entries = vocabulary.read_entries(vocab_file)
    do_lower_case = not vocabulary.is_cased(entries)
  return vocabulary.load_tokenizer(vocab_file, do_lower_case, vocab_size)


def _stated_case(path: str, vocab_file: str) -> bool | None:
  """Casing in the files of a model; None if they do not say it."""
  if initial_model.is_huggingface(path):
    return huggingface_tokenizer.read(path, vocab_file, 0).do_lower_case
  return model_description.load(_folder(path)).get("do_lower_case")


def _folder(path: str) -> str:
  """Folder of a model's vocabulary and JSON files."""
  return path if tf.gfile.IsDirectory(path) else os.path.dirname(path)


def encode_lines(
  text_file: str,
  tokenizer: tokenization.FullTokenizer,
  max_seq_length: int,
  encoding: text_files.Encoding = text_files.UTF8,
  batch_size: int = 32,
) -> list[Batch]:
  """Non-blank lines in batches, each as long as its longest line."""
  pairs = filter(any, text_files.read_pairs(text_file, encoding))
  rows = [
    model_inputs.encode_pair(tokenizer, *pair, max_seq_length) for pair in pairs
  ]
  if not rows:
    raise InputError(f"{text_file}: has no text")
  if num_truncated := sum(row.num_truncated_tokens > 0 for row in rows):
    print(f"{num_truncated} lines truncated to {max_seq_length} tokens")
  return [
    model_inputs.as_batch(rows[first : first + batch_size])
    for first in range(0, len(rows), batch_size)
  ]


# Comparison


def compare_outputs(
  models: Sequence[Model], batches: Sequence[Batch], tolerance: float
) -> bool:
  """Runs two models on the same batches and prints how they differ."""
  largest: dict[str, float] = {}  # difference of each output
  unmatched: set[str] = set()  # outputs of one model only
  names = " and ".join(model.name for model in models)
  outputs = (model.run(batches) for model in models)
  for batch, first, second in zip(batches, *outputs):
    unmatched |= first.keys() ^ second.keys()
    if any(name.startswith("layer") for name in unmatched):
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
        is_token = batch["input_mask"] > 0
        values, others = values[is_token], others[is_token]  # [R, H]
      difference = np.abs(values - others).max()
      largest[name] = np.maximum(largest.get(name, 0.0), difference)

  print(f"first: {models[0].name}\nsecond: {models[1].name}")
  masks = [batch["input_mask"] for batch in batches]
  print(f"{sum(map(len, masks))} texts, {sum(m.sum() for m in masks)} tokens")
  print("largest difference")
  for name, difference in largest.items():
    print(f"{name:14} {difference:#.3g}")
  for name in sorted(unmatched):
    print(f"{name:14} in one of the models only, not compared")
  return _verdict(largest.values(), tolerance)


def compare_weights(
  first: Mapping[str, np.ndarray],
  second: Mapping[str, np.ndarray],
  tolerance: float,
) -> bool:
  """Prints how the weights of two models differ; True if all agree."""
  largest = []  # of each variable that is not bitwise equal
  names = sorted(first.keys() | second.keys())
  for name in names:
    if name not in first or name not in second:
      largest.append(np.inf)
      print(f"{name}: only in the {'first' if name in first else 'second'}")
      continue
    values, others = first[name], second[name]
    if values.shape != others.shape:
      largest.append(np.inf)
      print(f"{name}: {values.shape} and {others.shape}")
    elif values.dtype != others.dtype or values.tobytes() != others.tobytes():
      largest.append(np.abs(values.astype(np.float64) - others).max())
      print(f"{name}: {largest[-1]:.3g}")
  num_equal = len(names) - len(largest)
  print(f"{num_equal} variables are bitwise equal, {len(largest)} are not")
  return _verdict(largest, tolerance)


def _verdict(largest: Iterable[float], tolerance: float) -> bool:
  # A comparison with NaN is false.
  agree = all(value <= tolerance for value in largest)
  verdict = "agree" if agree else "do not agree"
  print(f"they {verdict} within {tolerance:g}")
  return agree


def read_weights(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a model in any format, by checkpoint name."""
  model_format = initial_model.model_format(path)
  if model_format == "huggingface":
    return from_huggingface.read_variables(path)
  if model_format == "tensorflow":
    return rewrite.read_weights(finding.find_checkpoint(path))
  loaded = tf_v2.saved_model.load(path)
  return {
    variable.name.partition(":")[0]: variable.numpy()
    for signature in loaded.signatures.values()
    for variable in signature.variables
  }
