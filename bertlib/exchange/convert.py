"""Converting between TensorFlow checkpoints and Hugging Face folders.

Weights are only renamed and transposed, so a round trip is bitwise exact. A
tensor without a counterpart is an error: no weight is dropped silently.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple

import numpy as np

from bertlib.checkpoints import (
  checkpoint_writer,
  config_schema,
  finding,
  model_files,
  model_json,
  rewrite,
)
from bertlib.checkpoints.task_record import TaskRecord
from bertlib.cli import terminal
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.exchange import sentence_transformers
from bertlib.io import files, json_files, text_files

# The name table


class Row(NamedTuple):
  """One tensor's names and layout in both formats."""

  tensorflow: str
  huggingface: str
  # Shape in TensorFlow: V vocabulary, P positions, T token types, H hidden
  # size, I intermediate size, L labels; a digit is a fixed size.
  axes: str
  # Whether Hugging Face stores the transpose.
  transposed: bool = False


def name_table(num_hidden_layers: int) -> dict[str, list[Row]]:
  """Rows of all tensors of BERT and its heads, by part."""
  # A model has all tensors of a part or none of them, and always the encoder.
  encoder = [
    *_embedding("bert/embeddings/word_embeddings", "VH"),
    *_embedding("bert/embeddings/position_embeddings", "PH"),
    *_embedding("bert/embeddings/token_type_embeddings", "TH"),
    *_layer_norm("bert/embeddings/LayerNorm"),
  ]
  for n in range(num_hidden_layers):
    layer = f"bert/encoder/layer_{n}"
    encoder += [
      *_dense(f"{layer}/attention/self/query", "HH"),
      *_dense(f"{layer}/attention/self/key", "HH"),
      *_dense(f"{layer}/attention/self/value", "HH"),
      *_dense(f"{layer}/attention/output/dense", "HH"),
      *_layer_norm(f"{layer}/attention/output/LayerNorm"),
      *_dense(f"{layer}/intermediate/dense", "HI"),
      *_dense(f"{layer}/output/dense", "IH"),
      *_layer_norm(f"{layer}/output/LayerNorm"),
    ]
  return {
    "encoder": encoder,
    "pooler": _dense("bert/pooler/dense", "HH"),
    "masked LM head": [
      *_dense("cls/predictions/transform/dense", "HH"),
      *_layer_norm("cls/predictions/transform/LayerNorm"),
      Row("cls/predictions/output_bias", "cls.predictions.bias", "V"),
    ],
    "next sentence head": _output(
      "cls/seq_relationship/", "cls.seq_relationship", "2"
    ),
    "span head": _output("cls/squad/", "qa_outputs", "2"),
    "label head": _output("", "classifier", "L"),
  }


def _embedding(scope: str, axes: str) -> list[Row]:
  return [Row(scope, f"{_module(scope)}.weight", axes)]


def _dense(scope: str, axes: str) -> list[Row]:
  return [
    Row(f"{scope}/kernel", f"{_module(scope)}.weight", axes, transposed=True),
    Row(f"{scope}/bias", f"{_module(scope)}.bias", axes[1]),
  ]


def _layer_norm(scope: str) -> list[Row]:
  return [
    Row(f"{scope}/gamma", f"{_module(scope)}.weight", "H"),
    Row(f"{scope}/beta", f"{_module(scope)}.bias", "H"),
  ]


def _output(prefix: str, module: str, num_outputs: str) -> list[Row]:
  return [
    Row(f"{prefix}output_weights", f"{module}.weight", f"{num_outputs}H"),
    Row(f"{prefix}output_bias", f"{module}.bias", num_outputs),
  ]


def _module(scope: str) -> str:
  return scope.replace("/layer_", "/layer.").replace("/", ".")


# Hugging Face's classes and their heads. Of several with the same heads, the
# first is used unless `model.json` or the config determines another.
_ARCHITECTURES = {
  "BertModel": set(),
  "BertForPreTraining": {"masked LM head", "next sentence head"},
  "BertForMaskedLM": {"masked LM head"},
  "BertForNextSentencePrediction": {"next sentence head"},
  "BertForQuestionAnswering": {"span head"},
  "BertForSequenceClassification": {"label head"},
  "BertForTokenClassification": {"label head"},
  "BertForMultipleChoice": {"label head"},
}

