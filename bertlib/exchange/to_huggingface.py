"""Checkpoints of this project as Hugging Face folders.

A tensor without a counterpart, and heads that no class has together, are an
error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import electra_weights, model_folder
from bertlib.checkpoints.foreign_checkpoint import ForeignCheckpoint
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.exchange import (
  from_huggingface,
  huggingface_tokenizer,
  huggingface_weights,
  rewrite,
  sentence_transformers,
  tensor_names,
)
from bertlib.exchange.from_huggingface import TASK_PARAMS
from bertlib.export import same_outputs
from bertlib.io import files, json_files, output_folders
from bertlib.settings import model_description
from bertlib.task import task_record
from bertlib.task.task_record import PROBLEM_TYPES, HuggingFaceModel, TaskRecord

# Files of the weights, of which transformers reads the first.
_SAFETENSORS, _PYTORCH = "model.safetensors", "pytorch_model.bin"

# Names of activations there, by ours.
_ACTIVATIONS = {o: theirs for theirs, o in from_huggingface.ACTIVATIONS.items()}

# Entries of `model.json` that have a key of their own in the folder, or that
# are about this project's computation.
_CONVERTED = {
  "script",
  "task",
  "kind",
  "problem_type",
  "labels",
  "max_seq_length",
  "do_lower_case",
  "max_input_chars_per_word",
  "embedding",
  "activation",
  "query_prefix",
  "precision",
  "xla",
  "vocab_sha256",
}


def convert(
  checkpoint: str,
  config_file: str,
  vocab_file: str,
  target_dir: str,
  # None for the value in `model.json`, else in `config_file`, else by the
  # capital letters of the vocabulary.
  do_lower_case: bool | None = None,
  overwrite: bool = False,
  as_pytorch: bool = False,  # `pytorch_model.bin`, not safetensors
  dtype: str = "float32",  # of the weights: or "float16", "bfloat16"
) -> list[str]:
  """Writes a checkpoint as a Hugging Face folder; returns what was done."""
  weights = _weights_file(target_dir, as_pytorch)
  config = from_huggingface.check_config(
    config_file, json_files.read(config_file, dict), _ACTIVATIONS
  )
  for key in from_huggingface.FILE_KEYS:
    config.pop(key, None)
  entries = vocabulary.read_entries(vocab_file)
  huggingface_tokenizer.check_vocab_size(
    entries, config["vocab_size"], vocab_file
  )
  variables, notes = _read_variables(checkpoint)
  description, about = _describe(checkpoint, config, entries, do_lower_case)
  inputs = [config_file, vocab_file, *files.checkpoint_files(checkpoint)]
  networks = electra_weights.networks(variables, config)
  for name, (variables, config) in networks.items():
    if name:  # of two, neither is what the description is of
      known = "max_seq_length", "do_lower_case", "max_input_chars_per_word"
      description = {k: v for k, v in description.items() if k in known}
    projection = {}
    if "embedding" in description:
      projection = sentence_transformers.find_projection(
        variables, description, checkpoint
      )
    variables = {n: v for n, v in variables.items() if n not in projection}
    parts = tensor_names.find_parts(variables, "tensorflow", config, checkpoint)
    tensors, written, lines = _as_class(
      checkpoint, config_file, variables, parts, config, description, dtype
    )
    notes += [*lines, *about, f"architecture: {written['architectures'][0]}"]
    output = os.path.join(target_dir, name)
    with output_folders.atomic_files(output, overwrite, inputs) as folder:
      huggingface_weights.write(os.path.join(folder, weights), tensors)
      json_files.write(os.path.join(folder, "config.json"), written)
      has_segments = config.get("type_vocab_size", 0) > 1
      notes += huggingface_tokenizer.write(
        folder, vocab_file, description, has_segments
      )
      if "embedding" in description:
        sentence_transformers.write(
          folder, description, projection, config["hidden_size"]
        )
      if "activation" in description:
        sentence_transformers.write_cross_encoder(folder, description)
    path = os.path.join(output, weights)
    notes.append(from_huggingface.written(path, tensors, parts))
  return notes


def _as_class(
  checkpoint: str,
  config_file: str,
  variables: Mapping[str, np.ndarray],
  parts: dict[str, Any],  # of `tensor_names`; a pooler may be left out
  config: dict[str, Any],
  description: Mapping[str, Any],
  dtype: str,
) -> tuple[dict[str, np.ndarray], dict[str, Any], list[str]]:
  """Tensors and config of a model as its class has them, and what was done."""
  notes = []
  task = task_record.find(description.get("script"))
  trained_as = task and task.huggingface_class(description)
  config["model_type"] = tensor_names.model_type_of(config)
  if "discriminator head" in parts:
    config["model_type"] = "electra"
  architecture = tensor_names.choose_architecture(
    parts,
    [trained_as, *(config.get("architectures") or ())],
    config["model_type"],
    checkpoint,
  )
  if config["model_type"] == "electra" and not architecture.endswith(
    ("SequenceClassification", "MultipleChoice")
  ):  # no other class has one
    config["pooler_act"] = from_huggingface.OF_KIND["electra"]["pooler_act"]
    unused = [row.tensorflow for row in parts.pop("pooler", ())]
    notes += from_huggingface.left_out(unused)
  _check_kind(config, config_file)
  # The tensors of a bare BertModel have no prefix "bert.".
  prefix = f"{tensor_names.PREFIXES[config['model_type']]}."
  prefix *= architecture == "BertModel"
  table = tensor_names.name_table(
    config, architecture == "BertForSequenceClassification"
  )
  numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
  tensors = {
    row.huggingface.removeprefix(prefix): row.convert(
      variables[row.tensorflow].astype(numpy_dtype, copy=False)
    )
    for row in itertools.chain(*(table[part] for part in parts))
  }
  config["architectures"] = [architecture]
  if dtype != "float32":
    config["dtype"] = dtype
  _set_problem_type(config, description)
  _check_formulas(architecture, parts, config, description)
  notes += _name_labels(config, variables, description)
  notes += _keep_entries(config, description)
  return tensors, _of_kind(config), notes


def _read_variables(checkpoint: str) -> tuple[dict[str, np.ndarray], list[str]]:
  """The weights of a checkpoint, float32, and what was done."""
  weights = rewrite.read_weights(checkpoint)
  variables, widened = from_huggingface.as_float32(weights, checkpoint)
  notes = [f"read: {checkpoint}, {len(weights)} weights"]
  num_others = len(ForeignCheckpoint(checkpoint)) - len(weights)
  if num_others:
    notes.append(f"left out: {num_others} tensors of the optimizer's state")
  return variables, notes + widened


def _describe(
  checkpoint: str,
  config: dict[str, Any],
  entries: Iterable[str],  # of the vocabulary
  do_lower_case: bool | None,
) -> tuple[dict[str, Any], list[str]]:
  """Contents of `model.json` with casing and length, and a line about them."""
  description = model_description.load(os.path.dirname(checkpoint))
  stated = (
    do_lower_case,
    description.get("do_lower_case"),
    config.pop("do_lower_case", None),
  )
  do_lower_case, notes = huggingface_tokenizer.choose_casing(stated, entries)
  description = {
    "max_seq_length": model_folder.max_tokens(config),
    **description,
    "do_lower_case": do_lower_case,
  }
  return description, notes


def _check_formulas(
  architecture: str,
  parts: Collection[str],  # of `tensor_names`
  config: Mapping[str, Any],  # of Hugging Face
  description: Mapping[str, Any],  # contents of `model.json`
) -> None:
  """Refuses to write what Hugging Face's class and tokenizer do not compute."""
  flag = "--to=huggingface"
  act = from_huggingface.ACTIVATIONS[config["hidden_act"]]
  same_outputs.check_tokenizer(flag, description["do_lower_case"])
  same_outputs.check_formula(flag, act, has_pooler="pooler" in parts)
  if "next sentence head" in parts:
    architecture = "BertForPreTraining"
  num_labels = 1 if config.get("problem_type") == "regression" else 3
  model = HuggingFaceModel(architecture, (), num_labels, 512, config)
  for task in task_record.all_records():
    if task.script == description.get("script"):
      found = description
    else:
      found = task.from_huggingface(model)
    if found is not None:
      same_outputs.check_formula(flag, act, task, found.get("kind"))


