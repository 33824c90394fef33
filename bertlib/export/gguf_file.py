"""Encoders as GGUF, the format of llama.cpp and Ollama.

A file has weights, sizes, pooling and vocabulary. Its keys and names are those
of llama.cpp for the architecture "bert".
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import modeling
import tokenization
from bertlib.cli.errors import InputError, needs_package, some_of

FILE = "model.gguf"

# Ends of the names of variables as in GGUF; a table of embeddings has none.
_KINDS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}

# Poolings that llama.cpp knows, by those of `model.json`.
_POOLINGS = {"mean": "MEAN", "cls": "CLS"}

# Types of matrices; all other weights are float32.
_MATRICES = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}

# BERT's special tokens by the names of llama.cpp.
_SPECIAL = dict(
  zip(("bos", "sep", "pad", "mask", "unk"), tokenization.BERT_TOKENS)
)


def check_model(
  config: modeling.BertConfig, embedding: Mapping[str, Any]
) -> None:
  """Refuses what llama.cpp does not compute; `embedding` of `model.json`."""
  problem = None
  if config.hidden_act not in ("gelu", "gelu_tanh", "gelu_new"):
    problem = f"hidden_act {config.hidden_act!r}"
  elif config.position_offset or not config.type_vocab_size:
    problem = "the embeddings of RoBERTa or DistilBERT"
  elif config.embedding_size not in (None, config.hidden_size):
    problem = "an embedding_size other than its hidden_size"
  elif embedding.get("pooling", "cls") not in _POOLINGS:
    problem = f"pooling {embedding['pooling']!r}"
  elif embedding.get("projection_dim"):
    problem = "a projection"
  if problem:
    raise InputError(
      f"--format=gguf: the model has {problem}, which llama.cpp does not"
      " compute. Export it in another format"
    )


def scripts_without_vowels(tokens: Iterable[str]) -> list[str]:
  """Scripts in a vocabulary whose vowels llama.cpp strips like accents."""
  # All marks, not only those of category Mn; and of the letters that a Korean
  # syllable consists of, all but the first.
  vowels = (
    char
    for char in set("".join(tokens))
    if unicodedata.category(char) == "Mc" or "\u1160" <= char <= "\u11ff"
  )
  return sorted({unicodedata.name(v).split()[0].title() for v in vowels})


def write(
  path: str,
  config: modeling.BertConfig,
  weights: Mapping[str, np.ndarray],  # float32, by names of variables
  tokens: Mapping[int, str],  # by their ids
  description: Mapping[str, Any],  # an empty `embedding` is no pooling
  precision: str,  # of matrices: float32, float16, or int8 for Q8_0
) -> None:
  """Writes the encoder of a model to a GGUF file."""
  with needs_package(
    "--format=gguf: needs the package gguf. Install it with pip install -e"
    " '.[gguf]'"
  ):
    import gguf
  known = gguf.get_tensor_name_map(
    gguf.MODEL_ARCH.BERT, config.num_hidden_layers
  )
  names = {variable: _tensor_name(variable, known) for variable in weights}
  if unknown := [variable for variable in weights if not names[variable]]:
    raise InputError(
      f"--format=gguf: llama.cpp does not compute with {some_of(unknown, 3)}."
      " Export a SavedModel or ONNX"
    )
  writer = gguf.GGUFWriter(path, "bert")
  writer.add_block_count(config.num_hidden_layers)
  # The number of position embeddings: llama.cpp takes no other.
  writer.add_context_length(config.max_position_embeddings)
  writer.add_embedding_length(config.hidden_size)
  writer.add_feed_forward_length(config.intermediate_size)
  writer.add_head_count(config.num_attention_heads)
  writer.add_layer_norm_eps(config.layer_norm_eps)
  writer.add_causal_attention(False)
  # Without pooling, the program that runs the file chooses one.
  if description["embedding"]:
    pooling = _POOLINGS[description["embedding"]["pooling"]]
    writer.add_pooling_type(gguf.PoolingType[pooling])
  _add_vocabulary(writer, tokens, config, description["do_lower_case"])
  types = gguf.GGMLQuantizationType
  for variable, array in weights.items():
    if variable.endswith("/kernel"):
      array = array.T  # [out, in]
    is_matrix = variable.endswith(("/kernel", "/word_embeddings"))
    dtype = types[_MATRICES[precision]] if is_matrix else types.F32
    if array.shape[-1] % gguf.GGML_QUANT_SIZES[dtype][0]:  # blocks of Q8_0
      dtype = types.F32
    data = gguf.quantize(np.ascontiguousarray(array), dtype)
    writer.add_tensor(names[variable], data, raw_dtype=dtype)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def _tensor_name(variable: str, known: Any) -> str | None:
  """Name in GGUF of a variable, by the package's table of Hugging Face's."""
  scope, _, last = variable.rpartition("/")
  scope = scope if last in _KINDS else variable
  module = scope.replace("/layer_", "/layer.").replace("/", ".")
  name = module.startswith("bert.") and known.get_name(module[len("bert.") :])
  return f"{name}.{_KINDS.get(last, 'weight')}" if name else None


def _add_vocabulary(writer, tokens, config, do_lower_case: bool) -> None:
  """Adds the tokenizer, with a token per row of the word embeddings."""
  from gguf import TokenType

  marked, types = [], []
  for row in range(config.vocab_size):
    token, kind = tokens.get(row, f"[row {row}]"), TokenType.NORMAL
    if token in _SPECIAL.values():
      kind = TokenType.CONTROL
    elif row not in tokens:
      kind = TokenType.UNUSED
    elif token.startswith(tokenization.CONTINUATION):
      token = token.removeprefix(tokenization.CONTINUATION)
    else:  # llama.cpp marks starts of words, not continuations.
      token = f"\u2581{token}"
    marked.append(token)
    types.append(kind)
  writer.add_tokenizer_model("bert")
  writer.add_token_list(marked)
  writer.add_token_types(types)
  writer.add_token_type_count(config.type_vocab_size)
  for name, token in _SPECIAL.items():
    if token in marked:
      getattr(writer, f"add_{name}_token_id")(marked.index(token))
  for rule in ("lowercase", "strip_accents"):
    writer.add_bool(f"tokenizer.ggml.normalizer.{rule}", do_lower_case)