# Hugging Face's names of what a classifier of run_classifier.py predicts, which
# determine its loss and how its logits become scores.
_PROBLEM_TYPES = {
  "classification": "single_label_classification",
  "multi_label": "multi_label_classification",
  "regression": "regression",
}

# Alternative names in Hugging Face files: the LayerNorm weights of 2018, and
# the encoder of a bare BertModel.
_ALTERNATIVE_NAMES = (
  (r"LayerNorm\.gamma$", "LayerNorm.weight"),
  (r"LayerNorm\.beta$", "LayerNorm.bias"),
  (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),
)

# Copies of tied tensors, which TensorFlow's graph has once.
_TIED_COPIES = {
  "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
  "cls.predictions.decoder.bias": "cls.predictions.bias",
}

_CONFIG_KEYS = (
  "attention_probs_dropout_prob",
  "hidden_act",
  "hidden_dropout_prob",
  "hidden_size",
  "initializer_range",
  "intermediate_size",
  "max_position_embeddings",
  "num_attention_heads",
  "num_hidden_layers",
  "type_vocab_size",
  "vocab_size",
)

# Files of the weights, of which Hugging Face reads the first.
_SAFETENSORS, _PYTORCH = "model.safetensors", "pytorch_model.bin"

# Keys of `config.json` that describe the files, not the model.
_FILE_KEYS = (
  "_name_or_path",
  "dtype",
  "torch_dtype",
  "transformers_version",
)

# Hugging Face's names of activations, and those of modeling.py.
_ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_new": "gelu_new",
  "gelu_pytorch_tanh": "gelu_tanh",
  "linear": "linear",
  "relu": "relu",
  "tanh": "tanh",
}

# Hugging Face to TensorFlow


def huggingface_to_tensorflow(
  source_dir: str,
  target_dir: str,
  vocab_file: str | None = None,  # None: the vocabulary in `source_dir`
  # None for the value in `source_dir`, or else by the capital letters of the
  # vocabulary.
  do_lower_case: bool | None = None,
  overwrite: bool = False,
) -> None:
  """Converts a Hugging Face folder to a checkpoint in float32."""
  sentence = sentence_transformers.read(source_dir)
  encoder_dir = sentence.encoder_dir if sentence else source_dir
  config = _read_huggingface_config(encoder_dir)
  vocab, stated_case = _read_tokenizer(
    encoder_dir, vocab_file, config["vocab_size"]
  )
  _check_vocab_size(vocab, config, vocab_file or source_dir)
  if sentence and sentence.lowercases:
    stated_case = True
  config["do_lower_case"] = _lower_case(vocab, do_lower_case, stated_case)
  # `bert_config.json` gets all other keys.
  for key in _FILE_KEYS:
    config.pop(key, None)

  variables, parts = _read_as_variables(encoder_dir, config)
  inputs = [
    os.path.join(folder, name)
    for folder in (source_dir, encoder_dir)
    for name in os.listdir(folder)
  ]
  if vocab_file:
    inputs.append(vocab_file)
  if sentence:
    variables |= sentence.projection
    description = sentence.describe(config)
  with files.atomic_files(target_dir, overwrite, inputs) as folder:
    checkpoint_writer.write_variables(
      os.path.join(folder, model_files.CHECKPOINT), variables
    )
    _write_json(os.path.join(folder, model_files.CONFIG), config)
    vocab_path = os.path.join(folder, model_files.VOCAB)
    _write_bytes(vocab_path, vocab)
    if sentence:
      description["vocab_sha256"] = vocabulary.hash_of(vocab_path)
      _write_json(os.path.join(folder, model_files.DESCRIPTION), description)
  _print_written(
    os.path.join(target_dir, model_files.CHECKPOINT), variables, parts
  )
  if sentence:
    print(sentence_transformers.describe_vectors(description))


def _read_huggingface_config(folder: str) -> dict[str, Any]:
  path = os.path.join(folder, "config.json")
  config = _read_config(path, _ACTIVATIONS)
  supported = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
  }
  json_files.check_values(config, supported, path)
  return config


def _read_as_variables(
  folder: str, config: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, list[Row]]]:
  """A Hugging Face folder's weights as TensorFlow variables, and its parts."""
  tensors, file = rewrite.read_huggingface_weights(folder)
  tensors = _without_copies(_with_standard_names(tensors, file), file)
  tensors = _as_float32(tensors, file)
  parts = _find_parts(tensors, "huggingface", config, file)
  variables = {
    row.tensorflow: _transpose(tensors[row.huggingface], row)
    for row in itertools.chain(*parts.values())
  }
  return variables, parts


