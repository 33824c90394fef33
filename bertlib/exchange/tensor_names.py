"""Names and shapes of BERT's tensors here and at Hugging Face.

A model has all tensors of a part or none of them, and always the encoder.
Models with BERT's formula, such as RoBERTa, have their own names there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import InputError, some_of


class TensorNames(NamedTuple):
  """One tensor's names and layout in both formats."""

  tensorflow: str
  huggingface: str
  # Shape in TensorFlow: V vocabulary, P positions, T token types, E embedding
  # size, H hidden size, I intermediate size, L labels; a digit is a fixed size.
  axes: str
  # Whether Hugging Face stores the transpose.
  transposed: bool = False

  def convert(self, tensor: np.ndarray) -> np.ndarray:
    """The tensor in the layout of the other format."""
    # safetensors ignores strides, so the array has to be contiguous.
    return np.ascontiguousarray(tensor.T if self.transposed else tensor)


Parts = Mapping[str, list[TensorNames]]  # by name

# Prefixes of the classes and of the tensors of each `model_type`.
CLASSES = {
  "bert": "Bert",
  "roberta": "Roberta",
  "xlm-roberta": "XLMRoberta",
  "camembert": "Camembert",
  "distilbert": "DistilBert",
  "electra": "Electra",
}
PREFIXES = dict.fromkeys(CLASSES, "roberta") | {
  "bert": "bert",
  "distilbert": "distilbert",
  "electra": "electra",
}

# What BERT's names become, in this order, by the prefix of the tensors.
_OTHER_NAMES = {
  "bert": (),
  "roberta": (
    (".bert.", ".roberta."),
    (".cls.predictions.transform.LayerNorm.", ".lm_head.layer_norm."),
    (".cls.predictions.transform.", ".lm_head."),
    (".cls.predictions.", ".lm_head."),
  ),
  "distilbert": (
    (".bert.pooler.dense.", ".pre_classifier."),
    (".bert.encoder.", ".distilbert.transformer."),
    (".bert.", ".distilbert."),
    (".self.query.", ".q_lin."),
    (".self.key.", ".k_lin."),
    (".self.value.", ".v_lin."),
    (".attention.output.dense.", ".attention.out_lin."),
    (".attention.output.LayerNorm.", ".sa_layer_norm."),
    (".intermediate.dense.", ".ffn.lin1."),
    (".output.dense.", ".ffn.lin2."),
    (".output.LayerNorm.", ".output_layer_norm."),
    (".cls.predictions.transform.dense.", ".vocab_transform."),
    (".cls.predictions.transform.LayerNorm.", ".vocab_layer_norm."),
    (".cls.predictions.decoder.", ".vocab_projector."),
    (".cls.predictions.", ".vocab_projector."),
  ),
  "electra": (
    (".bert.pooler.dense.", ".sequence_summary.summary."),
    (".bert.", ".electra."),
    (".cls.predictions.transform.", ".generator_predictions."),
    (".cls.predictions.decoder.", ".generator_lm_head."),
    (".cls.predictions.", ".generator_lm_head."),
  ),
}

# The classifier of sequences of RoBERTa and ELECTRA has the pooler within.
_LABEL_HEAD = (
  (".classifier.", ".classifier.out_proj."),
  (".bert.pooler.", ".classifier."),
)
OUTPUT_OF_HEAD = "classifier.out_proj.weight"
_HAVE_LABEL_HEAD = ("roberta", "electra")


def model_type_of(config: Mapping[str, Any]) -> str:
  """The kind of a model with BERT's formula; by its sizes if none is known."""
  found = config.get("model_type")
  if found in CLASSES:
    return found
  is_projected = embedding_size(config) != config.get("hidden_size")
  return "electra" if is_projected else "bert"


def embedding_size(config: Mapping[str, Any]) -> int:
  """Width of the tables."""
  return config.get("embedding_size") or config.get("hidden_size")


def renamed(name: str, model_type: str, has_label_head: bool = False) -> str:
  """Hugging Face's name of a tensor of BERT in another kind of model."""
  prefix, name = PREFIXES[model_type], f".{name}"
  has_label_head &= prefix in _HAVE_LABEL_HEAD
  of_head = _LABEL_HEAD if has_label_head else ()
  for old, new in (*of_head, *_OTHER_NAMES[prefix]):
    name = name.replace(old, new, 1)
  return name[1:]


def name_table(
  config: Mapping[str, Any], has_label_head: bool = False
) -> dict[str, list[TensorNames]]:
  """All tensors of a model and its heads, by part."""
  model_type = model_type_of(config)
  return {
    part: [
      row._replace(
        huggingface=renamed(row.huggingface, model_type, has_label_head)
      )
      for row in rows
      if row.axes != "TE" or config["type_vocab_size"]
    ]
    for part, rows in _table_of_bert(config).items()
  }


def _table_of_bert(config: Mapping[str, Any]) -> dict[str, list[TensorNames]]:
  encoder = [
    *_embedding("bert/embeddings/word_embeddings", "VE"),
    *_embedding("bert/embeddings/position_embeddings", "PE"),
    *_embedding("bert/embeddings/token_type_embeddings", "TE"),
    *_layer_norm("bert/embeddings/LayerNorm", "E"),
  ]
  if embedding_size(config) != config["hidden_size"]:
    encoder += _dense("bert/embeddings_project", "EH")
  for n in range(config["num_hidden_layers"]):
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
      *_dense("cls/predictions/transform/dense", "HE"),
      *_layer_norm("cls/predictions/transform/LayerNorm", "E"),
      TensorNames("cls/predictions/output_bias", "cls.predictions.bias", "V"),
    ],
    "next sentence head": _output(
      "cls/seq_relationship/", "cls.seq_relationship", "2"
    ),
    "discriminator head": [
      *_dense("discriminator_predictions/dense", "HH"),
      *_dense("discriminator_predictions/dense_prediction", "H1"),
    ],
    "span head": _output("cls/squad/", "qa_outputs", "2"),
    "label head": _output("", "classifier", "L"),
  }


