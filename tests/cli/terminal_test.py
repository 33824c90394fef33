"""Tests of what commands show: data, progress, a quiet log."""

import os
import re
import sys

import pytest
from absl import logging
from parametrize import parametrize

from bertlib.cli import terminal
from bertlib.io import files

pytestmark = pytest.mark.unit


@parametrize("is_terminal", False, True)
def test_data_are_escaped_on_a_terminal_only(capsys, monkeypatch, is_terminal):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
  terminal.show("a\x1b[2J", "b")
  escape = r"\x1b" if is_terminal else "\x1b"
  assert capsys.readouterr().out == f"a{escape}[2J\tb\n"


def test_files_are_completed_when_a_pipe_s_reader_ends(tmp_path, monkeypatch):
  reader, writer = os.pipe()
  os.close(reader)
  with open(writer, "w") as stdout:  # writes at its end too
    monkeypatch.setattr(sys, "stdout", stdout)
    for number in "12":
      with files.atomic_write(str(tmp_path / number)) as file:
        terminal.print_table([{"number": number}])
        terminal.show(number)
        file.write(number)
  assert [(tmp_path / number).read_text() for number in "12"] == ["1", "2"]


def test_progress_without_a_terminal_is_log_lines(log):
  with terminal.progress(4, "files", delay=0, mininterval=0) as bar:
    bar.update(3)
  assert log[0] == "0 of 4 files, ? left"
  assert re.fullmatch(r"3 of 4 files, \d\d:\d\d left", log[-1])


def test_short_work_shows_no_progress(log):
  with terminal.progress(4, "files") as bar:
    bar.update(4)
  assert log == []


def test_a_quiet_block_leaves_the_log_as_it_was(caplog):
  caplog.set_level("INFO")
  caplog.set_level("NOTSET", logger="absl")
  with terminal.quiet(logging.WARNING):
    logging.info("left out")
    logging.warning("a warning")
  logging.info("after the block")
  assert caplog.messages == ["a warning", "after the block"]


def test_a_quiet_block_stays_quiet_when_a_level_is_set_within(caplog):
  with terminal.quiet(logging.WARNING):
    caplog.set_level("INFO", logger="absl")  # as saving a SavedModel does
    logging.info("left out")
  assert not caplog.messages
