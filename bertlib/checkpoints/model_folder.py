"""The folder of a model: config, `model.json`, vocabulary; their checks.

Imports no TensorFlow.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertlib.cli import lazy_module, option, terminal
from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.io import files, json_files, model_files
from bertlib.settings import model_description
from bertlib.settings.common import ModelSettings
from bertlib.task import task_record
from bertlib.task.task_record import TaskRecord

modeling = lazy_module.load("modeling")

# Config

# Required: they determine the shapes of the weights.
SIZES = (
  "vocab_size",
  "hidden_size",
  "num_hidden_layers",
  "num_attention_heads",
  "intermediate_size",
  "max_position_embeddings",
  "type_vocab_size",
)

_GENERATOR = ("generator_hidden_size", "generator_layers")

# Kinds of models whose formula is BERT's; the first have RoBERTa's positions.
_OF_ROBERTA = ("roberta", "xlm-roberta", "camembert")
MODEL_TYPES = ("bert", *_OF_ROBERTA, "distilbert", "electra")

# Type and range of each value; a float may be written as an integer.
_SCHEMA = {
  **dict.fromkeys(SIZES, (int, option.AT_LEAST_1)),
  "type_vocab_size": (int, option.NOT_NEGATIVE),
  "position_offset": (int, option.NOT_NEGATIVE),
  "pooler_act": (str, None),
  "pooler_dropout_prob": (float, option.FRACTION_BELOW_1),
  "embedding_size": (int, option.AT_LEAST_1),
  # Those of a generator, as fractions of the model's.
  **dict.fromkeys(_GENERATOR, (float, option.FRACTION)),
  "classifier_dropout": (float, option.FRACTION_BELOW_1),
  "qa_dropout": (float, option.FRACTION_BELOW_1),
  "hidden_act": (str, None),
  "hidden_dropout_prob": (float, option.FRACTION_BELOW_1),
  "attention_probs_dropout_prob": (float, option.FRACTION_BELOW_1),
  "initializer_range": (float, option.NOT_NEGATIVE),
  "layer_norm_eps": (float, option.POSITIVE),
}

# Keys, with any value, that are read elsewhere or do not change what this model
# computes: those of transformers, and the pooler's of multilingual models.
_HARMLESS = re.compile(
  r"_\w+|\w+_token_id|output_\w+|use_(cache|bfloat16)|return_dict|torchscript"
  r"|(torch_)?dtype|transformers_version|architectures|language|name"
  r"|id2label|label2id|num_labels|problem_type|finetuning_task"
  r"|task_specific_params|do_lower_case|tokenizer_class|vocab_file"
  r"|gradient_checkpointing|chunk_size_feed_forward"
  r"|pooler_(fc_size|num_\w+|size_per_head)|summary_\w+"
  r"|sinusoidal_pos_embds|tie_weights_"
)

# Further keys of BERT's configs, with the values that this model has.
_FIXED = {
  "add_cross_attention": [False],
  "cross_attention_hidden_size": [None],
  "directionality": ["bidi"],
  "is_decoder": [False],
  "is_encoder_decoder": [False],
  "model_type": MODEL_TYPES,
  "pooler_type": ["first_token_transform"],
  "position_embedding_type": ["absolute"],
  "pruned_heads": [{}],
  "tie_encoder_decoder": [False],
  "tie_word_embeddings": [True],
}

_TYPE_NAMES = {int: "an integer", float: "a finite number", str: "text"}

# How to fix an invalid config, for error messages.
FIX = "Fix it, or name the model's bert_config.json"


def load_config(
  path: str,
  vocab_file: str | None = None,  # brings `vocab_size` if the file has none
) -> modeling.BertConfig:
  """Reads and checks a `bert_config.json`."""
  if not files.exists(path):
    raise InputError(f"{path}: cannot be read (no such file). {FIX}")
  config = modeling.BertConfig.from_dict(read_config(path, vocab_file))
  for key in ("hidden_act", "pooler_act"):
    try:
      modeling.get_activation(getattr(config, key))
    except ValueError as error:
      raise InputError(f"{path}: {key}: {error}") from error
  return config


def read_config(path: str, vocab_file: str | None = None) -> dict[str, Any]:
  """All values of a `bert_config.json` by key, checked; unknown keys too."""
  values = json_files.read(path, dict, FIX)
  if vocab_file and "vocab_size" not in values:
    values["vocab_size"] = len(vocabulary.read_entries(vocab_file))
  check_config(path, values)
  if offset := position_offset(values):
    values["position_offset"] = offset
  ignored = [
    f"{key} ({json_files.dumps(values[key], ensure_ascii=False)})"
    for key in sorted(values.keys() - _SCHEMA.keys())
    if not _HARMLESS.fullmatch(key)
    and (key not in _FIXED or values[key] not in _FIXED[key])
  ]
  if ignored:
    terminal.warn_once(f"{path}: ignored keys: {', '.join(ignored)}")
  return values


def position_offset(values: Mapping[str, Any]) -> int:
  """Row of the position of a first token, for the values of a config."""
  # That of RoBERTa follows the row of the padding token.
  is_roberta = values.get("model_type") in _OF_ROBERTA
  default = values.get("pad_token_id", 1) + 1 if is_roberta else 0
  return values.get("position_offset", default)


def max_tokens(values: Mapping[str, Any]) -> int:
  """Longest text of a model, in tokens, for the values of its config."""
  return values["max_position_embeddings"] - position_offset(values)


def check_config(
  path: str, values: Mapping[str, Any], required: Iterable[str] = SIZES
) -> None:
  """Refuses values that are not a model's config; `path` is for messages."""
  # `modeling.BertConfig` takes any keys, as in google-research/bert: a
  # misspelled one would be replaced by its default.
  for key in values.keys() - _SCHEMA.keys():
    for known in _SCHEMA:
      if _num_edits(key.lower(), known) <= 2:
        raise InputError(
          f"{path}: unknown key {key}. Rename it to {known}, or remove it"
        )
  missing = [key for key in required if key not in values]
  if missing:
    raise InputError(
      f"{path}: has no {', '.join(missing)}. Use the file that belongs to the"
      " checkpoint"
    )
  schema = dict(_SCHEMA)
  if values.get("model_type") in _OF_ROBERTA:  # whose positions follow it
    schema["pad_token_id"] = (int, option.NOT_NEGATIVE)
  for key, (kind, allowed) in schema.items():
    if key not in values or (key, values[key]) == ("classifier_dropout", None):
      continue
    is_of_kind = json_files.mismatch(values[key], kind) is None
    if not is_of_kind or (allowed and values[key] not in allowed):
      shown = json_files.shown(values[key])
      raise InputError(
        f"{path}: {key} is {shown}, but must be {_TYPE_NAMES[kind]}"
        f" {allowed or ''}".rstrip()
      )
  width, heads = values.get("hidden_size"), values.get("num_attention_heads")
  if width and heads and width % heads:
    raise InputError(
      f"{path}: num_attention_heads is {heads}, which does not divide"
      f" hidden_size, {width}. Use the file that belongs to the checkpoint"
    )


