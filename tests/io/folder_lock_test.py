"""Tests of locks on output folders and files, and of stop signals."""

import contextlib
import errno
import os
import signal
import subprocess
import sys

import commands
import pytest
from parametrize import parametrize
from refused import refusal

from bertlib.io import files, folder_lock, output_folders

pytestmark = pytest.mark.process

# Holds a lock until it is killed.
_HOLDER = """
import time
from bertlib.io import folder_lock
with folder_lock.{function}({argument!r}):
  print("locked", flush=True)
  time.sleep(600)
"""

_PARENT = """
import os, subprocess
from bertlib.io import folder_lock
with folder_lock.lock_folder({folder!r}):
  child = subprocess.Popen(["sleep", "600"], pass_fds=folder_lock.held_files())
  print(child.pid, flush=True)
  os.kill(os.getpid(), 9)
"""


def start(code):
  return subprocess.Popen(
    [sys.executable, "-c", code],
    stdout=subprocess.PIPE,
    env=os.environ | {"PYTHONPATH": commands.ROOT},
  )


@contextlib.contextmanager
def holder(function, argument):
  """Runs a process that holds a lock within the block."""
  with start(_HOLDER.format(function=function, argument=argument)) as process:
    assert process.stdout.readline() == b"locked\n"
    try:
      yield process
    finally:
      process.kill()


def acquire(lock, argument):
  with lock(argument):
    pass


def test_second_writer_is_refused_until_the_first_is_killed(tmp_path):
  folder = tmp_path / "out"
  with holder("lock_folder", str(folder)) as process:
    message = refusal(acquire, folder_lock.lock_folder, str(folder))
    for text in (str(folder), str(process.pid), "--output_dir"):
      assert text in message
    process.kill()
    process.wait()
    with folder_lock.lock_folder(str(folder)):
      content = (folder / folder_lock.LOCK_FILE).read_text()
      assert content.startswith(f"process {os.getpid()} on ")
  assert os.listdir(folder) == []


def test_a_folder_is_locked_while_a_writer_holds_its_lock(tmp_path):
  assert not folder_lock.is_locked(str(tmp_path))
  with folder_lock.lock_folder(str(tmp_path)):
    assert folder_lock.is_locked(str(tmp_path))
  assert not folder_lock.is_locked(str(tmp_path))


def test_files_in_a_folder_are_locked_separately(tmp_path):
  one, other = str(tmp_path / "one"), str(tmp_path / "other")
  with holder("lock_files", [one]) as process:
    acquire(folder_lock.lock_files, [other])
    message = refusal(acquire, folder_lock.lock_files, [other, one])
    assert str(process.pid) in message and "--output_file" in message
    # Locks acquired before the refusal are released.
    acquire(folder_lock.lock_files, [other])
    # Wildcards do not match lock files.
    refusal(files.find_files, [str(tmp_path / "*")])


def test_subprocess_holds_the_lock_of_its_killed_parent(tmp_path):
  folder = str(tmp_path)
  with start(_PARENT.format(folder=folder)) as parent:
    child = int(parent.stdout.readline())
    parent.wait()
  try:
    assert str(parent.pid) in refusal(acquire, folder_lock.lock_folder, folder)
  finally:
    os.kill(child, signal.SIGKILL)
  commands.wait_until(lambda: not folder_lock.is_locked(folder))
  acquire(folder_lock.lock_folder, folder)


@pytest.mark.unit
def test_a_fork_does_not_hold_the_lock_of_its_killed_parent(tmp_path):
  parent = start(
    f"""
import os, time
from bertlib.io import folder_lock
with folder_lock.lock_folder({str(tmp_path)!r}):
  child = os.fork()
  if not child:
    print(os.getpid(), flush=True)
    time.sleep(600)
  os.waitpid(child, 0)
"""
  )
  child = int(parent.stdout.readline())
  try:
    parent.kill()
    parent.wait()
    assert not folder_lock.is_locked(str(tmp_path))
  finally:
    os.kill(child, signal.SIGKILL)


def test_lock_file_removed_by_its_holder_is_locked_anew(tmp_path, monkeypatch):
  path = str(tmp_path / folder_lock.LOCK_FILE)
  real, opened = os.open, []

  def open_and_remove(name, *arguments):
    opened.append(real(name, *arguments))
    if len(opened) == 1:
      os.remove(name)  # between opening and locking
    return opened[-1]

  monkeypatch.setattr(os, "open", open_and_remove)
  with folder_lock.lock_folder(str(tmp_path)):
    assert len(opened) == 2
    assert os.path.samestat(os.stat(path), os.fstat(opened[-1]))


