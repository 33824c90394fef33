"""Tests of which files of a checkpoint are missing, by their names."""

import pytest
from parametrize import parametrize

from bertlib.io import model_files

pytestmark = pytest.mark.unit

INDEX = "m.ckpt.index"
DATA = [f"m.ckpt.data-0000{part}-of-00003" for part in range(3)]


@parametrize(
  "names, missing",
  ([INDEX, *DATA], []),
  ([INDEX, "m.ckpt.data-00000-of-00001"], []),
  (DATA, [INDEX]),
  ([INDEX, DATA[1]], [DATA[0], DATA[2]]),
  ([INDEX, "other.data-00000-of-00001"], ["m.ckpt.data-00000-of-00001"]),
  ([], [INDEX, "m.ckpt.data-00000-of-00001"]),
)
def test_missing_files_are_named(names, missing):
  assert model_files.missing_files("m.ckpt", names) == missing
