"""Tests of workers that wait for a chief: alive, slow, lost, restarted."""

import functools
import os
import signal
import subprocess
import sys
import threading

import commands
import pytest

from bertlib.cli.errors import InputError
from bertlib.training import heartbeat

pytestmark = pytest.mark.process


class Clock:
  """A fake clock: `sleep` advances it and runs the events that are due."""

  def __init__(self, monkeypatch):
    self.now = 0.0
    self.events = {}
    monkeypatch.setattr(heartbeat, "time", self)

  def monotonic(self):
    return self.now

  def sleep(self, seconds):
    self.now += seconds
    for moment in [m for m in self.events if m <= self.now]:
      self.events.pop(moment)()


@pytest.fixture
def clock(monkeypatch):
  return Clock(monkeypatch)


def beats(folder, first, last, step=5):
  """Writers of heartbeats, by their times."""
  path = folder / heartbeat.HEARTBEAT_FILE
  return {
    moment: functools.partial(path.write_text, f"{first} {moment}\n")
    for moment in range(first, last, step)
  }


@pytest.mark.unit
def test_worker_waits_indefinitely_for_a_live_chief(tmp_path, clock):
  clock.events = beats(tmp_path, 100, 2000)
  watch = heartbeat.Watch(str(tmp_path))
  watch.wait_until(lambda: clock.now > 1990)


@pytest.mark.unit
def test_worker_waits_for_a_slow_chief(tmp_path, clock):
  clock.events = beats(tmp_path, 0, 1000, step=50)
  watch = heartbeat.Watch(str(tmp_path))
  watch.wait_until(lambda: clock.now > 990)


@pytest.mark.unit
def test_chief_is_lost_a_minute_after_its_last_heartbeat(tmp_path, clock):
  clock.events = beats(tmp_path, 0, 300)
  watch = heartbeat.Watch(str(tmp_path))
  with pytest.raises(
    InputError, match="no heartbeat of the chief worker for 60 seconds"
  ):
    watch.wait_until(lambda: False)
  assert 350 <= clock.now <= 360


@pytest.mark.unit
def test_chief_that_died_before_the_wait_is_lost(tmp_path, clock):
  watch = heartbeat.Watch(str(tmp_path))
  (tmp_path / heartbeat.HEARTBEAT_FILE).write_text("alive while training\n")
  with pytest.raises(
    InputError, match="no heartbeat of the chief worker for 60 seconds"
  ):
    watch.wait_until(lambda: False)
  assert clock.now < 65


@pytest.mark.unit
def test_worker_waits_for_a_restarted_chief(tmp_path, clock):
  clock.events = beats(tmp_path, 0, 100) | beats(tmp_path, 140, 2000)
  watch = heartbeat.Watch(str(tmp_path))
  watch.wait_until(lambda: clock.now > 1990)


@pytest.mark.unit
def test_worker_waits_longer_for_a_chief_not_yet_started(tmp_path, clock):
  (tmp_path / heartbeat.HEARTBEAT_FILE).write_text("of an earlier chief\n")
  watch = heartbeat.Watch(str(tmp_path))
  clock.events = beats(tmp_path, 500, 1000)
  watch.wait_until(lambda: clock.now > 990)
  with pytest.raises(InputError, match="no heartbeat of the chief"):
    watch.wait_until(lambda: False)


@pytest.mark.unit
def test_worker_gives_up_on_a_chief_that_never_starts(tmp_path, clock):
  watch = heartbeat.Watch(str(tmp_path / "missing"))
  with pytest.raises(
    InputError, match="no heartbeat of the chief worker for 600 seconds"
  ):
    watch.wait_until(lambda: False)


@pytest.mark.unit
def test_condition_that_already_holds_needs_no_chief(tmp_path, clock):
  heartbeat.Watch(str(tmp_path / "missing")).wait_until(lambda: True)
  assert clock.now == 0


@pytest.mark.unit
def test_chief_survives_a_full_disk(tmp_path, monkeypatch):
  tried = threading.Event()

  def refuse(*_):
    tried.set()
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(heartbeat.files, "open_any", refuse)
  with heartbeat.beat(str(tmp_path)):
    assert tried.wait(60)


@pytest.mark.graph
def test_heartbeats_are_seen_on_a_remote_file_system(tmp_path):
  folder = f"ram://{tmp_path}"
  watch = heartbeat.Watch(folder)
  with heartbeat.beat(folder, interval=0.05):
    wait_for_change(watch)
    wait_for_change(watch)
  assert watch._read() is None


# Processes


CHIEF = """
import sys, time
from bertlib.training import heartbeat
with heartbeat.beat(sys.argv[1], interval=0.1):
  time.sleep(float(sys.argv[2]))
"""


def start_chief(folder, seconds=600.0):
  """A process that is the chief for this many seconds."""
  return subprocess.Popen(
    [sys.executable, "-c", CHIEF, str(folder), str(seconds)], cwd=commands.ROOT
  )


def wait_for_change(watch):
  """Waits, as a worker does, for the next heartbeat."""
  before = watch._last
  watch.wait_until(lambda: watch._last != before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_worker_notices_a_killed_chief_and_its_successor(tmp_path, number):
  watch = heartbeat.Watch(str(tmp_path), timeout=30.0)
  for _ in range(2):
    with start_chief(tmp_path) as chief:
      wait_for_change(watch)
      wait_for_change(watch)
      chief.send_signal(number)
  watch = heartbeat.Watch(str(tmp_path), timeout=1.0, start_timeout=1.0)
  with pytest.raises(
    InputError, match="no heartbeat of the chief worker for 1 seconds"
  ):
    watch.wait_until(lambda: False)


def test_chief_removes_its_heartbeat_file(tmp_path):
  with start_chief(tmp_path, seconds=0.5) as chief:
    pass
  assert chief.returncode == 0
  assert not os.listdir(tmp_path)
