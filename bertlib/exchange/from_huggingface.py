"""Hugging Face folders as models of this project.

Weights are only renamed and transposed. A tensor without a counterpart is an
error, so that no weight is dropped silently.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bertlib.checkpoints import checkpoint_files, electra_weights, model_folder
from bertlib.cli import terminal
from bertlib.cli.errors import InputError, some_of
from bertlib.data import vocabulary
from bertlib.exchange import (
  huggingface_tokenizer,
  huggingface_weights,
  rewrite,
  sentence_transformers,
  tensor_names,
)
from bertlib.io import files, json_files, model_files, output_folders
from bertlib.settings.embedding_spec import SCRIPT
from bertlib.task.task_record import HuggingFaceModel, TaskRecord

# Sizes of a BertBackbone of KerasHub, by the names of transformers.
_PRESET_CONFIG = {
  "attention_probs_dropout_prob": "dropout",
  "hidden_dropout_prob": "dropout",
  "hidden_size": "hidden_dim",
  "intermediate_size": "intermediate_dim",
  "max_position_embeddings": "max_sequence_length",
  "num_attention_heads": "num_heads",
  "num_hidden_layers": "num_layers",
  "type_vocab_size": "num_segments",
  "vocab_size": "vocabulary_size",
}

# Hugging Face's names of activations, and those of modeling.py.
ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_new": "gelu_new",
  "gelu_pytorch_tanh": "gelu_tanh",
  "linear": "linear",
  "relu": "relu",
  "tanh": "tanh",
}

# Alternative names in Hugging Face files: the LayerNorm weights of 2018, and
# the encoder of a bare model, such as BertModel.
_ALTERNATIVE_NAMES = (
  (r"LayerNorm\.gamma$", "LayerNorm.weight"),
  (r"LayerNorm\.beta$", "LayerNorm.bias"),
  (r"^(embeddings(?:_project)?|encoder|pooler|transformer)\.", r"{}.\1."),
)

# The keys of a DistilBertConfig that have another name here, and what is the
# same in all of these models.
DISTILBERT_KEYS = {
  "attention_probs_dropout_prob": "attention_dropout",
  "classifier_dropout": "seq_classif_dropout",
  "hidden_act": "activation",
  "hidden_dropout_prob": "dropout",
  "hidden_size": "dim",
  "intermediate_size": "hidden_dim",
  "num_attention_heads": "n_heads",
  "num_hidden_layers": "n_layers",
}
OF_KIND = {
  "distilbert": {"pooler_act": "relu", "type_vocab_size": 0},
  "electra": {"pooler_act": "gelu"},
}

# Classes of other models, and prefixes of tensors that wrap no BERT.
_OTHER_MODEL = re.compile(r"(?!Bert)\w+(Model$|For[A-Z])")
_MODELS = (*tensor_names.PREFIXES.values(), "ernie", "nezha", "splinter")

# Class of ELECTRA's discriminator, whose generator is another model there.
_OF_NETWORKS = "ElectraForPreTraining"

# Copies of tied tensors, which TensorFlow's graph has once.
_TIED_COPIES = {
  "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
  "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# Further outputs of BGE-M3, beside its vectors.
_HEADS_OF_BGE = ("colbert_linear.pt", "sparse_linear.pt")

# Key of `config.json` for entries of `model.json` without a key of their own.
TASK_PARAMS = "task_specific_params"

_CONFIG_KEYS = sorted(
  {
    *model_folder.SIZES,
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "initializer_range",
  }
)

# Keys of `config.json` that describe the files, not the model.
FILE_KEYS = ("_name_or_path", "dtype", "torch_dtype", "transformers_version")


class ConvertedModel(NamedTuple):
  """A model as this project has it, and what was done to get it."""

  source: str  # folder that it was read from
  config: dict[str, Any]  # of `bert_config.json`
  vocab: bytes  # of the file `vocab_name`
  variables: dict[str, np.ndarray]  # float32, by checkpoint name
  description: dict[str, Any]  # of `model.json`
  parts: list[str]  # of `tensor_names`
  notes: list[str]  # lines for the user
  vocab_name: str = model_files.VOCAB

  def write(self, folder: str) -> None:
    """Writes the model's files to a folder."""
    path_of = functools.partial(os.path.join, folder)
    checkpoint = path_of(model_files.CHECKPOINT)
    checkpoint_files.write_variables(checkpoint, self.variables)
    vocab_path = path_of(self.vocab_name)
    with open(vocab_path, "wb") as file:
      file.write(self.vocab)
    hashed = {"vocab_sha256": vocabulary.hash_of(vocab_path)}
    json_files.write(path_of(model_files.CONFIG), self.config)
    description = self.description | hashed
    json_files.write(path_of(model_files.DESCRIPTION), description)
    # What is not read here is refused now, not when the model is used.
    try:
      with terminal.quiet(logging.ERROR):
        model_folder.check(folder)
        config = model_folder.load_config(path_of(model_files.CONFIG))
        vocabulary.load_tokenizer(
          vocab_path, self.description["do_lower_case"], config.vocab_size
        )
    except InputError as error:
      reason = str(error).replace(path_of(""), "")
      raise InputError(
        f"{self.source}: cannot be used as converted ({reason})"
      ) from error


