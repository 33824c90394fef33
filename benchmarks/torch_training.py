"""Models of transformers, with optimizer and learning rates of this project."""

from __future__ import annotations

from typing import Any

import torch
import transformers


def load(class_name: str, folder: str, **options: Any) -> torch.nn.Module:
  """A model of transformers, in float32 even if its file has 16 bits."""
  return getattr(transformers, class_name).from_pretrained(
    folder, dtype=torch.float32, **options
  )


def make_optimizer(
  model: torch.nn.Module, learning_rate: float, fused: bool = True
) -> torch.optim.Optimizer:
  """AdamW, without decay of biases and layer normalization."""
  decayed, free = [], []
  for name, weight in model.named_parameters():
    (free if "bias" in name or "LayerNorm" in name else decayed).append(weight)
  return torch.optim.AdamW(
    [{"params": decayed}, {"params": free, "weight_decay": 0.0}],
    lr=learning_rate,
    eps=1e-6,
    weight_decay=0.01,
    fused=fused,
  )


def make_schedule(
  optimizer: torch.optim.Optimizer, num_steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
  """Learning rate that rises for a tenth of the steps, then falls to 0.

  The decay is counted from step 0: after warm-up the rate is 0.9 of the peak.
  """
  num_warmup_steps = int(0.1 * num_steps)

  def factor(step: int) -> float:
    if step < num_warmup_steps:
      return step / num_warmup_steps
    return 1 - step / num_steps

  return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
