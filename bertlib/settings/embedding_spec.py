"""From hidden states to a sentence vector: pooling to normalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.cli import option
from bertlib.cli.errors import InputError

# `script` in the `model.json` of a model of sentence vectors.
SCRIPT = "run_embeddings"

POOLINGS = ("mean", "cls", "max")
ACTIVATIONS = ("linear", "tanh")

# Scope of the variables of the dense layer after pooling.
PROJECTION_SCOPE = "sentence_projection"


@dataclasses.dataclass(frozen=True)
class VectorSettings(option.Group):
  """From hidden states to a sentence vector."""

  SECTION = "model"

  pooling: str | None = option.choice(
    None,
    POOLINGS,
    "Pooling of the last layer's hidden states: mean or max over the tokens, or"
    " cls for [CLS]. If not given, that of the model, or else mean.",
    basic=True,
  )
  normalize: bool | None = option.boolean(
    None,
    "Scale vectors to length 1. If not given, as the model does, or else true.",
  )
  projection_dim: int | None = option.integer(
    None,
    "Width of a dense layer after pooling. If not given, that of the model, or"
    " else none.",
    option.AT_LEAST_1,
  )
  query_prefix: str | None = option.text(
    None,
    "Prefix of queries, such as 'query: '. If not given, that of the model.",
  )
  passage_prefix: str | None = option.text(
    None,
    "Prefix of the texts to be found, such as 'passage: '. If not given, that"
    " of the model.",
  )
  matryoshka_dims: Sequence[int] | None = option.integers(
    None,
    "Widths at which the first values of a vector are trained and evaluated as"
    " vectors of their own, such as 384,256,128,64. The largest is the width of"
    " the vectors.",
    option.AT_LEAST_1,
  )

  def check(self) -> None:
    """Refuses a width that is given twice."""
    dims = self.matryoshka_dims or ()
    if len(set(dims)) < len(dims):
      raise InputError(
        f"--matryoshka_dims={','.join(map(str, dims))}: give each width once"
      )


# Schema of the entry `embedding` of `model.json`, see `json_files`.
SCHEMA = {
  "pooling": option.declaration(VectorSettings, "pooling"),
  "normalize": bool,
  "projection_dim?": (
    option.declaration(VectorSettings, "projection_dim"),
    type(None),
  ),
  "projection_activation?": str,
  "prompts?": dict,
  "default_prompt?": (str, type(None)),
  "matryoshka_dims?": [int],
}


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
  def query_prompt(self) -> str:
    """Name of the prefix of queries; empty without one."""
    return "query" if self.prompts.get("query") else ""

  @property
  def passage_prompt(self) -> str:
    """Name of the prefix of the texts to be found, which have several names."""
    names = "document", "passage", "corpus"
    return next(filter(self.prompts.get, names), "")

  @property
  def query_prefix(self) -> str:
    """Prefix of queries."""
    return self.prompts.get(self.query_prompt, "")

  @property
  def passage_prefix(self) -> str:
    """Prefix of the texts to be found."""
    return self.prompts.get(self.passage_prompt, "")

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


def problem_of(entry: Mapping[str, Any]) -> str | None:
  """Problem of an entry that matches `SCHEMA`; None if there is none."""
  prompts, default = entry.get("prompts", {}), entry.get("default_prompt")
  for name, prompt in prompts.items():
    if not isinstance(prompt, str):
      return f"embedding.prompts.{name} is {prompt!r}, not text"
  if default is not None and default not in prompts:
    return f"embedding.default_prompt is {default!r}, which is no prompt"
  activation = entry.get("projection_activation", "linear")
  if activation not in ACTIVATIONS:
    return (
      f'embedding.projection_activation is "{activation}", not one of'
      f" {', '.join(ACTIVATIONS)}"
    )
  dims = entry.get("matryoshka_dims", [])
  if not all(dim > 0 for dim in dims):
    return f"embedding.matryoshka_dims is {dims}, but widths are 1 or more"
  return None