def _read_tokenizer(
  folder: str, vocab_file: str | None, vocab_size: int
) -> tuple[bytes, bool | None]:
  """Reads the contents of `vocab.txt`, and `do_lower_case` if it is stated."""
  config, fast, added = (
    json_files.read(path, dict) if os.path.exists(path) else {}
    for path in (
      os.path.join(folder, "tokenizer_config.json"),
      os.path.join(folder, "tokenizer.json"),
      os.path.join(folder, "added_tokens.json"),
    )
  )
  normalizer = fast.get("normalizer") or {}
  do_lower_case = config.get("do_lower_case", normalizer.get("lowercase"))
  supported = {"strip_accents": do_lower_case, "tokenize_chinese_chars": True}
  for key, value in supported.items():
    if config.get(key) not in (None, value):
      print(
        f"note: tokenization.py does not support {key}={config[key]} of"
        " tokenizer_config.json; some words will be tokenized differently"
      )
  if vocab_file is not None:
    return _read_vocab(vocab_file), do_lower_case
  vocab_file = os.path.join(folder, model_files.VOCAB)
  if not os.path.exists(vocab_file):
    return _vocab_of_fast_tokenizer(fast, folder), do_lower_case
  decoder = config.get("added_tokens_decoder") or {}
  added |= {token["content"]: int(index) for index, token in decoder.items()}
  added |= {
    token["content"]: token["id"] for token in fast.get("added_tokens", ())
  }
  vocab = _with_added_tokens(_read_vocab(vocab_file), added, vocab_size)
  return vocab, do_lower_case


def _with_added_tokens(
  vocab: bytes, added: Mapping[str, int], vocab_size: int
) -> bytes:
  """Appends the added tokens, by id, that continue the vocabulary."""
  pieces = _pieces(vocab)
  num_pieces = len(pieces)
  left_out = []
  new = added.keys() - set(pieces)
  for token in sorted(new, key=lambda token: (added[token], token)):
    is_line = token and token == " ".join(token.split())
    if is_line and added[token] == len(pieces) < vocab_size:
      pieces.append(token)
    else:
      left_out.append(token)
  if left_out:
    print(
      "note: added tokens whose ids do not continue vocab.txt within the"
      f" model's vocab_size are left out: {', '.join(map(repr, left_out))}"
    )
  appended = pieces[num_pieces:]
  if not appended:
    return vocab
  terminal.show(f"added tokens: {', '.join(appended)}")
  lines = "".join(f"{token}\n" for token in appended)
  return vocab + (b"" if vocab.endswith(b"\n") else b"\n") + lines.encode()


def _vocab_of_fast_tokenizer(fast: dict[str, Any], folder: str) -> bytes:
  model = fast.get("model", {})
  if model.get("type", "WordPiece") != "WordPiece" or "vocab" not in model:
    raise InputError(
      f"{folder}: has no vocab.txt and no tokenizer.json with WordPiece; name"
      " a vocabulary with --vocab_file"
    )
  ids = {
    token["content"]: token["id"] for token in fast.get("added_tokens", ())
  }
  ids.update(model["vocab"])
  pieces = sorted(ids, key=ids.get)
  if [ids[piece] for piece in pieces] != list(range(len(pieces))):
    raise InputError(
      f"{folder}/tokenizer.json: the ids have gaps; name a vocabulary with"
      " --vocab_file"
    )
  return "".join(f"{piece}\n" for piece in pieces).encode()


