"""Names of published BERT models, as listed in `models.json`."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertlib.cli.errors import InputError
from bertlib.io.files import exists, open_any

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.json")


@dataclasses.dataclass(frozen=True)
class Model:
  """A published checkpoint, an entry of `models.json`."""

  name: str  # also the name of its folder
  aliases: Sequence[str]
  do_lower_case: bool
  maker: str
  license: str | None  # SPDX identifier; None if not known
  paper: str
  # OWNER/NAME of a repository of the Hugging Face Hub with safetensors.
  repository: str | None = None
  revision: str | None = None  # commit of it; None for the newest
  # Pooling, normalization and prompts of sentence vectors, as its maker
  # describes them. The repository's own files take precedence.
  embedding: Mapping[str, Any] | None = None
  address: str | None = None  # otherwise URL of an archive, .zip or .tar.gz
  # If several models share an archive: the folder of this model in it, or the
  # name of a .tar.gz in it that contains the model.
  folder: str | None = None
  # By file name, in the cache or in the repository; None if not published.
  sha256: Mapping[str, str] | None = None


def load_table() -> dict[str, Model]:
  """The models of `models.json` by name, in its order."""
  with open_any(TABLE) as file:
    return {name: Model(name, **rest) for name, rest in json.load(file).items()}


def is_name(text: str) -> bool:
  """True if a model has this name or alias, and no local folder has it."""
  return text in _models_by_name_and_alias() and not exists(text)


def is_hidden_by(folder: str) -> bool:
  """True if a published model has the name of a local folder."""
  return folder in _models_by_name_and_alias() and exists(folder)


def find(name: str) -> Model:
  """Finds a model by name or alias."""
  models = _models_by_name_and_alias()
  if name in models:
    return models[name]
  similar = similar_names(name)
  hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
  raise InputError(
    f"{name}: no such model. {hint}docs/how_to/models.md lists all"
  )


def similar_names(name: str) -> list[str]:
  """Names and aliases of models that are spelled similarly to a name."""
  lower = {other.lower(): other for other in _models_by_name_and_alias()}
  return [lower[n] for n in difflib.get_close_matches(name.lower(), lower)]


def _models_by_name_and_alias() -> dict[str, Model]:
  models = load_table()
  return models | {a: m for m in models.values() for a in m.aliases}
