"""How hidden states become a sentence vector: pooling to normalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertlib.errors import InputError

POOLINGS = ("mean", "cls", "max")
ACTIVATIONS = ("linear", "tanh")


@dataclasses.dataclass(frozen=True)
class EmbeddingSpec:
  """Sentence embedding on top of an encoder; `embedding` in `model.json`.

  Attributes:
    pooling: one of `POOLINGS`, over the last layer's hidden states.
    normalize: whether vectors have length 1.
    projection_dim: width of a dense layer after pooling; None without one.
    projection_activation: one of `ACTIVATIONS`, of that layer.
    prompts: prefix of texts by its name, such as "query" and "passage".
    default_prompt: name of the prefix of texts for which none is named; None
      for no prefix.
  """

  pooling: str = "mean"
  normalize: bool = True
  projection_dim: int | None = None
  projection_activation: str = "linear"
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  default_prompt: str | None = None

  def as_json(self) -> dict[str, Any]:
    """The entry `embedding` of `model.json`."""
    return dataclasses.asdict(self) | {"prompts": dict(self.prompts)}

  def prompt(self, name: str | None) -> str:
    """Prefix of texts: that of `default_prompt` where `name` is None.

    Raises:
      InputError: the model has no prompt of this name.
    """
    name = self.default_prompt if name is None else name
    if not name:
      return ""
    if name not in self.prompts:
      known = ", ".join(sorted(self.prompts)) or "no prompts"
      raise InputError(f"--prompt={name}: the model has {known}")
    return self.prompts[name]


def from_json(entry: Mapping[str, Any]) -> EmbeddingSpec:
  """Inverse of `EmbeddingSpec.as_json`; unknown keys are ignored."""
  names = [field.name for field in dataclasses.fields(EmbeddingSpec)]
  return EmbeddingSpec(**{n: entry[n] for n in names if n in entry})
