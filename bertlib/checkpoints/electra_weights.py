"""Weights of ELECTRA's networks, and their names at google-research/electra.

Weights are NumPy arrays by name. Imports no TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bertlib.cli.errors import InputError

# Scope of the generator, and folders of both networks at Hugging Face.
GENERATOR, DISCRIMINATOR = "generator", "discriminator"

# Scope of the tables of both networks. If their gradients are disentangled, the
# generator has its own, and others are added to them in the discriminator.
TABLES, GENERATOR_TABLES = "bert/embeddings/", "generator/embeddings/"
ADDED_TABLES = "bert/embeddings_added/"

Weights = Mapping[str, np.ndarray]


def generator_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """Config of the generator, given that of the discriminator."""
  width = config["hidden_size"] * config.get("generator_hidden_size", 0.25)
  layers = config["num_hidden_layers"] * config.get("generator_layers", 1.0)
  width = max(round(width), 1)
  heads = max(width // 64, 1)
  if width % heads:
    raise InputError(
      f"generator_hidden_size: makes the generator {width} wide, which its"
      f" {heads} heads, one for each 64, do not divide. Give another fraction"
    )
  return {
    **config,
    "embedding_size": config.get("embedding_size") or config["hidden_size"],
    "hidden_size": width,
    "num_hidden_layers": max(round(layers), 1),
    "num_attention_heads": heads,
    "intermediate_size": 4 * width,
  }


# Two networks


def with_added_tables(weights: Weights) -> dict[str, np.ndarray]:
  """Weights with the sums of disentangled tables as those of the encoder."""
  found = dict(weights)
  for name in weights:
    if name.startswith(ADDED_TABLES):
      table = name.replace(ADDED_TABLES, TABLES)
      shared = name.replace(ADDED_TABLES, GENERATOR_TABLES)
      if shared in weights:  # not of a slot of the optimizer
        found[table] = found.pop(name) + weights[shared]
  return found


def networks(
  weights: Weights, config: dict[str, Any]
) -> dict[str, tuple[Weights, dict[str, Any]]]:
  """Weights and config of each network by name; "" for the only one."""
  head, scope = "cls/predictions/", f"{GENERATOR}/"
  if not any(name.startswith(scope) for name in weights):
    return {"": (weights, config)}
  generator = {n: w for n, w in weights.items() if n.startswith((scope, head))}
  tables = {n: w for n, w in weights.items() if n.startswith(TABLES)}
  generator = tables | {
    re.sub(f"^{scope}", "bert/", name): w for name, w in generator.items()
  }
  own = {n: w for n, w in weights.items() if not n.startswith((scope, head))}
  config = {**config, "model_type": "electra"}
  own_config, config = config, generator_config(config)
  for key in ("generator_hidden_size", "generator_layers"):
    own_config.pop(key, None)
    config.pop(key, None)
  return {DISCRIMINATOR: (own, own_config), GENERATOR: (generator, config)}


def joined(
  discriminator: tuple[Weights, dict[str, Any]],
  generator: tuple[Weights, dict[str, Any]],
  source: str,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Weights and config of both `networks` as those of one model."""
  (weights, config), (others, of_generator) = discriminator, generator
  width, layers = (
    of_generator[key] / config[key]
    for key in ("hidden_size", "num_hidden_layers")
  )
  ratios = {"generator_hidden_size": width, "generator_layers": layers}
  expected = generator_config(config | ratios)
  different = [
    name
    for name in weights
    if name.startswith(TABLES)
    and not np.array_equal(weights[name], others[name])
  ] + [
    key
    for key in ("num_attention_heads", "intermediate_size", "hidden_act")
    if of_generator[key] != expected[key]
  ]
  if different:
    raise InputError(
      f"{source}: {different[0]} of the generator is not that of a generator"
      " that is pretrained here. Name the folder of one of the networks"
    )
  renamed = {
    re.sub("^bert/", f"{GENERATOR}/", name): value
    for name, value in others.items()
    if not name.startswith(TABLES)
  }
  return {**weights, **renamed}, config | ratios


# Names of google-research/electra, in this order

_GOOGLE_WORDS = "electra/embeddings/word_embeddings"
_GOOGLE_NAMES = (
  (r"^electra/", "bert/"),
  (
    r"^generator_predictions/(dense|LayerNorm)/",
    r"cls/predictions/transform/\1/",
  ),
  (r"^generator_predictions/", "cls/predictions/"),
  (r"^(discriminator_predictions)/dense_1/", r"\1/dense_prediction/"),
)


def google_names(names: Iterable[str], source: str) -> dict[str, str]:
  """Google's names of the weights by ours; {} if none are Google's."""
  names = sorted(names)
  if _GOOGLE_WORDS not in names:
    return {}
  heads = [name for name in names if name.startswith("task_specific/")]
  if heads:
    raise InputError(
      f"{source}: has {heads[0]}, an output layer of google-research/electra,"
      " whose formula is another. Fine-tune the pretrained model here"
    )
  renamed = {}
  for name in names:
    new = name
    for pattern, replacement in _GOOGLE_NAMES:
      new = re.sub(pattern, replacement, new)
    if new != name:
      renamed[new] = name
  return renamed
