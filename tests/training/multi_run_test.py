"""Tests of running this command again in a subprocess."""

import os
import signal
import subprocess
import sys
import threading
import time

import commands
import pytest
from parametrize import parametrize

from bertlib.cli.errors import InputError
from bertlib.training import loop

pytestmark = pytest.mark.process


def run_code(monkeypatch, code):
  """Runs `code` as if it were this command."""
  monkeypatch.setattr(sys, "argv", ["-c", code])
  loop.run_again("out", ["--seed=3"])


def test_a_module_is_run_as_a_module_with_further_flags(tmp_path):
  (tmp_path / "task.py").write_text("")
  folder = tmp_path / "package"
  folder.mkdir()
  (folder / "job.py").write_text(
    "import sys, task\n"
    "from bertlib.training import loop\n"
    "if sys.argv[1:] != ['--a', '--seed=3', '--output_dir=out']:\n"
    "  loop.run_again('out', ['--seed=3'])\n"
  )
  subprocess.run(
    [sys.executable, "-m", "package.job", "--a"],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": commands.ROOT},
    check=True,
  )


@parametrize(
  "code, error, shown",
  ("sys.exit(143)", SystemExit, "^143$"),
  ("os.kill(os.getpid(), 15)", SystemExit, "^143$"),
  ("sys.exit(1)", InputError, "out: the run failed"),
  ("os.kill(os.getpid(), 9)", InputError, "out: the run failed"),
)
def test_how_a_subprocess_ends_is_passed_on(monkeypatch, code, error, shown):
  with pytest.raises(error, match=shown):
    run_code(monkeypatch, f"import os, sys; {code}")


def test_sigterm_is_passed_to_the_subprocess(tmp_path, monkeypatch):
  begun, ended = tmp_path / "begun", tmp_path / "ended"
  code = (
    "import pathlib, signal, sys, time\n"
    "def stop(*_):\n"
    f"  pathlib.Path({str(ended)!r}).touch()\n"
    "  sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    f"pathlib.Path({str(begun)!r}).touch()\n"
    "time.sleep(60)\n"
  )

  def stop_soon():
    while not begun.exists():
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=stop_soon)
  thread.start()
  with pytest.raises(SystemExit) as stopped:
    run_code(monkeypatch, code)
  thread.join()
  assert stopped.value.code == 143
  assert ended.exists()