def _num_edits(first: str, second: str) -> int:
  """Characters by which two strings differ, as difflib aligns them."""
  changes = difflib.SequenceMatcher(None, first, second).get_opcodes()
  return sum(
    max(a_end - a, b_end - b)
    for kind, a, a_end, b, b_end in changes
    if kind != "equal"
  )


def check_max_seq_length(
  max_seq_length: int,
  config: Mapping[str, Any],
  minimum: int = 3,
  name: str = "--max_seq_length",  # what has the length, for the message
) -> None:
  """Refuses lengths outside `minimum` to `max_tokens` of the model."""
  longest, offset = max_tokens(config), position_offset(config)
  if not minimum <= max_seq_length <= longest:
    less = f" less its position_offset, {offset}" * bool(offset)
    raise InputError(
      f"{name}={max_seq_length} is not between {minimum} and the"
      f" model's max_position_embeddings{less}, {longest}"
    )


def num_weights(config: modeling.BertConfig) -> int:
  """Number of parameters of the encoder."""
  width, inner = config.hidden_size, config.intermediate_size
  rows = (
    config.vocab_size + config.max_position_embeddings + config.type_vocab_size
  )
  # Query, key, value and output of attention; then the feed-forward network.
  layer = 4 * width * (width + 1) + 2 * width * inner + inner + width
  layer += 2 * 2 * width  # two layer normalizations
  pooler = width * (width + 1)
  embedding_size = config.embedding_size or width
  embeddings = (rows + 2) * embedding_size
  if embedding_size != width:
    embeddings += (embedding_size + 1) * width
  return embeddings + config.num_hidden_layers * layer + pooler


def config_of(model: ModelSettings, least: int = 3) -> modeling.BertConfig:
  """Config of a model; InputError if it has no room for --max_seq_length."""
  is_new = not model.init_checkpoint
  vocab_file = model.vocab_file if is_new else None
  config = load_config(model.bert_config_file, vocab_file)
  check_max_seq_length(model.max_seq_length, vars(config), least)
  logging.info(
    "%s: %d layers, %d wide, %s weights",
    model.bert_config_file,
    config.num_hidden_layers,
    config.hidden_size,
    f"{num_weights(config):,}",
  )
  return config


