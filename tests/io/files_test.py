"""Tests of atomic writing and of file functions, local and remote."""

import json
import os
import pathlib
import sys

import pytest
from parametrize import parametrize

from bertlib.cli.errors import InputError
from bertlib.io import files, output_folders

pytestmark = pytest.mark.unit


@pytest.fixture(params=["", "file://"], ids=["local", "remote"])
def folders(request, tmp_path):
  """A folder: its local path, and its path or URL for the function tested."""
  return tmp_path, f"{request.param}{tmp_path}"


def write(folder, **contents):
  for name, text in contents.items():
    with files.open_any(f"{folder}/{name}", "w") as file:
      file.write(text)


def read(folder):
  return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_is_replaced_as_a_whole(folders):
  folder, path = folders
  for content in ({"a": "old", "b": "old"}, {"a": "new"}):
    with output_folders.atomic_folder(
      f"{path}/out", overwrite=True
    ) as temporary:
      os.makedirs(temporary.removeprefix("file://"))
      write(temporary, **content)
  assert read(folder / "out") == {"a": "new"}
  assert os.listdir(folder) == ["out"]


@parametrize("fails_at", 1, 2)
def test_a_folder_that_is_not_replaced_is_kept(tmp_path, monkeypatch, fails_at):
  path = tmp_path / "out"
  path.mkdir()
  write(path, a="old")
  replace, calls = os.replace, []

  def fail(*paths):
    calls.append(paths)
    if len(calls) == fails_at:
      raise OSError("no room")
    replace(*paths)

  monkeypatch.setattr(os, "replace", fail)
  with (
    pytest.raises(OSError, match="no room"),
    output_folders.atomic_folder(str(path), overwrite=True) as temporary,
  ):
    os.mkdir(temporary)
  assert read(path) == {"a": "old"}
  assert os.listdir(tmp_path) == ["out"]


def test_atomic_files_appear_together_in_a_new_folder(folders):
  folder, path = folders
  with output_folders.atomic_files(f"{path}/new/one") as temporary:
    write(temporary, a="1", b="2")
    assert not (folder / "new" / "one").exists()
  assert read(folder / "new" / "one") == {"a": "1", "b": "2"}
  assert os.listdir(folder / "new") == ["one"]


def test_atomic_files_keep_other_files_and_replace_their_own(folders):
  folder, path = folders
  write(path, a="old", other="kept")
  with output_folders.atomic_files(path) as temporary:
    write(temporary, a="new")
  assert read(folder) == {"a": "new", "other": "kept"}


def test_atomic_files_leave_nothing_after_a_failure(folders):
  folder, path = folders
  write(path, a="old")
  with pytest.raises(KeyError), output_folders.atomic_files(path) as temporary:
    write(temporary, a="new", b="new")
    raise KeyError
  assert read(folder) == {"a": "old"}


@parametrize(
  "options, message",
  ({"overwrite": False}, r"has a already; .*--overwrite"),
  ({"inputs": "a"}, r"a: would overwrite .*, which is an input"),
)
def test_existing_files_and_inputs_are_not_replaced(folders, options, message):
  folder, path = folders
  write(path, a="old")
  if "inputs" in options:
    options = {"inputs": [f"{path}/a"]}
  with (
    pytest.raises(InputError, match=message),
    output_folders.atomic_files(path, **options) as temporary,
  ):
    write(temporary, a="new", b="new")
  assert read(folder) == {"a": "old"}


def test_half_of_an_emoji_is_written_as_its_escape_in_json(tmp_path):
  path = str(tmp_path / "answers.jsonl")
  text = json.dumps("half: \ud83d, whole: 😀", ensure_ascii=False)
  with files.atomic_write(path) as file:
    file.write(text)
  with files.open_any(path) as file:
    written = file.read()
  assert written == '"half: \\ud83d, whole: 😀"'
  assert json.loads(written) == json.loads(text)


def test_checkpoint_files_are_its_index_and_data(folders):
  folder, path = folders
  for name in ("m.index", "m.data-00000-of-00001", "m.meta", "m2.index"):
    (folder / name).touch()
  assert files.checkpoint_files(f"{path}/m") == [
    f"{path}/m.index",
    f"{path}/m.data-00000-of-00001",
  ]


def test_the_state_of_a_file_is_its_size_and_last_change(folders):
  folder, path = folders
  (folder / "a").write_text("12345")
  os.utime(folder / "a", ns=(0, 1_800_000_000 * 10**9))
  assert files.size_and_mtime(f"{path}/a") == (5, 1_800_000_000 * 10**9)


@pytest.fixture
def enter_container(monkeypatch):
  """Has this process run in another container of the same host name."""
  readlink = os.readlink

  def enter(number):
    def read(path):
      if path == "/proc/self/ns/pid":
        return f"pid:[{number}]"
      return readlink(path)

    files._host.cache_clear()
    monkeypatch.setattr(os, "readlink", read)

  yield enter
  files._host.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_containers_of_one_host_name_keep_their_temporary_files_apart(
  enter_container, tmp_path
):
  path = tmp_path / "report"
  enter_container(1)
  first = files.temporary_name(str(path))
  for name in (first, first.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")):
    pathlib.Path(name).write_text("of the first")
  enter_container(2)
  assert files.temporary_name(str(path)) != first
  with files.atomic_write(str(path)) as file:
    file.write("of the second")
  assert len(list(tmp_path.iterdir())) == 3
  enter_container(1)
  files.remove_stale_files(str(path))
  assert list(tmp_path.iterdir()) == [path]


@parametrize(
  "name, expected",
  ("modle.onnx", "Did you mean {folder}/model.onnx?"),
  ("model.onnx", "Name a folder"),
  ("other", "Name a folder"),
)
def test_a_path_alike_is_named_but_not_the_path_itself(
  name, expected, tmp_path
):
  write(tmp_path, **{"model.onnx": "", "model.onnx.old": ""})
  found = files.did_you_mean(f"{tmp_path}/{name}", "Name a folder")
  assert found == expected.format(folder=tmp_path)


def test_only_files_are_plain(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  write(tmp_path, file="")
  plain = [str(tmp_path / "file"), str(tmp_path / "missing"), "gs://bucket/a"]
  assert all(map(files.is_plain, plain))
  others = ["-", str(tmp_path / "pipe"), str(tmp_path), "/dev/null"]
  assert not any(map(files.is_plain, others))
