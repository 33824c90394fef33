"""Wrong input prints one line that names the fault, and changes no file.

A row is a case. The rows are in `wrong_input_*.py`, by subject. The first of
each command also runs as a command does, from its flags to its exit status.
The messages in full are in `tests/snapshots/COMMAND.messages.txt`, which
`make snapshots` renews.
"""

import importlib
import io
import os
import pathlib
import sys

import commands
import pytest
import wrong_input_embeddings
import wrong_input_files
import wrong_input_flags
import wrong_input_ranking
import wrong_input_text
import wrong_input_world

from bertlib.cli import errors

pytestmark = pytest.mark.train

SNAPSHOTS = pathlib.Path(__file__).parent / "snapshots"

ROWS = [
  *wrong_input_text.ROWS,
  *wrong_input_files.ROWS,
  *wrong_input_flags.ROWS,
  *wrong_input_embeddings.ROWS,
  *wrong_input_ranking.ROWS,
]
REFUSED = [row for row in ROWS if row.logged is None]


class Case:
  """A row with its own folder, in which its files are."""

  def __init__(self, row, world, folder):
    self.row = row
    self._paths = {
      "world": world,
      "case": folder / "case",
      "out": folder / "out",
    }
    self._folders = world, folder
    (folder / "case").mkdir()
    for name, content in row.files.items():
      if callable(content):
        content = content(world)
      wrong_input_world.write(str(folder / "case" / name), content)
    given = (*wrong_input_world.COMMANDS[row.script], *row.arguments.split())
    self.arguments = [self.fill_in(argument) for argument in given]

  def fill_in(self, text):
    for name, path in self._paths.items():
      text = text.replace(f"{{{name}}}", str(path))
    return text

  def without_paths(self, text):
    """Reverses `fill_in`."""
    for name, path in self._paths.items():
      text = text.replace(str(path), f"{{{name}}}")
    return text

  def content(self):
    found = {}
    for folder in self._folders:
      for path in folder.rglob("*"):
        found[path] = path.read_bytes() if path.is_file() else None
    return found


@pytest.fixture
def case(request, world, tmp_path, monkeypatch):
  made = Case(request.param, world, tmp_path)
  for name, value in made.row.environment.items():
    monkeypatch.setenv(name, made.fill_in(value))
  stdin = io.TextIOWrapper(io.BytesIO(made.row.stdin), encoding="utf-8")
  monkeypatch.setattr(sys, "stdin", stdin)
  return made


def run(case):
  with commands.in_process(importlib.import_module(case.row.script)) as main:
    main(*case.arguments)


def parametrize(rows):
  return pytest.mark.parametrize(
    "case",
    [pytest.param(row, id=f"{row.rule}: {row.name}") for row in rows],
    indirect=True,
  )


@pytest.mark.graph
@parametrize(REFUSED)
def test_wrong_input_is_refused_by_one_line_and_touches_nothing(case):
  before = case.content()
  with pytest.raises(Exception) as raised:
    run(case)
  message = errors.user_error_message(raised.value)
  assert message and "\n" not in message, repr(raised.value)
  assert isinstance(raised.value, case.row.kind), repr(raised.value)
  assert case.content() == before
  check_snapshot(case.row, case.without_paths(message))


def check_snapshot(row, message):
  """Compares a message with its line in the snapshot, or renews it."""
  path = SNAPSHOTS / f"{row.script}.messages.txt"
  title = f"{row.rule}: {row.name}"
  found = read_snapshot(path)
  if "RENEW_SNAPSHOTS" in os.environ:
    found[title] = message
    entries = (f"{key}\n  {found[key]}\n" for key in sorted(found))
    path.write_text("\n".join(entries), encoding="utf-8")
  assert found.get(title) == message, "see `make snapshots`"


def read_snapshot(path):
  if not path.exists():
    return {}
  entries = path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
  return dict(entry.split("\n  ", 1) for entry in entries)


@pytest.mark.unit
def test_snapshots_hold_the_messages_of_all_rows_and_no_others():
  titles = {}
  for row in REFUSED:
    titles.setdefault(row.script, set()).add(f"{row.rule}: {row.name}")
  found = {
    path.name.partition(".")[0]: set(read_snapshot(path))
    for path in SNAPSHOTS.glob("*.messages.txt")
  }
  assert found == titles


@parametrize([row for row in ROWS if row.logged is not None])
def test_what_is_odd_but_works_is_reported(case, caplog):
  run(case)
  assert case.fill_in(case.row.logged) in caplog.text


FIRST_ROWS = {row.script: row for row in reversed(REFUSED)}
# Whose failures in a process of their own no other test shows.
ALONE = ("run_classifier", "export_model", "squad_metrics")


@pytest.mark.process
@parametrize(FIRST_ROWS.values())
def test_a_command_ends_with_status_1_and_one_line(case):
  before = case.content()
  last = commands.fail(
    f"{case.row.script}.py",
    *case.arguments,
    own_process=case.row.script in ALONE,
  )
  path = SNAPSHOTS / f"{case.row.script}.messages.txt"
  message = read_snapshot(path)[f"{case.row.rule}: {case.row.name}"]
  assert case.fill_in(message) in last
  assert case.content() == before
