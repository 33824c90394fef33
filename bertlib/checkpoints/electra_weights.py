"""Weights of ELECTRA's networks, and their names at google-research/electra.

Imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Scopes of the generator and of the tables of both networks.
GENERATOR = "generator"
TABLES, GENERATOR_TABLES = "bert/embeddings/", "generator/embeddings/"
# Added to the generator's, of networks with disentangled gradients.
ADDED_TABLES = "bert/embeddings_added/"


def generator_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """Config of the generator, given that of the discriminator."""
  width = round(
    config["hidden_size"] * config.get("generator_hidden_size", 0.25)
  )
  layers = config["num_hidden_layers"] * config.get("generator_layers", 1.0)
  return {
    **config,
    "embedding_size": config.get("embedding_size") or config["hidden_size"],
    "hidden_size": width,
    "num_hidden_layers": round(layers),
    "num_attention_heads": max(width // 64, 1),
    "intermediate_size": 4 * width,
  }