def convert(
  source_dir: str,
  target_dir: str,
  tasks: Iterable[TaskRecord] = (),  # that may describe the model
  vocab_file: str | None = None,  # None: the vocabulary in `source_dir`
  # None for the value in `source_dir`, or else by the capital letters of the
  # vocabulary.
  do_lower_case: bool | None = None,
  overwrite: bool = False,
  as_reranker: bool = False,  # one output of two labels, see `_as_one_output`
) -> list[str]:
  """Writes a Hugging Face folder as a checkpoint; returns what was done."""
  model = read(source_dir, tasks, vocab_file, do_lower_case, as_reranker)
  inputs = [vocab_file, *files.matching_below(source_dir, "*")]
  with output_folders.atomic_files(target_dir, overwrite, inputs) as folder:
    model.write(folder)
  path = os.path.join(target_dir, model_files.CHECKPOINT)
  return [*model.notes, written(path, model.variables, model.parts)]


def read(
  folder: str,
  tasks: Iterable[TaskRecord] = (),
  vocab_file: str | None = None,
  do_lower_case: bool | None = None,
  as_reranker: bool = False,
) -> ConvertedModel:
  """Reads a Hugging Face folder, also one of sentence-transformers."""
  if os.path.isdir(os.path.join(folder, electra_weights.DISCRIMINATOR)):
    return _read_networks(folder, tasks, vocab_file, do_lower_case)
  sentence = sentence_transformers.read(folder)
  module = sentence or sentence_transformers.read_cross_encoder(folder)
  encoder_dir = module.encoder_dir
  config = read_config(encoder_dir)
  if do_lower_case is None and module.lowercases:
    do_lower_case = True
  tokenizer = huggingface_tokenizer.read(
    encoder_dir, vocab_file, config["vocab_size"], do_lower_case
  )
  variables, parts, notes = _read_weights(encoder_dir, config)
  notes += tokenizer.notes
  notes += left_out(
    name for name in _HEADS_OF_BGE if name in os.listdir(folder)
  )
  config["do_lower_case"] = tokenizer.do_lower_case
  longest = model_folder.max_tokens(config)
  description = {
    "max_seq_length": min(module.max_length or tokenizer.max_length, longest),
    "do_lower_case": tokenizer.do_lower_case,
  }
  architecture = None if sentence else _architecture(config, parts, folder)
  if as_reranker:
    is_labeler = architecture == "BertForSequenceClassification"
    about = _as_one_output(variables, config, is_labeler, folder)
    # That of two labels is of their two logits.
    module = module._replace(activation=None) if about else module
    notes += about
  if sentence:
    variables |= sentence.projection
    description = {"script": SCRIPT} | description
    description["embedding"] = sentence.spec.as_json()
    if dim := sentence.truncate_dim:
      description["embedding"]["truncate_dim"] = dim
      notes.append(
        f"note: truncate_dim is {dim}, but vectors have all values here;"
        f" encode(texts, dim={dim}) gives as many"
      )
  else:
    description = _describe(
      description,
      config,
      variables["output_bias"].size if "label head" in parts else 0,
      architecture,
      module,
      tasks,
    )
  if limit := tokenizer.max_input_chars_per_word:
    description["max_input_chars_per_word"] = limit
  for key in (*FILE_KEYS, *sentence_transformers.MARKS):
    config.pop(key, None)
  return ConvertedModel(
    folder,
    config,
    tokenizer.vocab,
    variables,
    description,
    [*parts],
    notes,
    tokenizer.file,
  )