def _with_standard_names(
  tensors: dict[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  """Renames tensors with alternative names to those of the name table."""
  renamed = {}
  for old, tensor in tensors.items():
    name = old
    for pattern, replacement in _ALTERNATIVE_NAMES:
      name = re.sub(pattern, replacement, name)
    if name in renamed:
      raise InputError(f"{source}: has {name} twice, once named {old}")
    renamed[name] = tensor
  return renamed


def _without_copies(
  tensors: dict[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  """Leaves out position ids and copies of tied tensors."""
  kept = {
    name: tensor
    for name, tensor in tensors.items()
    if not name.endswith(".position_ids")
  }
  for copy, original in _TIED_COPIES.items():
    if copy in kept:
      tensor = kept.pop(copy)
      if not np.array_equal(kept.setdefault(original, tensor), tensor):
        raise InputError(
          f"{source}: {copy} differs from {original}; TensorFlow's graph has"
          " one tensor for both"
        )
  _print_left_out(tensors.keys() - kept.keys())
  return kept


# TensorFlow to Hugging Face


def tensorflow_to_huggingface(
  checkpoint: str,
  config_file: str,
  vocab_file: str,
  target_dir: str,
  # Hugging Face class; other heads are left out. None for that of the task in
  # `model.json`, else in `config_file`, else by the checkpoint's heads.
  architecture: str | None = None,
  # None for the value in `model.json`, else in `config_file`, else by the
  # capital letters of the vocabulary.
  do_lower_case: bool | None = None,
  overwrite: bool = False,
  as_pytorch: bool = False,  # `pytorch_model.bin`, not safetensors
  *,
  find_task: Callable[[str | None], TaskRecord | None],  # by its script
) -> None:
  """Converts a checkpoint to a Hugging Face folder; prints what was written."""
  weights = _weights_file(target_dir, as_pytorch)
  activations = {name: hf_name for hf_name, name in _ACTIVATIONS.items()}
  config = _read_config(config_file, activations)
  vocab = _read_vocab(vocab_file)
  _check_vocab_size(vocab, config, vocab_file)
  description = model_json.load_description(os.path.dirname(checkpoint))
  do_lower_case = _lower_case(
    vocab,
    do_lower_case,
    description.get("do_lower_case"),
    config.pop("do_lower_case", None),
  )

  variables = rewrite.read_weights(checkpoint)
  variables = _as_float32(variables, checkpoint)
  max_seq_length = config["max_position_embeddings"]
  is_sentence_model = "embedding" in description
  if is_sentence_model:
    max_seq_length = description["max_seq_length"]
    projection = sentence_transformers.find_projection(
      variables, description, checkpoint
    )
    for name in projection:
      del variables[name]
  parts = _find_parts(variables, "tensorflow", config, checkpoint)
  task = find_task(description.get("script"))
  trained_as = task and task.huggingface_class(description)
  stated = [*filter(None, [trained_as]), *(config.get("architectures") or ())]
  architecture = _choose_architecture(
    parts.keys(), architecture, stated, checkpoint
  )
  wanted = {"encoder", "pooler"} | _ARCHITECTURES[architecture]
  others = [parts.pop(name) for name in parts.keys() - wanted]
  _print_left_out(row.tensorflow for row in itertools.chain(*others))
  tensors = _as_tensors(variables, parts, architecture)
  config.update(model_type="bert", architectures=[architecture])
  _set_problem_type(config, description)
  _name_labels(config, variables, description)
  tokenizer_config = {
    "tokenizer_class": "BertTokenizer",
    "do_lower_case": do_lower_case,
    "model_max_length": max_seq_length,
  }
  inputs = [config_file, vocab_file, *files.checkpoint_files(checkpoint)]
  with files.atomic_files(target_dir, overwrite, inputs) as folder:
    write = rewrite.write_pytorch if as_pytorch else rewrite.write_safetensors
    write(os.path.join(folder, weights), tensors)
    _write_json(os.path.join(folder, "config.json"), config)
    _write_json(os.path.join(folder, "tokenizer_config.json"), tokenizer_config)
    _write_bytes(os.path.join(folder, model_files.VOCAB), vocab)
    if is_sentence_model:
      sentence_transformers.write(
        folder, description, projection, config["hidden_size"]
      )
  print(f"architecture: {architecture}")
  _print_written(os.path.join(target_dir, weights), tensors, parts)
  if is_sentence_model:
    print(sentence_transformers.describe_vectors(description))


def _weights_file(target_dir: str, as_pytorch: bool) -> str:
  """Name of the file of the weights; checks that it can be written and read."""
  if not as_pytorch:
    return _SAFETENSORS
  rewrite.import_torch(os.path.join(target_dir, _PYTORCH), "write")
  other = os.path.join(target_dir, _SAFETENSORS)
  if os.path.exists(other):
    raise InputError(
      f"{other}: transformers would read it instead of {_PYTORCH}. Remove it,"
      " or give another --output"
    )
  return _PYTORCH


def _as_tensors(
  variables: dict[str, np.ndarray],
  parts: dict[str, list[Row]],
  architecture: str,
) -> dict[str, np.ndarray]:
  """The weights of `parts` as tensors of a Hugging Face class."""
  # The tensors of a bare BertModel have no prefix "bert.".
  prefix = "bert." if architecture == "BertModel" else ""
  return {
    row.huggingface.removeprefix(prefix): _transpose(
      variables[row.tensorflow], row
    )
    for row in itertools.chain(*parts.values())
  }


def _choose_architecture(
  parts: Iterable[str],
  wanted: str | None,
  stated: Iterable[str],
  source: str,
) -> str:
  heads = set(parts) - {"encoder", "pooler"}
  if wanted is not None:
    missing = _ARCHITECTURES[wanted] - heads
    if missing:
      raise InputError(
        f"{source}: has no {' and no '.join(sorted(missing))}, which {wanted}"
        " needs"
      )
    return wanted
  matching = [name for name, has in _ARCHITECTURES.items() if has == heads]
  if not matching:
    raise InputError(
      f"{source}: has a {' and a '.join(sorted(heads))}, but no Hugging Face"
      " class has all of these. Name a class with --architecture; other heads"
      " are left out"
    )
  return next((name for name in stated if name in matching), matching[0])


def _set_problem_type(
  config: dict[str, Any], description: Mapping[str, Any]
) -> None:
  """Sets `problem_type` of a trained model; removes that of an earlier one."""
  if "script" not in description:
    return
  config.pop("problem_type", None)
  problem_type = _PROBLEM_TYPES.get(description.get("kind"))
  is_classifier = config["architectures"] == ["BertForSequenceClassification"]
  if problem_type and is_classifier:
    config["problem_type"] = problem_type


def _name_labels(
  config: dict[str, Any],
  variables: dict[str, np.ndarray],
  description: Mapping[str, Any],
) -> None:
  """Sets `id2label` and `label2id`, which determine the size of the head."""
  id2label = config.pop("id2label", None) or {}
  config.pop("label2id", None)
  config.pop("num_labels", None)
  if config["architectures"][0] not in (
    "BertForSequenceClassification",
    "BertForTokenClassification",
  ):
    return
  num_labels = variables["output_bias"].size
  # The names that training used come first, then those of the config; either
  # only if their number is that of the head.
  labels = [f"LABEL_{i}" for i in range(num_labels)]
  in_config = [id2label[i] for i in sorted(id2label, key=int)]
  if len(in_config) == num_labels:
    labels = in_config
  trained = description.get("labels", [])
  if len(trained) == num_labels:
    labels = trained
  config["id2label"] = dict(enumerate(labels))
  config["label2id"] = {label: i for i, label in enumerate(labels)}
  terminal.show(f"labels: {', '.join(labels)}")


# Both directions


def _read_config(path: str, activations: dict[str, str]) -> dict[str, Any]:
  """Reads a model's config, with `hidden_act` renamed for the other format."""
  config = json_files.read(path, dict)
  config_schema.check(path, config, _CONFIG_KEYS)
  name = config["hidden_act"]
  if name not in activations:
    raise InputError(
      f"{path}: hidden_act {json_files.dumps(name)} cannot be converted; these"
      f" can: {', '.join(activations)}"
    )
  return {**config, "hidden_act": activations[name]}


def _check_vocab_size(
  vocab: bytes, config: dict[str, Any], source: str
) -> None:
  size = len(_pieces(vocab))
  if size > config["vocab_size"]:
    raise InputError(
      f"{source}: the vocabulary has {size} pieces, the model only"
      f" {config['vocab_size']}. Name the model's vocabulary with --vocab_file"
    )


def _lower_case(vocab: bytes, *stated: bool | None) -> bool:
  """The first stated value, or else by capital letters in the vocabulary."""
  for value in stated:
    if value is not None:
      return value
  do_lower_case = not vocabulary.is_cased(_pieces(vocab))
  print(
    f"do_lower_case: {do_lower_case}, by the capital letters in the vocabulary"
  )
  return do_lower_case


def _pieces(vocab: bytes) -> list[str]:
  return [line.decode(errors="replace") for line in vocab.splitlines()]


def _as_float32(
  tensors: dict[str, np.ndarray], source: str
) -> dict[str, np.ndarray]:
  exact = ("float32", "float16", "bfloat16")
  dtypes = {name: tensor.dtype.name for name, tensor in tensors.items()}
  others = [f"{n} ({d})" for n, d in sorted(dtypes.items()) if d not in exact]
  if others:
    raise InputError(
      f"{source}: not convertible to float32: {', '.join(others)}"
    )
  rewrite.warn_if_not_finite(source, tensors)
  narrow = [dtype for dtype in dtypes.values() if dtype != "float32"]
  if narrow:
    print(f"converted: {len(narrow)} tensors of 16 bits to float32, exactly")
  return {n: t.astype(np.float32, copy=False) for n, t in tensors.items()}


def _find_parts(
  tensors: dict[str, np.ndarray],
  model_format: str,  # "tensorflow" or "huggingface"
  config: dict[str, Any],
  source: str,  # file, for messages
) -> dict[str, list[Row]]:
  """Parts of the name table that a model has; InputError unless complete."""
  table = name_table(config["num_hidden_layers"])
  names = {
    part: {getattr(row, model_format): row for row in rows}
    for part, rows in table.items()
  }
  unknown = tensors.keys() - set(itertools.chain(*names.values()))
  if unknown:
    raise InputError(
      f"{source}: has tensors that BERT does not have:"
      f" {', '.join(sorted(unknown))}"
    )
  found = {
    part: rows
    for part, rows in names.items()
    if part == "encoder" or not rows.keys().isdisjoint(tensors)
  }
  rows = {name: row for part in found.values() for name, row in part.items()}
  missing = [name for name in rows if name not in tensors]
  if missing:
    raise InputError(f"{source}: has no {', '.join(missing)}")
  sizes = {
    "V": config["vocab_size"],
    "P": config["max_position_embeddings"],
    "T": config["type_vocab_size"],
    "H": config["hidden_size"],
    "I": config["intermediate_size"],
    "L": max((tensors[n].size for n in rows if rows[n].axes == "L"), default=0),
    "2": 2,
  }
  wrong = []
  for name, row in rows.items():
    shape = tuple(sizes[axis] for axis in row.axes)
    if model_format == "huggingface" and row.transposed:
      shape = shape[::-1]
    if tensors[name].shape != shape:
      wrong.append(
        f"{name} is {tensors[name].shape}, but by the config {shape}"
      )
  if wrong:
    raise InputError(f"{source}: {'; '.join(wrong)}")
  return {part: table[part] for part in found}


def _transpose(tensor: np.ndarray, row: Row) -> np.ndarray:
  # safetensors ignores strides, so the array has to be contiguous.
  return np.ascontiguousarray(tensor.T if row.transposed else tensor)


def _read_vocab(path: str) -> bytes:
  """Reads a vocabulary in UTF-8, without its byte-order mark."""
  return text_files.read_text(path).encode()


def _write_json(path: str, value: dict[str, Any]) -> None:
  text = json_files.dumps(value, indent=2, ensure_ascii=False) + "\n"
  _write_bytes(path, text.encode())


def _write_bytes(path: str, content: bytes) -> None:
  with open(path, "wb") as file:
    file.write(content)


def _print_left_out(names: Iterable[str]) -> None:
  names = sorted(names)
  if names:
    terminal.show(f"left out: {', '.join(names)}")


def _print_written(
  path: str, tensors: dict[str, np.ndarray], parts: Iterable[str]
) -> None:
  size = sum(tensor.size for tensor in tensors.values())
  pooler = "" if "pooler" in parts else ", no pooler"
  print(
    f"written: {path}, {len(tensors)} tensors, {size:,} parameters"
    f" ({', '.join(parts)}{pooler})"
  )


def read_weights(path: str) -> dict[str, np.ndarray]:
  """Reads the weights of a model in any format, by checkpoint name."""
  model_format = rewrite.model_format(path)
  if model_format == "huggingface":
    sentence = sentence_transformers.read(path)
    encoder_dir = sentence.encoder_dir if sentence else path
    config = _read_huggingface_config(encoder_dir)
    variables, _ = _read_as_variables(encoder_dir, config)
    return variables | (sentence.projection if sentence else {})
  if model_format == "saved_model":
    return _saved_model_weights(path)
  return rewrite.read_weights(finding.find_checkpoint(path))


def _saved_model_weights(folder: str) -> dict[str, np.ndarray]:
  """Reads the weights of any SavedModel, by checkpoint name."""
  import tensorflow as tf

  loaded = tf.saved_model.load(folder)
  weights = {
    variable.name.partition(":")[0]: variable.numpy()
    for signature in loaded.signatures.values()
    for variable in signature.variables
  }
  print(f"read: {folder}, {len(weights)} tensors")
  return weights
