"""The experiments still run, on fewer steps than their curves have."""

import re

import pytest

from experiments import shared_layers

pytestmark = pytest.mark.train


def test_a_shared_layer_has_the_weights_of_one(capsys):
  shared_layers.main(num_steps=4, num_points=2, seeds=(1, 2))
  lines = capsys.readouterr().out.splitlines()
  found = [
    re.fullmatch(r"(.{15}) *([\d,]+) weights: \d.\d\d \d.\d\d ± \d.\d\d", line)
    for line in lines
  ]
  weights = {line[1].strip(): line[2] for line in found}
  assert weights.keys() == shared_layers.VARIANTS.keys()
  assert weights["4 shared"] == weights["1 layer"] != weights["4 layers"]