def _read_networks(folder: str, tasks: Iterable[TaskRecord], *options: Any):
  """Reads the folders of ELECTRA's two networks as one model."""
  model, generator = (
    read(os.path.join(folder, name), (), *options)
    for name in (electra_weights.DISCRIMINATOR, electra_weights.GENERATOR)
  )
  module = sentence_transformers.CrossEncoder(folder, None, "")
  variables, config = electra_weights.joined(
    (model.variables, model.config),
    (generator.variables, generator.config),
    folder,
  )
  return model._replace(
    source=folder,
    config=config,
    variables=variables,
    description=_describe(
      model.description, config, 0, _OF_NETWORKS, module, tasks
    ),
    parts=[*model.parts, "generator"],
    notes=[*model.notes, *generator.notes],
  )


def _as_one_output(
  variables: dict[str, np.ndarray],
  config: dict[str, Any],
  is_labeler: bool,  # of texts or pairs
  source: str,
) -> list[str]:
  """Makes one output of two labels, and a reranker of what has one."""
  size = variables["output_bias"].size if is_labeler else 0
  if size not in (1, 2):
    raise InputError(
      f"--to=reranker: {source} has {size or 'no'} labels of pairs; a reranker"
      " is made of one or two. Leave out the flag"
    )
  first, second = ([*label_names(config), "0", "1"])[:2]
  for key in ("id2label", "label2id", "num_labels", "problem_type"):
    config.pop(key, None)
  config.pop(TASK_PARAMS, None)
  if size == 1:
    return []
  for name in ("output_weights", "output_bias"):
    zero, one = variables[name]
    variables[name] = (one - zero)[np.newaxis]
  return [
    f"one score of two labels: the logit of {second} less that of {first}, of"
    f" which the sigmoid is the probability of {second}"
  ]


def _architecture(
  config: Mapping[str, Any], parts: Iterable[str], source: str
) -> str:
  """Class of the model: the stated one, else by its heads."""
  stated, kind = config.get("architectures") or (), config["model_type"]
  if "pooler" not in parts:
    stated = (*stated, "BertForTokenClassification")
  try:
    found = tensor_names.choose_architecture(parts, stated, kind, source)
  except InputError:  # heads of no single class, of which the encoder is used
    return "BertModel"
  if found == _OF_NETWORKS:  # without its generator
    return "BertModel"
  if found == "BertForSequenceClassification" and "pooler" not in parts:
    raise InputError(
      f"{source}: has no pooler, which {found} needs. If it tags words, set"
      " architectures in config.json to BertForTokenClassification"
    )
  return found


# Config and vocabulary


def read_config(folder: str) -> dict[str, Any]:
  """The config of a folder; of 2019 it has the name of ours."""
  path = os.path.join(folder, "config.json")
  if not os.path.exists(path):
    path = os.path.join(folder, model_files.CONFIG)
  adapter = os.path.join(folder, model_files.ADAPTER)
  if os.path.exists(adapter):
    raise InputError(
      f"{adapter}: is of an adapter, such as LoRA. Merge it with its model by"
      " merge_and_unload of PEFT, and convert what save_pretrained writes then"
    )
  supported = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
  }
  config = json_files.read(path, dict)
  json_files.check_values(config, supported, path)
  kinds = ", ".join(f'"{kind}"' for kind in model_folder.MODEL_TYPES)
  kind = config.get("model_type", "bert")
  if kind not in model_folder.MODEL_TYPES:
    raise InputError(
      f"{path}: model_type is {json_files.dumps(kind)}; only {kinds} can be"
      " converted"
    )
  for name, module in (config.get("auto_map") or {}).items():
    if name.startswith("AutoModel"):
      raise InputError(
        f"{path}: by auto_map, {module} computes the model, which may differ"
        " from BERT. Remove auto_map if it does not"
      )
  for name in config.get("architectures") or ():
    if "model_type" not in config and _OTHER_MODEL.match(name):
      raise InputError(
        f"{path}: architectures has {name}, and there is no model_type. Add"
        f' "model_type", if the model is of one of {kinds}'
      )
  config["model_type"] = kind
  if config.get("class_name") == "ElectraBackbone":
    raise InputError(
      f"{path}: is of KerasHub's ElectraBackbone, which is not read. Name a"
      " folder of transformers"
    )
  if config.get("class_name") == "BertBackbone":
    config = {"model_type": kind, **_config_of_preset(path)}
  if kind == "distilbert":
    names = {theirs: ours for ours, theirs in DISTILBERT_KEYS.items()}
    config = {names.get(key, key): value for key, value in config.items()}
  config |= OF_KIND.get(kind, {})
  config = check_config(path, config, ACTIVATIONS)
  offset = model_folder.position_offset(config)
  if offset:
    config["position_offset"] = offset
  if offset or kind == "electra":  # a dropout before the pooler
    dropout = config.get("classifier_dropout")
    if dropout is None:
      dropout = config["hidden_dropout_prob"]
    config["pooler_dropout_prob"] = dropout
  return config