# Weights


def _weights_file(target_dir: str, as_pytorch: bool) -> str:
  """Name of the file of the weights; checks that it can be written and read."""
  if not as_pytorch:
    return _SAFETENSORS
  huggingface_weights.import_torch(os.path.join(target_dir, _PYTORCH), "write")
  other = os.path.join(target_dir, _SAFETENSORS)
  if os.path.exists(other):
    raise InputError(
      f"{other}: transformers would read it instead of {_PYTORCH}. Remove it,"
      " or give another --output"
    )
  return _PYTORCH


# config.json


def _of_kind(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config with the keys and classes that its `model_type` has there."""
  kind, names = config["model_type"], {}
  if kind == "distilbert":
    names = from_huggingface.DISTILBERT_KEYS
  found = {
    names.get(key, key): value
    for key, value in config.items()
    # The last is of training alone.
    if key not in (*_fixed_values(config), "pooler_dropout_prob")
  }
  prefix, (name,) = tensor_names.CLASSES[kind], config["architectures"]
  found["architectures"] = [name.replace("Bert", prefix, 1)]
  if kind not in ("bert", "distilbert"):  # for CTranslate2
    found.setdefault("position_embedding_type", "absolute")
  return found


def _fixed_values(config: Mapping[str, Any]) -> dict[str, Any]:
  """Values of keys that a kind of model does not have at Hugging Face."""
  others = {k: v for k, v in config.items() if k != "position_offset"}
  fixed = {
    "pooler_act": "tanh",
    "position_offset": model_folder.position_offset(others),
  }
  if config["model_type"] != "electra":
    fixed["embedding_size"] = config["hidden_size"]
  return fixed | from_huggingface.OF_KIND.get(config["model_type"], {})


def _check_kind(config: Mapping[str, Any], config_file: str) -> None:
  """Refuses values that no model of this `model_type` has."""
  found = {
    "pooler_act": "tanh",
    "position_offset": model_folder.position_offset(config),
    **config,
    "embedding_size": tensor_names.embedding_size(config),
  }
  for key, value in _fixed_values(config).items():
    if found.get(key) != value:
      raise InputError(
        f"{config_file}: {key} is {json_files.dumps(found[key])}, but"
        f" {json_files.dumps(value)} in every {config['model_type']} of"
        " transformers. Export ONNX or a SavedModel"
      )


def config_of(
  config: modeling.BertConfig,
  variables: Mapping[str, np.ndarray],
  description: Mapping[str, Any],  # contents of `model.json`
  task: TaskRecord | None,  # None for an encoder
) -> dict[str, Any]:
  """Contents of the `config.json` of a model whose weights stay here."""
  architecture = task and task.huggingface_class(description)
  found = {
    **vars(config),
    "hidden_act": _ACTIVATIONS.get(config.hidden_act, config.hidden_act),
    "model_type": tensor_names.model_type_of(vars(config)),
    "architectures": [architecture or "BertModel"],
  }
  _set_problem_type(found, description)
  _name_labels(found, variables, description)
  return _of_kind(found)


def _set_problem_type(
  config: dict[str, Any], description: Mapping[str, Any]
) -> None:
  """Sets `problem_type` and activation; removes those of an earlier model."""
  activation = description.get("activation")
  # What a converted model has may say less than its kind.
  if "script" in description and "problem_type" not in description:
    for key in ("problem_type", *sentence_transformers.MARKS):
      config.pop(key, None)
    kind = description.get("kind")
    is_classifier = config["architectures"] == ["BertForSequenceClassification"]
    if is_classifier and kind in PROBLEM_TYPES:
      config["problem_type"] = PROBLEM_TYPES[kind]
    if kind == "regression":  # else a cross-encoder gives the sigmoid
      activation = "identity"
  if activation:
    config |= sentence_transformers.mark(activation)


def _name_labels(
  config: dict[str, Any],
  variables: Mapping[str, np.ndarray],
  description: Mapping[str, Any],
) -> list[str]:
  """Sets `id2label` and `label2id`; returns what transformers makes of them."""
  named = {"id2label": config.pop("id2label", None)}
  config.pop("label2id", None)
  config.pop("num_labels", None)
  if config["architectures"][0] not in (
    "BertForSequenceClassification",
    "BertForTokenClassification",
  ):
    return []
  num_labels = variables["output_bias"].size
  # The names that training used come first, then those of the config; either
  # only if their number is that of the head.
  candidates = (
    description.get("labels", []),
    from_huggingface.label_names(named),
    [f"LABEL_{i}" for i in range(num_labels)],
  )
  labels = next(names for names in candidates if len(names) == num_labels)
  config["id2label"] = dict(enumerate(labels))
  config["label2id"] = {label: i for i, label in enumerate(labels)}
  is_bioes = any(label.startswith("E-") for label in labels)
  return [
    "note: pipelines of transformers know the tags B- and I- only; E- becomes"
    " an entity of its own. Train with --scheme=BIO for them"
  ] * (is_bioes and "Token" in config["architectures"][0])


def _keep_entries(
  config: dict[str, Any], description: Mapping[str, Any]
) -> list[str]:
  """Keeps entries of `model.json` without a key in Hugging Face's files."""
  script = description.get("script")
  entries = {k: v for k, v in description.items() if k not in _CONVERTED}
  kind = description.get("kind")
  if kind == "multiple_choice" and "labels" in description:
    entries["labels"] = description["labels"]
  # Other programs' models of one output are rerankers.
  if kind and len(config.get("id2label", ())) == 1:
    entries["kind"] = kind
  kept = dict(config.pop(TASK_PARAMS, None) or {})
  kept.pop(script, None)
  if script and entries:
    kept[script] = entries
  if kept:
    config[TASK_PARAMS] = kept
  if not (script and entries):
    return []
  return [
    f"kept in {TASK_PARAMS} of config.json, which transformers does not use:"
    f" {', '.join(entries)}"
  ]
