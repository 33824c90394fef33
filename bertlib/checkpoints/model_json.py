"""`model.json`: a trained model's script, task, labels and text settings."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import (
  checkpoint_files,
  finding,
  loading,
  model_folder,
)
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.io import json_files, model_files
from bertlib.io.files import atomic_write, open_any
from bertlib.settings import model_description
from bertlib.task.task_record import TaskRecord


def write_model_files(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  vocab_file: str | None,
  overwrite: bool = True,
) -> None:
  """Writes all that a model needs beside its checkpoints to its folder."""
  files = {}
  # `model_folder.check` compares these hashes.
  meaning = model_folder.meaning_hash(model, vars(config))
  model = {**model, "meaning_sha256": meaning}
  if vocab_file:
    model = {**model, "vocab_sha256": vocabulary.hash_of(vocab_file)}
    with open_any(vocab_file, "rb") as file:
      files[model_files.VOCAB] = file.read().removeprefix(codecs.BOM_UTF8)
  files[model_files.CONFIG] = config.to_json_string().encode()
  files[model_files.DESCRIPTION] = json_files.pretty(model).encode()
  for name, content in files.items():
    path = os.path.join(output_dir, name)
    if overwrite or not tf.gfile.Exists(path):
      with atomic_write(path, "wb") as file:
        file.write(content)


def check(
  output_dir: str,
  checkpoint: str | None,  # of the model in it
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  # of the description that must match
  keys: Iterable[str] = ("script", "task", "labels"),
  num_outputs: int | None = None,  # of `output_bias`
  vocab_file: str | None = None,
  task: TaskRecord | None = None,
) -> None:
  """Refuses a folder with a checkpoint or vocabulary of another model."""
  trained_vocab = os.path.join(output_dir, model_files.VOCAB)
  if vocab_file and tf.gfile.Exists(trained_vocab):
    vocabulary.check_same(vocab_file, trained_vocab)
  if checkpoint is None:
    return
  # Empty after google-research/bert, which has no `model.json`: then only
  # shapes are compared.
  description = model_description.load(output_dir, task)
  model_folder.check_vocabulary(output_dir, description)
  shapes = checkpoint_files.shapes_of(checkpoint)
  stored, wanted = (
    _flatten({key: entries[key] for key in keys if key in description})
    for entries in (description, model)
  )
  stored = {key: value for key, value in stored.items() if key in wanted}
  config_file = os.path.join(output_dir, model_files.CONFIG)
  if tf.gfile.Exists(config_file):
    stored_config = vars(loading.load_config(config_file))
    stored |= {
      key: stored_config[key] for key in model_folder.FIXED_BY_TRAINING
    }
    wanted |= {
      key: getattr(config, key) for key in model_folder.FIXED_BY_TRAINING
    }
  if "bert/embeddings/word_embeddings" in shapes:
    layers = {n.split("/")[2] for n in shapes if n.startswith("bert/encoder/")}
    stored["vocab_size"], stored["hidden_size"] = shapes[
      "bert/embeddings/word_embeddings"
    ]
    stored["num_hidden_layers"] = len(layers)
    wanted |= {key: getattr(config, key) for key in stored if key not in wanted}
  if "output_bias" in shapes and num_outputs:
    stored["outputs"] = shapes["output_bias"][0]
    wanted["outputs"] = num_outputs
  for key, value in stored.items():
    if value != wanted[key]:
      raise InputError(
        f"{output_dir}: holds a model with {key} {value!r}, but this run's is"
        f" {wanted[key]!r}. Use the settings that it was trained with. To"
        " train another model from it, name it as --init_checkpoint, with"
        " another --output_dir"
      )


def _flatten(entries: Mapping[str, Any]) -> dict[str, Any]:
  """Entries, with those of an entry {name: value} as "entry name"."""
  flat: dict[str, Any] = {}
  for key, value in entries.items():
    is_group = isinstance(value, Mapping)
    flat |= (
      {f"{key} {k}": v for k, v in value.items()} if is_group else {key: value}
    )
  return flat


def check_same_task(
  model_dir: str, description: Mapping[str, Any], checkpoint: str
) -> None:
  """Refuses a checkpoint whose own `model.json` describes another task."""
  of_checkpoint = model_description.load(os.path.dirname(checkpoint))
  for key in ("script", "kind", "labels"):
    found, expected = of_checkpoint.get(key), description.get(key)
    if found != expected and key in of_checkpoint and key in description:
      raise InputError(
        f"{checkpoint}: is of a model with {key} {found!r}, but {model_dir}"
        f" has {expected!r}. Name the folder of that model"
      )


def add_to_description(model_dir: str, **values: Any) -> None:
  """Adds keys to `model.json` of a model and of its best checkpoint."""
  for folder in (model_dir, os.path.join(model_dir, finding.BEST)):
    if tf.gfile.Exists(os.path.join(folder, model_files.DESCRIPTION)):
      with atomic_write(os.path.join(folder, model_files.DESCRIPTION)) as file:
        file.write(json_files.pretty(model_description.load(folder) | values))
