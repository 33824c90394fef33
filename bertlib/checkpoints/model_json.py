"""`model.json`: what a model was trained for, beside its checkpoints."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

import modeling
from bertlib import json_files
from bertlib.checkpoints import config_schema, finding, loading
from bertlib.data import vocabulary
from bertlib.errors import InputError
from bertlib.files import atomic_write, open_any

# What a trained model is, beside its checkpoints: enough to load it again.
MODEL_FILE = "model.json"

# What a description may have, and what that of each script must have.
_DESCRIPTION = {
  "script?": str,
  "task?": str,
  "kind?": str,
  "labels?": [str],
  "max_seq_length?": int,
  "do_lower_case?": bool,
  "has_pairs?": bool,
  "version_2_with_negative?": bool,
  "doc_stride?": int,
  "max_query_length?": int,
}
_ENCODED = {"do_lower_case": bool, "max_seq_length": int}
_NEEDED = {
  "run_pretraining": _ENCODED,
  "run_classifier": _ENCODED | {"labels": [str]},
  "run_ner": _ENCODED | {"labels": [str]},
  "run_squad": _ENCODED
  | {
    "version_2_with_negative": bool,
    "doc_stride": int,
    "max_query_length": int,
  },
}

_CURE = "Restore it; the model cannot be used without what training wrote there"

# What a config cannot change once the weights are trained, though some of it
# is not seen in their shapes.
_FIXED_BY_TRAINING = (*config_schema.SIZES, "hidden_act")


def write_model_files(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  vocab_file: str | None,
  overwrite: bool = True,
) -> None:
  """Makes a folder that of one model.

  The model's description, config and vocabulary are written to the folder, so
  that it can be loaded again without them being named.

  Args:
    output_dir: the folder, for which `check` had no objection.
    model: what else describes the model (its script, task, labels, ...).
    config: its sizes.
    vocab_file: its vocabulary; None where it is not known.
    overwrite: whether to replace files that are there.
  """
  files = {}
  if vocab_file:
    with open_any(vocab_file, "rb") as file:
      files[loading.VOCAB_FILE] = file.read().removeprefix(codecs.BOM_UTF8)
  files[loading.CONFIG_FILE] = config.to_json_string().encode()
  files[MODEL_FILE] = _as_json(model).encode()
  for name, content in files.items():
    path = os.path.join(output_dir, name)
    if overwrite or not tf.gfile.Exists(path):
      with atomic_write(path, "wb") as file:
        file.write(content)


def check(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  keys: Iterable[str] = ("script", "task", "labels"),
  num_outputs: int | None = None,
  vocab_file: str | None = None,
) -> None:
  """Refuses a folder with a checkpoint of another model.

  A folder that google-research/bert left does not say what its model is; then
  only shapes are compared.

  Args:
    output_dir: the folder; may be missing.
    model: what describes this run's model.
    config: its sizes.
    keys: what of the description has to agree.
    num_outputs: of the model's output layer, where that is `output_bias`.
    vocab_file: this run's vocabulary, if it has one.

  Raises:
    InputError: it holds another's checkpoint, or its vocabulary is another;
      both are named.
  """
  trained_vocab = os.path.join(output_dir, loading.VOCAB_FILE)
  if vocab_file and tf.gfile.Exists(trained_vocab):
    vocabulary.check_same(vocab_file, trained_vocab)
  checkpoint = finding.trained_checkpoint(output_dir)
  if checkpoint is None:
    return
  shapes = dict(tf.train.list_variables(checkpoint))
  description = load_description(output_dir)
  theirs = {key: description[key] for key in keys if key in description}
  ours = {key: model[key] for key in theirs}
  trained_config = os.path.join(output_dir, loading.CONFIG_FILE)
  if tf.gfile.Exists(trained_config):
    trained_with = vars(loading.load_config(trained_config))
    theirs |= {key: trained_with[key] for key in _FIXED_BY_TRAINING}
    ours |= {key: getattr(config, key) for key in _FIXED_BY_TRAINING}
  if "bert/embeddings/word_embeddings" in shapes:
    layers = {n.split("/")[2] for n in shapes if n.startswith("bert/encoder/")}
    theirs["vocab_size"], theirs["hidden_size"] = shapes[
      "bert/embeddings/word_embeddings"
    ]
    theirs["num_hidden_layers"] = len(layers)
    ours |= {key: getattr(config, key) for key in theirs if key not in ours}
  if "output_bias" in shapes and num_outputs:
    theirs["outputs"] = shapes["output_bias"][0]
    ours["outputs"] = num_outputs
  for key, value in theirs.items():
    if value != ours[key]:
      raise InputError(
        f"{output_dir}: holds a model with {key} {value!r}, but this run's is"
        f" {ours[key]!r}. Give what it was trained with, or name another"
        " --output_dir; there --init_checkpoint can start from this model"
      )


def load_description(model_dir: str) -> dict[str, Any]:
  """What `write_model_files` wrote of a model.

  Args:
    model_dir: the folder.

  Returns:
    The description; empty where there is none, as in folders of the reference.

  Raises:
    InputError: it is damaged.
  """
  path = os.path.join(model_dir, MODEL_FILE)
  if not tf.gfile.Exists(path):
    return {}
  return json_files.read(path, _DESCRIPTION, _CURE)


def check_description(model_dir: str, description: Mapping[str, Any]) -> None:
  """Refuses a description that lacks what its script writes.

  Args:
    model_dir: the folder.
    description: of `load_description`.

  Raises:
    InputError: something is missing.
  """
  needed = _NEEDED.get(description.get("script"), {})
  problem = json_files.mismatch(description, needed)
  if problem:
    path = os.path.join(model_dir, MODEL_FILE)
    raise InputError(f"{path}: {problem}. {_CURE}")


def add_to_description(model_dir: str, **values: Any) -> None:
  """Adds to the description of a model, and of its best weights.

  Args:
    model_dir: the folder.
    **values: what to add.
  """
  for folder in (model_dir, os.path.join(model_dir, finding.BEST)):
    if tf.gfile.Exists(folder):
      with atomic_write(os.path.join(folder, MODEL_FILE)) as file:
        file.write(_as_json(load_description(folder) | values))


def _as_json(description: Mapping[str, Any]) -> str:
  return json.dumps(description, indent=2, ensure_ascii=False) + "\n"