@pytest.mark.unit
@parametrize("number", errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
@parametrize("lock", folder_lock.lock_folder, output_folders.wait_for_lock)
def test_file_system_without_locks_logs_a_warning(
  lock, number, tmp_path, monkeypatch, caplog
):
  def refuse(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr("fcntl.flock", refuse)
  path = str(tmp_path / "path")
  with caplog.at_level("WARNING", "absl"), lock(path):
    pass
  (message,) = caplog.messages
  assert message.startswith(f"{path}: cannot be locked")


@pytest.mark.unit
def test_remote_folder_is_not_locked(caplog):
  folder = "ram://folder_lock_test"
  with caplog.at_level("WARNING", "absl"), folder_lock.lock_folder(folder):
    assert folder_lock.held_files() == ()
    assert not folder_lock.is_locked(folder)
  (message,) = caplog.messages
  assert message.startswith(f"{folder}: cannot be locked")


def temporary(path, pid=None, host=None):
  """Temporary name of a file of another process or machine."""
  prefix, name = files.temporary_name("").rsplit("-", 2)[0], path.name
  host = host or prefix.removeprefix(".bert-tmp-")
  return path.parent / f".bert-tmp-{host}-{pid or os.getppid()}-{name}"


def test_temporary_files_of_dead_processes_are_removed(tmp_path):
  dead = subprocess.Popen(["true"])
  dead.wait()
  strays = [
    temporary(tmp_path / "run.json", dead.pid),
    temporary(tmp_path / "a", 1, "01234567"),
  ]
  alive = [
    temporary(tmp_path / "run.json"),
    temporary(tmp_path / "b", 1, "01234567"),
  ]
  for path in [*strays, *alive]:
    path.touch()
  os.utime(strays[1], (0, 0))
  (temporary(tmp_path / "export", dead.pid) / "variables").mkdir(parents=True)
  acquire(folder_lock.lock_folder, str(tmp_path))
  assert sorted(tmp_path.iterdir()) == sorted(alive)


@pytest.mark.unit
@parametrize(
  "name",
  "my.tmp",
  "notes.1.tmp",
  "scores.backup.20261101.tmp",  # as 0.16.0 named its own
  ".scores.vm-01234567.77.tmp",
  ".bert-tmp-notes",
  ".bert-tmp-host-1-notes",
  ".bert-tmp-01234567-1-",
  "bert-tmp-01234567-1-notes",
)
@parametrize("kind", "file", "folder")
def test_files_of_the_user_are_not_removed(tmp_path, name, kind):
  path = tmp_path / name
  path.touch() if kind == "file" else path.mkdir()
  os.utime(path, (0, 0))
  acquire(folder_lock.lock_folder, str(tmp_path))
  with files.atomic_write(str(tmp_path / "scores")):
    pass
  assert path.exists()


@pytest.mark.unit
def test_a_link_with_a_temporary_name_and_its_target_are_kept(tmp_path):
  target = tmp_path / "target"
  target.mkdir()
  link = tmp_path / ".bert-tmp-01234567-1-link"
  link.symlink_to(target)
  os.utime(link, (0, 0), follow_symlinks=False)
  acquire(folder_lock.lock_folder, str(tmp_path))
  assert link.is_symlink() and target.is_dir()


_LISTENER = """
import os, signal
from bertlib.cli import app, terminal
from bertlib.io import files
from absl import flags

def main(_):
  with files.atomic_write({path!r}) as file:
    file.write("half")
    {act}

app.run(main)
"""


def listen(folder, act):
  """Runs a command that acts while it writes a file to a folder."""
  path = str(folder / "out.txt")
  return commands.run_code(_LISTENER.format(path=path, act=act))


@parametrize("name, status", ("SIGTERM", 143), ("SIGINT", 130))
def test_stopped_commands_leave_one_line_and_no_file(tmp_path, name, status):
  done = listen(tmp_path, f"os.kill(os.getpid(), signal.{name})")
  assert done.returncode == status, done.stderr
  (line,) = done.stderr.splitlines()
  assert name in line
  assert os.listdir(tmp_path) == []


def test_second_interrupt_ends_the_process_at_once(tmp_path):
  act = """
    with terminal.on_stop_signals(print):
      os.kill(os.getpid(), signal.SIGINT)
      os.kill(os.getpid(), signal.SIGINT)
      while True: pass"""
  assert listen(tmp_path, act).returncode == -signal.SIGINT
