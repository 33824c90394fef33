"""Names of published BERT models, as listed in `models.json`."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence

from bertlib.errors import InputError
from bertlib.files import open_any

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.json")


@dataclasses.dataclass(frozen=True)
class Model:
  """A published checkpoint, an entry of `models.json`."""

  name: str  # that of its folder, too
  aliases: Sequence[str]
  language: str  # of its text, or how many languages
  good_for: str
  do_lower_case: bool
  num_hidden_layers: int
  hidden_size: int
  maker: str
  licence: str | None  # as SPDX has it; None if not known
  paper: str
  address: str  # of an archive, .zip or .tar.gz
  size: int | None  # of the archive in bytes; None if not known
  sha256: Mapping[str, str] | None  # by file, named as in the cache
  # Where several models share an archive: the folder in it with this one, which
  # may be packed in there as a .tar.gz of that name.
  folder: str | None = None


def load_table() -> dict[str, Model]:
  """The models of `models.json` by name, in its order."""
  with open_any(TABLE) as file:
    return {name: Model(name, **rest) for name, rest in json.load(file).items()}


def is_name(text: str) -> bool:
  """Whether a model has this name or alias."""
  return text in _by_any_name()


def find(name: str) -> Model:
  """The model of a name or alias.

  Raises:
    InputError: there is none.
  """
  models = _by_any_name()
  if name in models:
    return models[name]
  near = similar_names(name)
  meant = f"Did you mean {' or '.join(near)}? " if near else ""
  raise InputError(
    f"{name}: no such model. {meant}download_model.py --list shows all"
  )


def similar_names(name: str) -> list[str]:
  """Names and aliases of models that are spelled like a name."""
  lower = {other.lower(): other for other in _by_any_name()}
  return [lower[n] for n in difflib.get_close_matches(name.lower(), lower)]


def _by_any_name() -> dict[str, Model]:
  models = load_table()
  return models | {a: m for m in models.values() for a in m.aliases}
