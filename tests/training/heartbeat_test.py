"""Workers that wait for a chief, alive, slow, lost and started again."""

import functools
import os
import signal
import subprocess
import sys
import threading

import commands
import pytest

from bertlib.errors import InputError
from bertlib.training import heartbeat

pytestmark = pytest.mark.process


class Clock:
  """A clock that sleeping moves on, and what happens at times of it."""

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
  """Signs of life by their times."""
  path = folder / heartbeat.HEARTBEAT_FILE
  return {
    moment: functools.partial(path.write_text, f"{first} {moment}\n")
    for moment in range(first, last, step)
  }


@pytest.mark.unit
def test_a_chief_that_is_alive_is_waited_for_without_end(tmp_path, clock):
  clock.events = beats(tmp_path, 100, 2000)
  waiting = heartbeat.Watch(str(tmp_path))
  waiting.wait_until(lambda: clock.now > 1990)


@pytest.mark.unit
def test_a_chief_that_is_late_is_waited_for(tmp_path, clock):
  clock.events = beats(tmp_path, 0, 1000, step=50)
  waiting = heartbeat.Watch(str(tmp_path))
  waiting.wait_until(lambda: clock.now > 990)


@pytest.mark.unit
def test_a_chief_that_falls_silent_is_lost_after_a_minute(tmp_path, clock):
  clock.events = beats(tmp_path, 0, 300)
  waiting = heartbeat.Watch(str(tmp_path))
  with pytest.raises(InputError, match="no sign of life for 60 seconds"):
    waiting.wait_until(lambda: False)
  assert 350 <= clock.now <= 360


@pytest.mark.unit
def test_a_chief_that_died_before_the_wait_is_lost_too(tmp_path, clock):
  waiting = heartbeat.Watch(str(tmp_path))
  (tmp_path / heartbeat.HEARTBEAT_FILE).write_text("alive while training\n")
  with pytest.raises(InputError, match="no sign of life for 60 seconds"):
    waiting.wait_until(lambda: False)
  assert clock.now < 65


@pytest.mark.unit
def test_a_chief_that_is_started_again_is_waited_for(tmp_path, clock):
  clock.events = beats(tmp_path, 0, 100) | beats(tmp_path, 140, 2000)
  waiting = heartbeat.Watch(str(tmp_path))
  waiting.wait_until(lambda: clock.now > 1990)


@pytest.mark.unit
def test_a_chief_that_is_not_started_yet_is_waited_for_longer(tmp_path, clock):
  (tmp_path / heartbeat.HEARTBEAT_FILE).write_text("of a chief before\n")
  waiting = heartbeat.Watch(str(tmp_path))
  clock.events = beats(tmp_path, 500, 1000)
  waiting.wait_until(lambda: clock.now > 990)
  with pytest.raises(InputError, match="no sign of life"):
    waiting.wait_until(lambda: False)


@pytest.mark.unit
def test_a_chief_that_is_never_started_is_given_up_on(tmp_path, clock):
  waiting = heartbeat.Watch(str(tmp_path / "missing"))
  with pytest.raises(InputError, match="no sign of life for 600 seconds"):
    waiting.wait_until(lambda: False)


@pytest.mark.unit
def test_what_the_chief_has_done_is_enough(tmp_path, clock):
  heartbeat.Watch(str(tmp_path / "missing")).wait_until(lambda: True)
  assert clock.now == 0


@pytest.mark.unit
def test_a_chief_without_room_for_its_signs_goes_on(tmp_path, monkeypatch):
  tried = threading.Event()

  def refuse(*_):
    tried.set()
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(heartbeat.files, "open_any", refuse)
  with heartbeat.beat(str(tmp_path)):
    assert tried.wait(60)


@pytest.mark.graph
def test_signs_of_life_are_seen_on_a_remote_file_system(tmp_path):
  folder = f"ram://{tmp_path}"
  waiting = heartbeat.Watch(folder)
  with heartbeat.beat(folder, interval=0.05):
    wait_for_change(waiting)
    wait_for_change(waiting)
  assert waiting._read() is None


# Processes


CHIEF = """
import sys, time
from bertlib.training import heartbeat
with heartbeat.beat(sys.argv[1], interval=0.1):
  time.sleep(float(sys.argv[2]))
"""


def start_chief(folder, seconds=600.0):
  """A process that is the chief for so long."""
  return subprocess.Popen(
    [sys.executable, "-c", CHIEF, str(folder), str(seconds)], cwd=commands.ROOT
  )


def wait_for_change(waiting):
  """Waits, as a worker does, until there is another sign of life."""
  before = waiting._seen
  waiting.wait_until(lambda: waiting._seen != before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_chief_is_noticed_and_its_successor_too(tmp_path, number):
  waiting = heartbeat.Watch(str(tmp_path), silence=30.0)
  for _ in range(2):
    with start_chief(tmp_path) as chief:
      wait_for_change(waiting)
      wait_for_change(waiting)
      chief.send_signal(number)
  waiting = heartbeat.Watch(str(tmp_path), silence=1.0, start=1.0)
  with pytest.raises(InputError, match="no sign of life for 1 seconds"):
    waiting.wait_until(lambda: False)


def test_a_chief_that_ends_leaves_nothing(tmp_path):
  with start_chief(tmp_path, seconds=0.5) as chief:
    pass
  assert chief.returncode == 0
  assert not os.listdir(tmp_path)
