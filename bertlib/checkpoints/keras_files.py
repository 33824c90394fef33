"""BERT's weights as Keras wrote them.

`tf_model.h5` of transformers up to version 4, presets of KerasHub, and
object-based checkpoints of tensorflow/models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Callable

import numpy as np

from bertlib.cli import terminal
from bertlib.cli.errors import InputError, needs_package

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

# Objects of an encoder of tensorflow/models: numbered, or named in later
# versions.
_EMBEDDINGS = (
  ("layer_with_weights-0", "_embedding_layer", "word_embeddings"),
  ("layer_with_weights-1", "_position_embedding_layer", "position_embeddings"),
  ("layer_with_weights-2", "_type_embedding_layer", "token_type_embeddings"),
  ("layer_with_weights-3", "_embedding_norm_layer", "LayerNorm"),
)
_LAYER = re.compile(r"(layer_with_weights-|_transformer_layers/)(\d+)/(.+)")
_IN_LAYER = {
  "_attention_layer/_query_dense": "attention/self/query",
  "_attention_layer/_key_dense": "attention/self/key",
  "_attention_layer/_value_dense": "attention/self/value",
  "_attention_layer/_output_dense": "attention/output/dense",
  "_attention_output_dense": "attention/output/dense",
  "_attention_layer_norm": "attention/output/LayerNorm",
  "_intermediate_dense": "intermediate/dense",
  "_output_dense": "output/dense",
  "_output_layer_norm": "output/LayerNorm",
}
_FIRST_LAYER = 4  # number of the first Transformer layer

# Objects of the heads of its pretraining, and of the pooler that these train.
_HEADS = {
  r"masked_lm/dense/(.+)": r"cls/predictions/transform/dense/\1",
  r"masked_lm/layer_norm/(.+)": r"cls/predictions/transform/LayerNorm/\1",
  r"masked_lm/output_bias\.Sbias": "cls/predictions/output_bias",
  r"\S*pooler_dense/(.+)": r"bert/pooler/dense/\1",
  r"classification_heads/0/dense/(.+)": r"bert/pooler/dense/\1",
  r"classification_heads/0/out_proj/(.+)": r"cls/seq_relationship/output_\1",
}

# Layers of KerasHub's BertBackbone, and of its Transformer layers.
_IN_BACKBONE = {
  "reversible_embedding": "embeddings/word_embeddings",
  "position_embedding": "embeddings/position_embeddings",
  "embedding": "embeddings/token_type_embeddings",
  "layer_normalization": "embeddings/LayerNorm",
  "dense": "pooler/dense",
}
_IN_ENCODER = {
  "_self_attention_layer/query_dense": "attention/self/query",
  "_self_attention_layer/key_dense": "attention/self/key",
  "_self_attention_layer/value_dense": "attention/self/value",
  "_self_attention_layer/output_dense": "attention/output/dense",
  "_self_attention_layer_norm": "attention/output/LayerNorm",
  "_feedforward_intermediate_dense": "intermediate/dense",
  "_feedforward_output_dense": "output/dense",
  "_feedforward_layer_norm": "output/LayerNorm",
}

# HDF5


def read_h5(path: str) -> dict[str, np.ndarray]:
  """Tensors of an HDF5 file, with the names and layout of PyTorch's."""
  with needs_package(f"{path}: needs h5py: pip install h5py"):
    import h5py
  tensors: dict[str, np.ndarray] = {}

  def add(name: str, item) -> None:
    if not isinstance(item, h5py.Dataset):
      return
    value = item[()]
    if item.attrs.get("dtype") == "bfloat16":  # which HDF5 does not have
      value = value.view("bfloat16")
    if re.search(r"/vars/\d+$", name):
      found, is_kernel = _name_of_preset(name)
      value = plain_shape(found, value)
    else:
      found, is_kernel = name_in_huggingface(name)
    tensors[found] = value.T if is_kernel else value

  try:
    with h5py.File(path, "r") as file:
      file.visititems(add)
  except OSError as error:
    raise InputError(
      f"{path}: is not a complete HDF5 file ({error}). Download it again"
    ) from error
  return tensors


def name_in_huggingface(name: str) -> tuple[str, bool]:
  """PyTorch's name of a weight of Keras; true if its layout is transposed."""
  # Lists are `layer_._0`; parts with another name in Keras are `mlm___cls`.
  name = re.sub(r"\w+___", "", name.removesuffix(":0")).replace("_._", "/")
  # Outer models repeat: the last of these parts begins the name.
  match = re.search(
    r".*(?:^|/)((?:embeddings|encoder|pooler|cls|classifier|qa_outputs)/.*)",
    name,
  )
  *scope, last = (match[1] if match else name).split("/")
  renamed = {"kernel": "weight", "embeddings": "weight"}.get(last, last)
  return ".".join([*scope, renamed]), last == "kernel"


