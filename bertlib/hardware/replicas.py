"""The replicas that train together, and the processes that have them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bertlib.data import input_pipeline


class Cluster(NamedTuple):
  """The processes that train together."""

  # HOST:PORT of each worker. The first is the chief, which alone writes
  # checkpoints and results.
  addresses: Sequence[str]
  index: int  # of this process


class Replicas(NamedTuple):
  """Replicas of a run, on the GPUs or the CPU of its processes."""

  num_local: int = 1  # in this process
  cluster: Cluster | None = None  # None for a single process
  on_gpu: bool = False

  @property
  def device_type(self) -> str:
    """Type of the devices of the replicas, for TensorFlow."""
    return "GPU" if self.on_gpu else "CPU"

  @property
  def num_processes(self) -> int:
    """Number of processes."""
    return len(self.cluster.addresses) if self.cluster else 1

  @property
  def count(self) -> int:
    """Number of replicas of all processes."""
    return self.num_local * self.num_processes

  @property
  def is_chief(self) -> bool:
    """True in the process that writes checkpoints and results."""
    return not self.cluster or self.cluster.index == 0

  @property
  def shard(self) -> input_pipeline.Shard:
    """The part of each batch that this process reads."""
    index = self.cluster.index if self.cluster else 0
    return input_pipeline.Shard(index, self.num_processes, self.num_local)


ONE_DEVICE = Replicas()


@contextlib.contextmanager
def without_tf_config() -> Iterator[None]:
  """Hides `TF_CONFIG` from RunConfig, which expects parameter servers."""
  text = os.environ.pop("TF_CONFIG", None)
  try:
    yield
  finally:
    if text is not None:
      os.environ["TF_CONFIG"] = text