def _config_of_preset(path: str) -> dict[str, Any]:
  """The config of a BertBackbone of KerasHub, by the names of transformers."""
  schema = {"config": dict.fromkeys(_PRESET_CONFIG.values(), (int, float))}
  sizes = json_files.read(path, schema)["config"]
  # What KerasHub does not say is the same in all of these models.
  return {"hidden_act": "gelu_new", "initializer_range": 0.02} | {
    name: sizes[key] for name, key in _PRESET_CONFIG.items()
  }


def check_config(
  path: str, config: Mapping[str, Any], activations: Mapping[str, str]
) -> dict[str, Any]:
  """Checks a model's config; renames `hidden_act` for the other format."""
  model_folder.check_config(path, config, _CONFIG_KEYS)
  name = config["hidden_act"]
  if name not in activations:
    raise InputError(
      f"{path}: hidden_act {json_files.dumps(name)} cannot be converted; these"
      f" can: {', '.join(activations)}"
    )
  return {**config, "hidden_act": activations[name]}


# Weights


def read_variables(folder: str) -> dict[str, np.ndarray]:
  """Weights of a Hugging Face folder by checkpoint name, float32."""
  sentence = sentence_transformers.read(folder)
  encoder_dir = sentence.encoder_dir if sentence else folder
  variables, _, _ = _read_weights(encoder_dir, read_config(encoder_dir))
  return variables | (sentence.projection if sentence else {})


def _read_weights(
  folder: str, config: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, list], list[str]]:
  """Variables by checkpoint name, parts of the model, and what was done."""
  tensors, file = huggingface_weights.read(folder)
  notes = [f"read: {file}, {len(tensors)} tensors"]
  model_type = config["model_type"]
  tensors, removed = _with_standard_names(tensors, file, model_type)
  tensors, left_out = _without_copies(tensors, file, model_type)
  tensors, widened = as_float32(tensors, file)
  parts = tensor_names.find_parts(tensors, "huggingface", config, file)
  variables = {
    row.tensorflow: row.convert(tensors[row.huggingface])
    for row in itertools.chain(*parts.values())
  }
  return variables, parts, notes + removed + left_out + widened


