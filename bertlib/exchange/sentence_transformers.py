"""Folders of the package sentence-transformers, read and written.

`modules.json` lists the modules of such a folder: a Transformer, which is a
Hugging Face folder of its own or the root, then Pooling, and optionally Dense
and Normalize.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import InputError
from bertlib.cli.option import declaration
from bertlib.exchange import huggingface_weights
from bertlib.exchange.huggingface_tokenizer import read_files
from bertlib.io import json_files
from bertlib.io.json_files import NULL
from bertlib.settings.common import ModelSettings
from bertlib.settings.embedding_spec import (
  POOLINGS,
  PROJECTION_SCOPE,
  EmbeddingSpec,
  from_json,
  problem_of,
)

_MODULES = "modules.json"
_CONFIG = "config_sentence_transformers.json"
_CROSS_ENCODER = "CrossEncoder"  # `model_type` there
# Key of what a cross-encoder applies to its logits: in `_CONFIG` from 5.4 on;
# before, and without a list of modules, under the first key of `config.json`.
# Before 4 it was the value of the second key.
_ACTIVATION = "activation_fn"
MARKS = ("sentence_transformers", "sbert_ce_default_activation_function")
_LENGTH = (declaration(ModelSettings, "max_seq_length"), NULL)
# Earlier releases named it after the kind of the model; the first is read.
_ENCODER_CONFIGS = tuple(
  f"sentence_{kind}_config.json"
  for kind in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta")
)
_ENCODER_CONFIG = _ENCODER_CONFIGS[0]
_KERNEL, _BIAS = (f"{PROJECTION_SCOPE}/kernel", f"{PROJECTION_SCOPE}/bias")

# Modules that can be converted; the last two are optional.
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")

# What a cross-encoder may apply to its logits, by its name in `model.json`.
_OF_LOGITS = {
  "sigmoid": "torch.nn.modules.activation.Sigmoid",
  "identity": "torch.nn.modules.linear.Identity",
}

# Keys of poolings in the older form.
_OLD_POOLINGS = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_max_tokens": "max",
  "pooling_mode_mean_tokens": "mean",
  "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
  "pooling_mode_weightedmean_tokens": "weightedmean",
  "pooling_mode_lasttoken": "lasttoken",
}

_ACTIVATIONS = {
  "torch.nn.modules.activation.Tanh": "tanh",
  "torch.nn.modules.linear.Identity": "linear",
}

# Settings of which only one value can be converted.
_OF_VECTORS = {
  "module_input_name": "sentence_embedding",
  "module_output_name": "sentence_embedding",
  "use_residual": False,
}
_OF_ENCODER = {
  "transformer_task": "feature-extraction",
  "modality_config": {
    "text": {"method": "forward", "method_output_name": "last_hidden_state"}
  },
  "module_output_name": "token_embeddings",
}
_OF_CROSS_ENCODER = {"transformer_task": "sequence-classification"}


class SentenceModel(NamedTuple):
  """A folder of sentence-transformers: pooling, projection, prompts, length."""

  encoder_dir: str  # Hugging Face folder of the encoder
  spec: EmbeddingSpec
  projection: dict[str, np.ndarray]  # float32, by checkpoint name
  max_length: int | None  # in tokens; None for that of the tokenizer
  lowercases: bool  # even if the tokenizer keeps case
  truncate_dim: int | None  # values of a vector by default; None for all


class CrossEncoder(NamedTuple):
  """A folder of a cross-encoder, or of another model of transformers."""

  encoder_dir: str
  activation: str | None  # of the logits, by `_OF_LOGITS`; None: unsaid
  prompt: str  # before first texts
  max_length: int | None = None
  lowercases: bool = False


# Reading


def read(folder: str) -> SentenceModel | None:
  """Reads a folder, except for its encoder; None without sentence vectors."""
  if not os.path.exists(os.path.join(folder, _MODULES)):
    return None
  (written,) = read_files(folder, _CONFIG)
  if written.get("model_type") == _CROSS_ENCODER:
    return None
  paths = _module_paths(folder)
  encoder_dir = paths["Transformer"]
  prompts, default_prompt = _read_prompts(folder, "Normalize" in paths)
  spec = EmbeddingSpec(
    pooling=_read_pooling(paths["Pooling"], any(prompts.values())),
    normalize="Normalize" in paths,
    prompts=prompts,
    default_prompt=default_prompt,
  )
  projection = {}
  if "Normalize" in paths:
    _read_config(paths["Normalize"], {}, _OF_VECTORS)
  if "Dense" in paths:
    spec, projection = _read_dense(paths["Dense"], encoder_dir, spec)
  max_length, lowercases = _read_encoder(encoder_dir, _OF_ENCODER)
  return SentenceModel(
    *(encoder_dir, spec, projection, max_length, lowercases),
    written.get("truncate_dim"),
  )


def read_cross_encoder(folder: str) -> CrossEncoder:
  """Reads a folder without sentence vectors, except for its encoder."""
  path, encoder_dir, encoder, written, prompt = folder, folder, (), {}, ""
  # The package ignores its config without the list of modules.
  if os.path.exists(os.path.join(folder, _MODULES)):
    path = os.path.join(folder, _CONFIG)
    (written,) = read_files(folder, _CONFIG)
    json_files.check_values(written, {"keep_in_fp32_modules": []}, path)
    encoder_dir = _module_paths(folder, _ORDER[:1])["Transformer"]
    encoder = _read_encoder(encoder_dir, _OF_CROSS_ENCODER)
    prompts, default = _read_prompts(folder, False, _CROSS_ENCODER)
    prompt = prompts.get(default, "")
  (config,) = read_files(encoder_dir, "config.json")
  mark, old_mark = map(config.get, MARKS)
  name = (mark or {}).get(_ACTIVATION) or old_mark
  activation = _read_activation(path, written.get(_ACTIVATION) or name)
  return CrossEncoder(encoder_dir, activation, prompt, *encoder)


def _read_activation(path: str, name: str | None) -> str | None:
  """Name here of what is applied to logits, by the name of its class."""
  for ours, theirs in _OF_LOGITS.items():
    if name in (theirs, f"torch.nn.{theirs.rpartition('.')[2]}"):
      return ours
  if name:
    raise InputError(
      f"{path}: activation_fn is {name}; only Sigmoid and Identity of torch.nn"
      " can be converted. Name Identity for the logits"
    )
  return None


def _module_paths(
  folder: str, required: Sequence[str] = _ORDER[:2]
) -> dict[str, str]:
  """Folder of each module, by the name of its class."""
  path = os.path.join(folder, _MODULES)
  modules = json_files.read(path, [{"type": str, "path": str}])
  types = [module["type"] for module in modules]
  classes = [name.rpartition(".")[2] for name in types]
  are_known = all(name.startswith("sentence_transformers.") for name in types)
  others = _ORDER[2:] if len(required) > 1 else ()
  optional = [name for name in others if name in classes]
  if not are_known or classes != [*required, *optional]:
    raise InputError(
      f"{path}: its modules are {', '.join(types)}."
      " Only Transformer and Pooling, then at most one Dense and one Normalize,"
      " in this order, or the Transformer of a cross-encoder can be converted"
    )
  for module in modules:
    name = module["path"]
    if os.path.isabs(name) or ".." in name.split("/"):
      raise InputError(f"{path}: names {name}, which is outside its folder")
  return {
    name: os.path.join(folder, module["path"]) if module["path"] else folder
    for name, module in zip(classes, modules)
  }


def _read_config(
  folder: str, schema: Mapping[str, Any], supported: Mapping[str, Any]
) -> dict[str, Any]:
  """Reads the `config.json` of a module; {} if it may be and is missing."""
  path = os.path.join(folder, "config.json")
  if not schema and not os.path.exists(path):
    return {}
  config = json_files.read(path, schema)
  json_files.check_values(config, supported, path)
  return config


def _read_pooling(folder: str, has_prompts: bool) -> str:
  config = _read_config(
    folder,
    {"pooling_mode?": (str, list)} | {f"{key}?": bool for key in _OLD_POOLINGS},
    {"include_prompt": True} if has_prompts else {},
  )
  old = [name for key, name in _OLD_POOLINGS.items() if config.get(key)]
  found = config.get("pooling_mode", old or "mean")
  modes = [found] if isinstance(found, str) else found
  if len(modes) != 1 or modes[0] not in POOLINGS:
    raise InputError(
      f"{folder}/config.json: its pooling is {' and '.join(map(str, modes))};"
      f" only one of {', '.join(POOLINGS)} can be converted"
    )
  return modes[0]


def _read_dense(
  folder: str, encoder_dir: str, spec: EmbeddingSpec
) -> tuple[EmbeddingSpec, dict[str, np.ndarray]]:
  """The spec with the projection of a Dense module, and its variables."""
  path = os.path.join(encoder_dir, "config.json")
  hidden_size = json_files.read(path, {"hidden_size": int})["hidden_size"]
  config = _read_config(
    folder,
    {"in_features": int, "out_features": int, "activation_function?": str},
    _OF_VECTORS | {"in_features": hidden_size},
  )
  tanh, _ = _ACTIVATIONS
  activation = config.get("activation_function", tanh)
  if activation not in _ACTIVATIONS:
    raise InputError(
      f"{folder}/config.json: activation_function is {activation}; only"
      f" {' and '.join(_ACTIVATIONS)} can be converted"
    )
  tensors, file = huggingface_weights.read(folder)
  width = config["out_features"]
  # Dense has no bias if the config says so.
  tensors.setdefault("linear.bias", np.zeros(width, np.float32))
  shapes = {name: tensor.shape for name, tensor in tensors.items()}
  expected = {
    "linear.weight": (width, config["in_features"]),
    "linear.bias": (width,),
  }
  if shapes != expected:
    raise InputError(
      f"{file}: has {shapes}, but by its config {expected}. Download it again"
    )
  spec = dataclasses.replace(
    spec, projection_dim=width, projection_activation=_ACTIVATIONS[activation]
  )
  kernel = np.ascontiguousarray(tensors["linear.weight"].T, np.float32)
  bias = tensors["linear.bias"].astype(np.float32)
  return spec, {_KERNEL: kernel, _BIAS: bias}


def _read_prompts(
  folder: str, is_normalized: bool, model_type: str = "SentenceTransformer"
) -> tuple[dict[str, str], str | None]:
  """Prompts by name, and the name of the default prompt."""
  path = os.path.join(folder, _CONFIG)
  if not os.path.exists(path):
    return {}, None
  config = json_files.read(
    path,
    {
      "prompts?": dict,
      "default_prompt_name?": (str, NULL),
      "truncate_dim?": (int, NULL),
      "model_type?": str,
      "similarity_fn_name?": (str, NULL),
    },
  )
  json_files.check_values(config, {"model_type": model_type}, path)
  similarity = config.get("similarity_fn_name") or "cosine"
  # Of normalized vectors, the dot product is the cosine.
  if similarity != "cosine" and not (similarity == "dot" and is_normalized):
    raise InputError(
      f"{path}: similarity_fn_name is {similarity}, but vectors are compared by"
      " their cosine here. Only models of normalized vectors can be converted"
      " from dot"
    )
  prompts = {
    name: prompt or "" for name, prompt in config.get("prompts", {}).items()
  }
  default = config.get("default_prompt_name")
  problem = problem_of({"prompts": prompts, "default_prompt": default})
  if problem:
    raise InputError(f"{path}: {problem}")
  return prompts, default


def _read_encoder(
  folder: str, supported: Mapping[str, Any]
) -> tuple[int | None, bool]:
  """Maximum length of a Transformer module, and whether it lower-cases."""
  paths = (os.path.join(folder, name) for name in _ENCODER_CONFIGS)
  path = next(filter(os.path.exists, paths), None)
  if path is None:
    return None, False
  config = json_files.read(
    path, {"max_seq_length?": _LENGTH, "do_lower_case?": (bool, NULL)}
  )
  max_seq_length = config.pop("max_seq_length", None)
  lowercases = bool(config.pop("do_lower_case", None))
  config.pop("unpad_inputs", None)  # is about speed
  json_files.check_values(config, supported, path)
  others = [
    key for key, value in config.items() if key not in _OF_ENCODER and value
  ]
  if others:
    raise InputError(
      f"{path}: {', '.join(others)} cannot be converted, only a maximum length"
      " and lower-casing"
    )
  return max_seq_length, lowercases


# Writing


def write(
  folder: str,
  description: Mapping[str, Any],
  projection: Mapping[str, np.ndarray],
  hidden_size: int,
) -> None:
  """Writes what makes a Hugging Face folder one of sentence-transformers."""
  spec = from_json(description["embedding"])
  truncate_dim = description["embedding"].get("truncate_dim")
  # The package uses "document", which it adds, before "passage".
  passage = {"document": spec.passage_prefix} if spec.passage_prefix else {}
  modules = ["Transformer", "Pooling"]
  modules += ["Dense"] * bool(projection) + ["Normalize"] * spec.normalize
  paths = ["", *(f"{n}_{name}" for n, name in enumerate(modules[1:], start=1))]
  # The older form of classes and fields: old and new releases load it.
  written = {
    _MODULES: [
      {
        "idx": index,
        "name": str(index),
        "path": path,
        "type": f"sentence_transformers.models.{name}",
      }
      for index, (name, path) in enumerate(zip(modules, paths))
    ],
    _CONFIG: {
      "model_type": "SentenceTransformer",
      "prompts": {**spec.prompts, **passage},
      "default_prompt_name": spec.default_prompt,
      "similarity_fn_name": "cosine",
      **({"truncate_dim": truncate_dim} if truncate_dim else {}),
    },
    _ENCODER_CONFIG: {
      "max_seq_length": description["max_seq_length"],
      "do_lower_case": False,  # the tokenizer does it
    },
    f"{paths[1]}/config.json": {
      "word_embedding_dimension": hidden_size,
      **{key: name == spec.pooling for key, name in _OLD_POOLINGS.items()},
      "include_prompt": True,
    },
  }
  if projection:
    activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    written[f"{paths[2]}/config.json"] = {
      "in_features": hidden_size,
      "out_features": spec.projection_dim,
      "bias": True,
      "activation_function": activations[spec.projection_activation],
    }
  _write_files(folder, written)
  if projection:
    huggingface_weights.write(
      os.path.join(folder, paths[2], "model.safetensors"),
      {
        "linear.weight": np.ascontiguousarray(projection[_KERNEL].T),
        "linear.bias": projection[_BIAS],
      },
    )


def mark(activation: str) -> dict[str, Any]:
  """Entry of `config.json` for what is applied to logits, by its name here."""
  return {MARKS[0]: {_ACTIVATION: _OF_LOGITS[activation]}}


def write_cross_encoder(folder: str, description: Mapping[str, Any]) -> None:
  """Writes what makes a Hugging Face folder a cross-encoder from 5.4 on."""
  prefix = description.get("query_prefix")
  kind = f"sentence_transformers.models.{_ORDER[0]}"
  _write_files(
    folder,
    {
      _MODULES: [{"idx": 0, "name": "0", "path": "", "type": kind}],
      _CONFIG: {
        "model_type": _CROSS_ENCODER,
        _ACTIVATION: _OF_LOGITS[description["activation"]],
        "prompts": {"query": prefix} if prefix else {},
        "default_prompt_name": "query" if prefix else None,
      },
      _ENCODER_CONFIG: {
        "max_seq_length": description["max_seq_length"],
        "do_lower_case": False,  # the tokenizer does it
        **_OF_CROSS_ENCODER,
      },
    },
  )


def _write_files(folder: str, written: Mapping[str, Any]) -> None:
  """Writes JSON files by their names."""
  for name, value in written.items():
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    json_files.write(path, value)


def find_projection(
  variables: Mapping[str, np.ndarray],
  description: Mapping[str, Any],
  source: str,
) -> dict[str, np.ndarray]:
  """Variables of the projection in `model.json`; empty if it has none."""
  found = {n: variables[n] for n in (_KERNEL, _BIAS) if n in variables}
  width = from_json(description["embedding"]).projection_dim
  widths = {tensor.shape[-1] for tensor in found.values()}
  if (len(found), widths) != ((2, {width}) if width else (0, set())):
    raise InputError(
      f"{source}: has a projection of width {sorted(widths) or 'none'}, but by"
      f" model.json {width}. Restore the files of its training run"
    )
  return found