def tokenizer_of(
  model: ModelSettings,
  config: modeling.BertConfig,
  finds_mask: bool = False,  # in texts, by its name
  needs_vocabulary: bool = True,
):
  """Tokenizer of a model; None without a vocabulary."""
  if not model.vocab_file:
    if needs_vocabulary:
      handle = model.bert_hub_module_handle
      raise InputError(
        f"{handle}: has no vocabulary; name it by --vocab_file"
        if handle and model.vocab_file is None
        else "--vocab_file is empty; name a vocab.txt"
      )
    return None
  tokenizer = vocabulary.tokenizer_of_model(
    model.vocab_file,
    vars(model),
    vars(config),
    init_checkpoint=model.init_checkpoint,
    finds_mask=finds_mask,
  )
  logging.info(
    "%s: %d entries, text %s",
    model.vocab_file,
    len(tokenizer.vocab),
    "is lower-cased" if model.do_lower_case else "keeps its case",
  )
  return tokenizer


# model.json

# What every model of a task has.
_REQUIRED = {"do_lower_case": bool, "max_seq_length": int}

# Config keys that must not change after training. The weights' shapes do not
# show all of them.
_FORMULA = ("pooler_act", "position_offset", "embedding_size")
FIXED_BY_TRAINING = (*SIZES, "hidden_act", *_FORMULA, *_GENERATOR)

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
    config = read_config(config_file)
    check_max_seq_length(
      description["max_seq_length"], config, name=f"{path}: max_seq_length"
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
    *(config.get(key) for key in SIZES),
    config.get("hidden_act", "gelu"),
    *(config[key] for key in _FORMULA if key in config),
  ]
  return hashlib.sha256(json_files.dumps(values).encode()).hexdigest()


def check_vocabulary(folder: str, description: Mapping[str, Any]) -> None:
  """Refuses a folder whose vocabulary is not the one of its training."""
  path = model_files.path_of(folder, "vocab_file")
  expected = description.get("vocab_sha256")
  # Folders of earlier versions have no hash.
  if not expected or not files.exists(path):
    return
  if vocabulary.hash_of(path) != expected:
    raise InputError(
      f"{path}: is not the vocabulary that the model was trained with (its hash"
      f" is not the one in {model_files.DESCRIPTION}). Restore it"
    )


# The folder of a run


def write_model_files(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  vocab_file: str | None,
  overwrite: bool = True,
) -> None:
  """Writes all that a model needs beside its checkpoints to its folder."""
  written = {}
  # `check` compares these hashes.
  meaning = meaning_hash(model, vars(config))
  model = {**model, "meaning_sha256": meaning}
  if vocab_file:
    model = {**model, "vocab_sha256": vocabulary.hash_of(vocab_file)}
    is_subword = vocabulary.is_subword(vocab_file)
    name = model_files.TOKENIZER if is_subword else model_files.VOCAB
    with files.open_any(vocab_file, "rb") as file:
      written[name] = file.read().removeprefix(codecs.BOM_UTF8)
  written[model_files.CONFIG] = config.to_json_string().encode()
  written[model_files.DESCRIPTION] = json_files.pretty(model).encode()
  for name, content in written.items():
    path = os.path.join(output_dir, name)
    if overwrite or not files.exists(path):
      with files.atomic_write(path, "wb") as file:
        file.write(content)


def check_same_model(
  output_dir: str,
  # Of the weights of the model in it; None without a checkpoint.
  shapes: Mapping[str, Sequence[int]] | None,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  # of the description that must match
  keys: Iterable[str] = ("script", "task", "labels"),
  num_outputs: int | None = None,  # of `output_bias`
  vocab_file: str | None = None,
  task: TaskRecord | None = None,
) -> None:
  """Refuses a folder with a checkpoint or vocabulary of another model."""
  trained_vocab = model_files.path_of(output_dir, "vocab_file")
  if vocab_file and files.exists(trained_vocab):
    vocabulary.check_same(vocab_file, trained_vocab)
  if shapes is None:
    return
  # Empty after google-research/bert, which has no `model.json`: then only
  # shapes are compared.
  description = model_description.load(output_dir, task)
  check_vocabulary(output_dir, description)
  stored, wanted = (
    _flatten({key: entries[key] for key in keys if key in description})
    for entries in (description, model)
  )
  stored = {key: value for key, value in stored.items() if key in wanted}
  config_file = os.path.join(output_dir, model_files.CONFIG)
  if files.exists(config_file):
    for entries, of in ((stored, load_config(config_file)), (wanted, config)):
      entries |= {key: getattr(of, key, None) for key in FIXED_BY_TRAINING}
  if "bert/embeddings/word_embeddings" in shapes:
    layers = {n.split("/")[2] for n in shapes if n.startswith("bert/encoder/")}
    stored["vocab_size"], width = shapes["bert/embeddings/word_embeddings"]
    projected = shapes.get("bert/embeddings_project/bias", [width])
    stored["hidden_size"] = projected[0]
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
  for folder in (model_dir, os.path.join(model_dir, model_files.BEST)):
    path = os.path.join(folder, model_files.DESCRIPTION)
    if files.exists(path):
      with files.atomic_write(path) as file:
        file.write(json_files.pretty(model_description.load(folder) | values))
