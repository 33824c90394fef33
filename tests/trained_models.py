"""Tiny models, each trained by its command, once for all tests.

The command has a process of its own: this is the one run of it from its first
line to its last. Only that of the classifier compiles its steps.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_classifier
import tiny_embeddings
import tiny_ner
import tiny_pretraining
import tiny_reranker
import tiny_squad

_MODULES = {
  "classifier": tiny_classifier,
  "embeddings": tiny_embeddings,
  "squad": tiny_squad,
  "ner": tiny_ner,
  "pretraining": tiny_pretraining,
  "reranker": tiny_reranker,
}


class TrainedModel(NamedTuple):
  """A copy of what a training left.

  Attributes:
    folder: its output folder; in the one above are its data.
    log: its standard error.
    stdout: its standard output.
  """

  folder: Path
  log: str
  stdout: str


def copy(once, name, path):
  """Copies a trained model.

  Args:
    once: a `made_once.MadeOnce`.
    name: "classifier", "embeddings", "squad", "ner",
      "pretraining" or "reranker".
    path: the folder to write to.

  Returns:
    The `TrainedModel`.
  """

  def make(folder):
    _MODULES[name].write_data(folder)
    done = _MODULES[name].train(folder)
    (folder / "log.txt").write_text(done.stderr)
    (folder / "stdout.txt").write_text(done.stdout)

  once.copy(f"trained_{name}", make, path)
  return TrainedModel(
    path / "trained",
    (path / "log.txt").read_text(),
    (path / "stdout.txt").read_text(),
  )


def fixture(name):
  """A fixture for a module: its copy of a trained model."""

  @pytest.fixture(scope="module")
  def trained(once, tmp_path_factory):
    return copy(once, name, tmp_path_factory.mktemp("trained"))

  return trained


def data_fixture(name):
  """A fixture for a module: a folder with the data, vocabulary and config."""

  @pytest.fixture(scope="module")
  def place(tmp_path_factory):
    place = tmp_path_factory.mktemp(name)
    _MODULES[name].write_data(place)
    return place

  return place
