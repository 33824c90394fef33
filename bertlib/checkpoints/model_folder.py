"""The folder of a model: checks of every use of it. Imports no TensorFlow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from bertlib.checkpoints import loading
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.io import files, json_files, model_files
from bertlib.settings import model_description
from bertlib.task import task_record
from bertlib.task.task_record import TaskRecord

# What every model of a task has.
_REQUIRED = {"do_lower_case": bool, "max_seq_length": int}

# Config keys that must not change after training. The weights' shapes do not
# show all of them.
FIXED_BY_TRAINING = (*loading.SIZES, "hidden_act")

# Entries that say what the weights compute, and from which input.
_MEANING = ("script", "kind", "labels", "do_lower_case", "seq_length")
_MEANING_OF_VECTORS = ("pooling", "normalize", "projection_activation")


def check(folder: str, task: TaskRecord | None = None) -> dict[str, Any]:
  """Contents of `model.json`, after a check of all files; {} without one."""
  # Without `task`, it is that of the script in it.
  script = model_description.load(folder).get("script")
  task = task or task_record.find(script)
  description = model_description.load(folder, task)
  if not description:
    return {}
  path = os.path.join(folder, model_files.DESCRIPTION)
  is_of_task = task and task.script == script
  required = _REQUIRED | dict(task.required if is_of_task else {})
  if problem := json_files.mismatch(description, required):
    raise InputError(f"{path}: {problem}. {model_description.FIX}")
  config_file = os.path.join(folder, model_files.CONFIG)
  if files.exists(config_file):
    config = loading.read_config(config_file)
    loading.check_max_seq_length(
      description["max_seq_length"],
      config["max_position_embeddings"],
      name=f"{path}: max_seq_length",
    )
    expected = description.get("meaning_sha256")
    if expected not in (None, meaning_hash(description, config)):
      raise InputError(
        f"{path}: labels, kind, pooling, casing or {model_files.CONFIG} were"
        " changed after training (their hash is not meaning_sha256). Restore"
        " them or, to keep the change, remove meaning_sha256"
      )
  check_vocabulary(folder, description)
  return description


def meaning_hash(
  description: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
  """SHA-256 of what decides the meaning of a model's weights."""
  vectors = description.get("embedding", {})
  values = [
    *(description.get(key) for key in _MEANING),
    *(vectors.get(key) for key in _MEANING_OF_VECTORS),
    *(config.get(key) for key in loading.SIZES),
    config.get("hidden_act", "gelu"),
  ]
  return hashlib.sha256(json_files.dumps(values).encode()).hexdigest()


def check_vocabulary(folder: str, description: Mapping[str, Any]) -> None:
  """Refuses a folder whose vocabulary is not the one of its training."""
  path = os.path.join(folder, model_files.VOCAB)
  expected = description.get("vocab_sha256")
  # Folders of earlier versions have no hash.
  if not expected or not files.exists(path):
    return
  if vocabulary.hash_of(path) != expected:
    raise InputError(
      f"{path}: is not the vocabulary that the model was trained with (its hash"
      f" is not the one in {model_files.DESCRIPTION}). Restore it"
    )
