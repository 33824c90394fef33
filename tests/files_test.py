"""Tests of files: what appears whole or not at all, local and remote."""

import os

import pytest

from bertlib import files
from bertlib.errors import InputError

pytestmark = pytest.mark.unit


@pytest.fixture(params=["", "file://"], ids=["local", "remote"])
def place(request, tmp_path):
  """A folder as its path and as a user names it."""
  return tmp_path, f"{request.param}{tmp_path}"


def write(folder, **contents):
  for name, text in contents.items():
    with files.open_any(f"{folder}/{name}", "w") as file:
      file.write(text)


def read(folder):
  return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
  ("path", "remote"),
  [("gs://bucket/file", True), ("file:///file", True), ("/a/b:c", False)],
)
def test_a_remote_path_has_a_scheme(path, remote):
  assert files.is_remote(path) == remote


def test_files_appear_together_in_a_folder_that_is_made(place):
  folder, path = place
  with files.atomic_files(f"{path}/new/one") as beside:
    write(beside, a="1", b="2")
    assert not (folder / "new" / "one").exists()
  assert read(folder / "new" / "one") == {"a": "1", "b": "2"}
  assert os.listdir(folder / "new") == ["one"]


def test_files_appear_beside_others_and_replace_their_own(place):
  folder, path = place
  write(path, a="old", other="kept")
  with files.atomic_files(path) as beside:
    write(beside, a="new")
  assert read(folder) == {"a": "new", "other": "kept"}


def test_of_files_that_fail_nothing_appears(place):
  folder, path = place
  write(path, a="old")
  with pytest.raises(KeyError), files.atomic_files(path) as beside:
    write(beside, a="new", b="new")
    raise KeyError
  assert read(folder) == {"a": "old"}


def test_files_that_may_not_be_replaced_are_named(place):
  folder, path = place
  write(path, a="old")
  with (
    pytest.raises(InputError, match=r"has a already; .*--overwrite"),
    files.atomic_files(path, overwrite=False) as beside,
  ):
    write(beside, a="new", b="new")
  assert read(folder) == {"a": "old"}


def test_files_do_not_replace_inputs(place):
  folder, path = place
  write(path, a="input")
  with (
    pytest.raises(
      InputError, match=r"a: would overwrite .*, which is an input"
    ),
    files.atomic_files(path, inputs=[f"{path}/a"]) as beside,
  ):
    write(beside, a="new")
  assert read(folder) == {"a": "input"}


def test_what_a_failed_download_has_brought_stays_for_the_next(tmp_path):
  path = tmp_path / "archive"
  with (
    pytest.raises(KeyError),
    files.resumable_file(str(path)) as part,
    open(part, "a") as file,
  ):
    file.write("half ")
    raise KeyError
  assert not path.exists()
  with files.resumable_file(str(path)) as part, open(part, "a") as file:
    file.write("whole")
  assert read(tmp_path) == {"archive": "half whole"}


def test_the_files_of_a_checkpoint_are_its_index_and_its_data(place):
  folder, path = place
  for name in ("m.index", "m.data-00000-of-00001", "m.meta", "m2.index"):
    (folder / name).touch()
  assert files.checkpoint_files(f"{path}/m") == [
    f"{path}/m.index",
    f"{path}/m.data-00000-of-00001",
  ]


def test_the_state_of_a_file_has_its_size(place):
  folder, path = place
  (folder / "a").write_text("12345")
  assert files.file_state(f"{path}/a")[0] == 5