def _name_of_preset(name: str) -> tuple[str, bool]:
  """As `name_in_huggingface`, of a weight of KerasHub's BertBackbone."""
  number, scope, index = re.fullmatch(
    r"(?:layers/)?(?:transformer_encoder(?:_(\d+))?/)?(.+)/vars/(\d+)", name
  ).groups()
  target = _IN_BACKBONE.get(scope)
  if not target:
    target = f"encoder/layer/{number or 0}/{_IN_ENCODER.get(scope, scope)}"
  is_kernel = index == "0" and not re.search(r"embeddings$|Norm$", target)
  last = "weight" if index == "0" else "bias"
  return f"{target}/{last}".replace("/", "."), is_kernel


# Objects of tensorflow/models


def read_objects(
  stored: Iterable[str], read: Callable[[str], np.ndarray], source: str
) -> dict[str, np.ndarray]:
  """Variables of a BERT of an object-based checkpoint, by our names."""
  names = {
    name.removesuffix(_VALUE): name
    for name in stored
    if name.endswith(_VALUE) and "/.OPTIMIZER_SLOT/" not in name
  }
  if any(re.search("/.OPTIMIZER_SLOT/[^/]+/average/", name) for name in stored):
    terminal.warn_once(
      f"{source}: has averages of weights in its optimizer, which are not read."
      " Save the model after swap_weights() of that optimizer"
    )
  encoder, others = _find_encoder(names, source)
  found, heads = {}, {}
  own = sorted(name for name in names if name.startswith(encoder))
  num_layers = sum(name.endswith("_query_dense/kernel") for name in own)
  for name in own:
    if target := _name_of_object(name[len(encoder) :], num_layers, source):
      found[target] = plain_shape(target, read(names[name]))
  # A table that several objects share is stored by its shortest path.
  table = r"(.*/)?(masked_lm/embedding_table|(layer\w+-0|_emb\w+)/embeddings)"
  for name in filter(re.compile(table).fullmatch, names):
    found.setdefault("bert/embeddings/word_embeddings", read(names[name]))
  for name in () if others else names:
    for pattern, target in _HEADS.items():
      if match := re.fullmatch(rf"(?:.*/)?{pattern}", name):
        target = match.expand(target).replace("output_kernel", "output_weights")
        value = read(names[name])
        heads[target] = value.T if target.endswith("_weights") else value
  is_pretraining = "cls/predictions/output_bias" in heads
  return found | {
    target: value
    for target, value in heads.items()
    if is_pretraining or target.startswith("bert/")
  }


def _find_encoder(
  names: Iterable[str], source: str
) -> tuple[str, Sequence[str]]:
  """Scope of the encoder, that of ELECTRA's discriminator; and the others."""
  query = r"(.*?)[\w-]+(?:/\d+)?/_attention_layer/_query_dense/kernel"
  matches = (re.fullmatch(query, name) for name in names)
  scopes = sorted({match[1] for match in matches if match})
  named = [s for s in scopes if re.fullmatch("encoder/|.*discriminator.*/", s)]
  if not scopes:
    raise InputError(
      f"{source}: is an object-based checkpoint of TensorFlow 2, and not of"
      " tensorflow/models' BERT encoder. Name the model's SavedModel by"
      " --bert_hub_module_handle"
    )
  chosen = scopes if len(scopes) == 1 else named
  if len(chosen) != 1:
    raise InputError(
      f"{source}: has several encoders, {', '.join(scopes)}. Save one alone, by"
      " tf.train.Checkpoint(encoder=...)"
    )
  others = [scope for scope in scopes if scope not in chosen]
  if others:
    terminal.warn_once(
      f"{source}: has several encoders; {chosen[0]} is read, as of ELECTRA's"
      f" discriminator, and not {', '.join(others)}"
    )
  return chosen[0], others


def _name_of_object(name: str, num_layers: int, source: str) -> str | None:
  """Our name of a variable within an encoder; None if that has none."""
  scope, _, last = name.rpartition("/")
  for numbered, named, target in _EMBEDDINGS:
    if scope in (numbered, named):
      scope = f"bert/embeddings/{target}"
      return scope if last == "embeddings" else f"{scope}/{last}"
  after = f"layer_with_weights-{_FIRST_LAYER + num_layers}"
  if scope in (after, "_pooler_layer"):
    return f"bert/pooler/dense/{last}"
  layer = _LAYER.fullmatch(scope)
  if layer and layer[3] in _IN_LAYER:
    is_numbered = layer[1] == "layer_with_weights-"
    number = int(layer[2]) - _FIRST_LAYER * is_numbered
    return f"bert/encoder/layer_{number}/{_IN_LAYER[layer[3]]}/{last}"
  if re.match("layer_with_weights-|_transformer_layers/|_embedding_proj", name):
    raise InputError(
      f"{source}: has {name}, which BERT does not have, such as the projection"
      " of another embedding_size than hidden_size. Use a model without it"
    )
  return None


def plain_shape(name: str, value: np.ndarray) -> np.ndarray:
  """A value without an axis of heads: kernels [in, out], biases [out]."""
  if value.ndim == 3:  # [N, D, H] of the output, else [H, N, D]
    is_output = "output" in name
    first, *_, last = value.shape
    return value.reshape([-1, last] if is_output else [first, -1])
  return value.reshape(-1) if name.endswith("bias") else value
