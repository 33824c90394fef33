"""Tests of the text that `--help` and `--helpfull` print.

`tests/snapshots/` holds it for each command; `make snapshots` renews it.
"""

import os
import pathlib
import re
import xml.etree.ElementTree

import commands
import pytest
from settings_test import COMMANDS

from bertlib.cli import command_line, option

pytestmark = pytest.mark.unit

SNAPSHOTS = pathlib.Path(__file__).parent / "snapshots"
every_command = pytest.mark.parametrize("command", sorted(COMMANDS))


def help_of(command, full):
  return command_line.help_text(COMMANDS[command], full)


@every_command
def test_help_is_that_of_the_snapshot(command):
  shown = "".join(
    f"$ python {command}.py {flag}\n\n{help_of(command, full)}\n\n"
    for flag, full in (("--help", False), ("--helpfull", True))
  )
  path = SNAPSHOTS / f"{command}.help.txt"
  if "RENEW_SNAPSHOTS" in os.environ:
    path.write_text(shown, encoding="utf-8")
  assert path.read_text(encoding="utf-8") == shown, "see `make snapshots`"


def test_each_snapshot_is_of_a_command():
  found = {path.name for path in SNAPSHOTS.glob("*.help.txt")}
  assert found == {f"{command}.help.txt" for command in COMMANDS}


@every_command
def test_help_lists_required_flags_and_few_others(command):
  text = help_of(command, full=False)
  shown = re.findall(r"^  (?:-\w, )?--(?:\[no\])?([\w-]+)", text, re.M)
  settings = COMMANDS[command]
  required = {*settings.REQUIRED} - {*settings.BROUGHT_BY_MODEL}
  assert required <= set(shown)
  assert len(shown) <= 26


@every_command
def test_descriptions_are_sentences_that_stand_alone(command):
  for name, flag in option.declarations(COMMANDS[command]):
    assert flag.help.endswith("."), name
    assert not re.search(r"[Ll]ikewise|flags? above|next two", flag.help), name


@every_command
def test_commands_print_their_help(command):
  done = commands.succeed(f"{command}.py", "--help")
  example, summary, rest = done.stdout.split("\n\n", 2)
  assert f"{example}\n\n{rest}" == help_of(command, full=False) + "\n"
  source = (pathlib.Path(commands.ROOT) / f"{command}.py").read_text()
  assert source.startswith(f'"""{summary}\n')
  assert done.stderr == ""


def test_absl_prints_its_own_kinds_of_help():
  done = commands.run("run_ner.py", "--helpxml")
  names = xml.etree.ElementTree.fromstring(done.stdout).iterfind("flag/name")
  assert "train_batch_size" in {name.text for name in names}
  done = commands.run("run_ner.py", "--helpshort")
  assert done.stdout.endswith("Try --helpfull to get a list of all flags.\n")
  assert "--train_batch_size: Windows per" in done.stdout


def test_a_denied_help_flag_prints_no_help():
  assert commands.fail("download_model.py", "--nohelp", "--helpfull=false")


@pytest.mark.process
def test_help_does_not_import_tensorflow(monkeypatch, tmp_path):
  (tmp_path / "tensorflow.py").write_text("raise RuntimeError")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  commands.succeed("run_classifier.py", "--help", own_process=True)
