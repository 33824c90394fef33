"""Tests of reading event files."""

import os

import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from parametrize import parametrize

from bertlib.reporting import run_report

pytestmark = pytest.mark.graph


def write_events(folder, *events, suffix=""):
  """Writes an event file of (time, step, {tag: value}), as Estimator does."""
  with tf.Graph().as_default():  # FileWriter needs graph mode
    writer = tf.summary.FileWriter(str(folder), filename_suffix=suffix)
  for time, step, values in events:
    event = tf.Event(wall_time=time, step=step)
    for tag, value in values.items():
      event.summary.value.add(tag=tag, simple_value=value)
    writer.add_event(event)
  writer.close()


def test_scalars_of_a_file_writer_are_read(tmp_path):
  first, second = {"loss": 0.5}, {"loss": 1.5, "rate": 2.0}
  write_events(tmp_path, (1, 20, first), (2, 10, second))
  found = run_report.read_scalars(str(tmp_path))
  assert found == {"loss": [(10, 1.5), (20, 0.5)], "rate": [(10, 2.0)]}


def test_scalars_of_tensorflow_2_are_read(tmp_path):
  with tf2.summary.create_file_writer(str(tmp_path)).as_default():
    for step in (3, 5):
      tf2.summary.write("loss", step / 2, step)
      tf2.summary.write("note", "not a number", step)
      tf2.summary.write("weights", [1.0, 2.0], step)
  found = run_report.read_scalars(str(tmp_path))
  assert found == {"loss": [(3, 1.5), (5, 2.5)]}


def test_later_value_of_a_step_written_twice_is_used(tmp_path):
  write_events(tmp_path, (10, 1, {"a": 1.0}), (20, 2, {"a": 2.0}), suffix=".a")
  write_events(tmp_path, (50, 2, {"a": 9.0}), (60, 3, {"a": 8.0}), suffix=".b")
  found = run_report.read_scalars(str(tmp_path))
  assert found == {"a": [(1, 1.0), (2, 9.0), (3, 8.0)]}


@parametrize("num_lost", 1, 20)
def test_incomplete_record_ends_its_file(tmp_path, num_lost):
  write_events(tmp_path, (1, 1, {"a": 1.0}), (2, 2, {"a": 2.0}))
  (path,) = tmp_path.iterdir()
  os.truncate(path, path.stat().st_size - num_lost)
  assert run_report.read_scalars(str(tmp_path)) == {"a": [(1, 1.0)]}


def test_other_files_and_folders_are_ignored(tmp_path):
  write_events(tmp_path / "eval", (1, 1, {"a": 1.0}))
  (tmp_path / "checkpoint").write_text("no events")
  for folder in (tmp_path, tmp_path / "absent"):
    assert run_report.read_scalars(str(folder)) == {}
