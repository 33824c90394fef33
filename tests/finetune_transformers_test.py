"""Tests of the baselines that train with transformers; they need PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="pip install torch transformers")
pytest.importorskip("transformers", reason="pip install torch transformers")
from benchmarks import finetune_transformers  # noqa: E402 (needs both)

pytestmark = pytest.mark.unit


class Model(torch.nn.Module):
  """One dense layer."""

  def __init__(self):
    super().__init__()
    self.layer = torch.nn.Linear(3, 1)

  def forward(self, inputs):
    return self.layer(inputs)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_forward_pass_sees_each_change_of_the_weights(precision):
  model, inputs = Model(), torch.ones(2, 3)
  finetune_transformers.use_precision(model, precision)
  before = model(inputs)
  with torch.no_grad():
    model.layer.bias += 1.0
    model.layer.weight += 1.0
  change = model(inputs) - before
  assert change.dtype == getattr(torch, precision)
  torch.testing.assert_close(
    change.float(), torch.full([2, 1], 4.0), rtol=0.02, atol=0.0
  )