def _embedding(scope: str, axes: str) -> list[TensorNames]:
  return [TensorNames(scope, f"{_module(scope)}.weight", axes)]


def _dense(scope: str, axes: str) -> list[TensorNames]:
  module = _module(scope)
  return [
    TensorNames(f"{scope}/kernel", f"{module}.weight", axes, transposed=True),
    TensorNames(f"{scope}/bias", f"{module}.bias", axes[1]),
  ]


def _layer_norm(scope: str, axes: str = "H") -> list[TensorNames]:
  return [
    TensorNames(f"{scope}/gamma", f"{_module(scope)}.weight", axes),
    TensorNames(f"{scope}/beta", f"{_module(scope)}.bias", axes),
  ]


def _output(prefix: str, module: str, num_outputs: str) -> list[TensorNames]:
  return [
    TensorNames(
      f"{prefix}output_weights", f"{module}.weight", f"{num_outputs}H"
    ),
    TensorNames(f"{prefix}output_bias", f"{module}.bias", num_outputs),
  ]


def _module(scope: str) -> str:
  return scope.replace("/layer_", "/layer.").replace("/", ".")


# BERT's classes and their heads; other models have other prefixes. Of several
# with the same heads, the first is used unless `model.json` or the config
# determines another.
ARCHITECTURES = {
  "BertModel": set(),
  "BertForPreTraining": {"masked LM head", "next sentence head"},
  "BertForMaskedLM": {"masked LM head"},
  "BertForNextSentencePrediction": {"next sentence head"},
  "BertForQuestionAnswering": {"span head"},
  "BertForSequenceClassification": {"label head"},
  "BertForTokenClassification": {"label head"},
  "BertForMultipleChoice": {"label head"},
  "ElectraForPreTraining": {"discriminator head"},
}


def choose_architecture(
  parts: Iterable[str],
  stated: Iterable[str | None],  # classes of a kind of model
  model_type: str,
  source: str,
) -> str:
  """The first stated class with just the heads of a model, or any class."""
  kind = CLASSES[model_type]
  stated = [name.replace(kind, "Bert", 1) for name in stated if name]
  heads = set(parts) - {"encoder", "pooler"}
  matching = [name for name, has in ARCHITECTURES.items() if has == heads]
  if not matching:
    raise InputError(
      f"{source}: has a {' and a '.join(sorted(heads))}, but no Hugging Face"
      " class has all of these. Convert a model with the heads of one class"
    )
  return next((name for name in stated if name in matching), matching[0])


def find_parts(
  tensors: Mapping[str, np.ndarray],
  model_format: str,  # "tensorflow" or "huggingface"
  config: Mapping[str, Any],
  source: str,  # file, for messages
) -> dict[str, list[TensorNames]]:
  """Parts of the name table that a model has; InputError unless complete."""
  table = name_table(config, OUTPUT_OF_HEAD in tensors)
  names = {
    part: {getattr(row, model_format): row for row in rows}
    for part, rows in table.items()
  }
  known = set(itertools.chain(*names.values()))
  found = {
    part: rows
    for part, rows in names.items()
    if part == "encoder" or not rows.keys().isdisjoint(tensors)
  }
  rows = {name: row for part in found.values() for name, row in part.items()}
  _refuse(f"{source}: has tensors that BERT does not have:", tensors, known)
  _refuse(f"{source}: has no", rows, tensors)
  sizes = {
    "V": config["vocab_size"],
    "P": config["max_position_embeddings"],
    "T": config["type_vocab_size"],
    "H": config["hidden_size"],
    "E": embedding_size(config),
    "I": config["intermediate_size"],
    "L": max((tensors[n].size for n in rows if rows[n].axes == "L"), default=0),
    "1": 1,
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
    raise InputError(f"{source}: {some_of(wrong, 3)}")
  _check_heads(found, config, source)
  return {part: table[part] for part in found}


def _check_heads(
  parts: Collection[str], config: Mapping[str, Any], source: str
) -> None:
  """Refuses heads that a kind of model does not have at Hugging Face."""
  model_type = model_type_of(config)
  if "next sentence head" in parts and model_type != "bert":
    raise InputError(
      f"{source}: has a next sentence head, which no class of {model_type} has"
    )
  has_gelu = PREFIXES[model_type] in ("roberta", "electra")
  if has_gelu and "masked LM head" in parts and config["hidden_act"] != "gelu":
    raise InputError(
      f"{source}: hidden_act is {config['hidden_act']}, but the masked LM head"
      f" of {model_type} has gelu. Leave out the head"
    )


def _refuse(
  problem: str, names: Iterable[str], allowed: Collection[str]
) -> None:
  """Refuses names that are not among the allowed ones, of which it names 3."""
  others = sorted(name for name in names if name not in allowed)
  if others:
    raise InputError(f"{problem} {some_of(others, 3)}")
