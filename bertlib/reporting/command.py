"""A training command around its task: lock, receipt, results and report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Callable, TypeVar

from bertlib.checkpoints import finding
from bertlib.data import model_inputs
from bertlib.hardware import devices
from bertlib.reporting import receipts, run_report
from bertlib.reporting.run_report import Findings
from bertlib.training import lifecycle
from bertlib.training.task import Run

_Result = TypeVar("_Result")


@dataclasses.dataclass
class Outcome:
  """Results of a run, for its receipt and its report."""

  run: Run
  checkpoint: str | None = None  # to use; None for that of --init_checkpoint
  found: Findings = dataclasses.field(default_factory=Findings)
  lengths: model_inputs.Lengths | None = None  # of the training data
  num_examples: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def with_checkpoint(self, use: Callable[..., _Result], *args) -> _Result:
    """Calls `use`, the checkpoint last; again if a training has removed it."""
    self.checkpoint, result = finding.with_checkpoint(
      self.run.output_dir, self.checkpoint, functools.partial(use, *args)
    )
    return result


@contextlib.contextmanager
def started(
  receipt: receipts.Receipt,
  run: Run,
  data_files: Iterable[str],  # that were read
) -> Iterator[Outcome]:
  """Holds the lock of --output_dir; records what its block makes of the run."""
  settings = run.settings
  with lifecycle.lock_output_dir(run):
    receipt.start(settings, data_files, run.devices.choices, run.is_chief)
    devices.log_devices(run.devices)
    if settings.run.do_train:
      lifecycle.write_model_files(run)
    outcome = Outcome(run)
    yield outcome
    if not run.is_chief:
      return
    receipt.finish(outcome.found.results, outcome.checkpoint)
    if settings.run.do_train:
      run_report.write_report(
        run, outcome.found, outcome.lengths, outcome.num_examples
      )