def _with_standard_names(
  tensors: Mapping[str, np.ndarray], source: str, model_type: str
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Renames tensors with alternative names to those of the name table."""
  # DistributedDataParallel, torch.compile and classes around a model put words
  # such as module. and _orig_mod. before all names.
  shared = itertools.takewhile(
    lambda words: len({*words}) == 1 and words[0] not in _MODELS,
    zip(*(name.split(".") for name in tensors)),
  )
  prefix = "".join(f"{words[0]}." for words in shared)
  renamed = {}
  for old, tensor in tensors.items():
    name = old.removeprefix(prefix)
    for pattern, replacement in _ALTERNATIVE_NAMES:
      replacement = replacement.format(tensor_names.PREFIXES[model_type])
      name = re.sub(pattern, replacement, name)
    if name in renamed:
      raise InputError(f"{source}: has {name} twice, once named {old}")
    renamed[name] = tensor
  note = f"prefix taken off all names: {prefix}"
  return renamed, [note] if prefix else []


def _without_copies(
  tensors: Mapping[str, np.ndarray], source: str, model_type: str
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Leaves out position ids, copies of tied tensors and a second pooler."""
  unused = [".position_ids"]
  if tensor_names.OUTPUT_OF_HEAD in tensors:
    unused += ["roberta.pooler.dense.weight", "roberta.pooler.dense.bias"]
  kept = {
    name: tensor
    for name, tensor in tensors.items()
    if not name.endswith((*unused,))
  }
  for pair in _TIED_COPIES.items():
    copy, original = (tensor_names.renamed(n, model_type) for n in pair)
    if copy in kept and copy != original:
      tensor = kept.pop(copy)
      if not np.array_equal(kept.setdefault(original, tensor), tensor):
        raise InputError(
          f"{source}: {copy} differs from {original}; TensorFlow's graph has"
          " one tensor for both"
        )
  return kept, left_out(tensors.keys() - kept.keys())


def written(
  path: str, tensors: Mapping[str, np.ndarray], parts: Iterable[str]
) -> str:
  """A line about a file of weights."""
  size = sum(tensor.size for tensor in tensors.values())
  pooler = "" if "pooler" in parts else ", no pooler"
  return (
    f"written: {path}, {len(tensors)} tensors, {size:,} parameters"
    f" ({', '.join(parts)}{pooler})"
  )


def left_out(names: Iterable[str]) -> list[str]:
  """A line with the names of tensors that are left out, if there are any."""
  names = sorted(names)
  return [f"left out: {', '.join(names)}"] if names else []


def as_float32(
  tensors: Mapping[str, np.ndarray], source: str
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Widens 16-bit tensors to float32, which is exact, and rounds float64."""
  known = ("float32", "float16", "bfloat16", "float64")
  dtypes = {name: tensor.dtype.name for name, tensor in tensors.items()}
  others = [f"{n} ({d})" for n, d in sorted(dtypes.items()) if d not in known]
  if others:
    raise InputError(
      f"{source}: not convertible to float32: {some_of(others, 3)}"
    )
  rewrite.warn_if_not_finite(source, tensors)
  wide = {n: t.astype(np.float32, copy=False) for n, t in tensors.items()}
  narrow = [dtype for dtype in dtypes.values() if dtype.endswith("16")]
  num_double = [*dtypes.values()].count("float64")
  rounded = f"rounded: {num_double} tensors of float64 to float32"
  notes = [rounded] * bool(num_double)
  if narrow:
    kinds = sorted({*narrow})
    notes.append(
      f"widened: {len(narrow)} tensors of {' and '.join(kinds)} to float32,"
      f" exactly; --dtype={kinds[0]} writes them back"
    )
  return wide, notes


# model.json


def _describe(
  description: dict[str, Any],
  config: Mapping[str, Any],
  num_labels: int,
  architecture: str,
  module: sentence_transformers.CrossEncoder,
  tasks: Iterable[TaskRecord],
) -> dict[str, Any]:
  """`model.json` with the entries of the model's task."""
  kept = config.get(TASK_PARAMS) or {}  # by `to_huggingface`
  model = HuggingFaceModel(
    architecture,
    label_names(config) if num_labels else [],
    num_labels,
    description["max_seq_length"],
    config,
    module.activation,
    module.prompt,
    {*kept},
  )
  for task in tasks:
    entries = task.from_huggingface(model)
    if entries is not None:
      kept = kept.get(task.script) or {}
      return {"script": task.script} | description | entries | kept
  return description


def label_names(config: Mapping[str, Any]) -> list[str]:
  """Names of `id2label` in the order of the outputs, numbers as text."""
  names, labels = config.get("id2label") or {}, []
  ids = [*map(str, range(len(names)))]
  if isinstance(names, Mapping) and {*names} == {*ids}:
    labels = [str(names[key]) for key in ids]
  if len({*labels}) < len(names):
    raise InputError(
      f"config.json: id2label is {json_files.dumps(names):.80}; it must give"
      ' each output a name of its own, by "0", "1" and so on'
    )
  return labels
