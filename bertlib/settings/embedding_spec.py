"""How hidden states become a sentence vector: pooling to normalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.cli.errors import InputError

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
    matryoshka_dims: widths at which the first values of a vector were trained
      as vectors of their own, the largest first; empty for only the full width.
  """

  pooling: str = "mean"
  normalize: bool = True
  projection_dim: int | None = None
  projection_activation: str = "linear"
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  default_prompt: str | None = None
  matryoshka_dims: Sequence[int] = ()

  def as_json(self) -> dict[str, Any]:
    """The entry `embedding` of `model.json`."""
    return dataclasses.asdict(self) | {
      "prompts": dict(self.prompts),
      "matryoshka_dims": list(self.matryoshka_dims),
    }

  def width(self, hidden_size: int) -> int:
    """Width of the vectors on top of an encoder of this `hidden_size`."""
    return self.projection_dim or hidden_size

  @property
  def query_prefix(self) -> str:
    """Prefix of queries."""
    return self.prompts.get("query", self.prompt(None))

  @property
  def passage_prefix(self) -> str:
    """Prefix of the texts to be found; some models call them documents."""
    names = [name for name in ("passage", "document") if name in self.prompts]
    return self.prompt(names[0] if names else None)

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


def default_prefix(description: Mapping[str, Any]) -> str:
  """Prefix of texts for which no prompt is named.

  Args:
    description: contents of `model.json`, of any model; one without sentence
      vectors has no prefix.
  """
  return from_json(description.get("embedding", {})).prompt(None)


def from_json(entry: Mapping[str, Any]) -> EmbeddingSpec:
  """Inverse of `EmbeddingSpec.as_json`; unknown keys are ignored."""
  names = [field.name for field in dataclasses.fields(EmbeddingSpec)]
  return EmbeddingSpec(**{n: entry[n] for n in names if n in entry})
