"""Tests of what all commands share: errors, flags, output files."""

import errno
import os
import sys
import threading

import commands
import pytest
import tensorflow as tf
from parametrize import parametrize
from refused import assert_refused
from tensorflow.io import gfile

from bertlib.cli import errors
from bertlib.cli.errors import InputError
from bertlib.exchange import huggingface_weights
from bertlib.io import files

pytestmark = pytest.mark.unit


@pytest.fixture
def script(tmp_path):
  """Writes a script with the given `main`; returns its path."""

  def write(*lines, before=""):
    main = "".join(f"  {line}\n" for line in lines)
    path = tmp_path / "script.py"
    path.write_text(
      f"import sys; sys.path.insert(0, {commands.ROOT!r})\n"
      "from bertlib.cli import app, errors; from bertlib.io import files\n"
      f"def main(argv):\n{main}{before}\napp.run(main)\n"
    )
    return str(path)

  return write


@pytest.mark.process
def test_main_receives_the_arguments_and_exits_with_0(script):
  settings = "from report import ReportSettings as Settings"
  parses = f"{settings}; app.parse_flags(Settings)"
  printing = script("print(argv[1:])", before=parses)
  done = commands.succeed(printing, "a", "b", own_process=True)
  assert done.stdout == "['a', 'b']\n"


def test_a_program_without_arguments_refuses_them(script):
  line = commands.fail(script("print(argv)"), "a")
  assert line.startswith("script.py: error: 'a': not a flag")


@pytest.mark.process
def test_closed_streams_are_empty_and_take_no_number_of_a_file(
  script, tmp_path
):
  path = tmp_path / "written.txt"
  reading = script(
    f"with open({str(path)!r}, 'w') as file:",
    "  print(repr(sys.stdin.read()), file.fileno(), file=file)",
    "print('unread')",
  )
  shell = 'exec "$@" <&- >&- 2>&-'
  commands.python("-c", shell, "sh", sys.executable, reading, executable="sh")
  text, number = path.read_text().split()
  assert text == "''"
  assert int(number) > 2


@parametrize("verbosity", 0, 1)
def test_input_error_is_one_line_after_a_traceback_if_asked(script, verbosity):
  raises = script("raise errors.InputError('x.tsv, row 3: fix it')")
  done = commands.run(raises, f"--verbosity={verbosity}")
  assert done.returncode == 1
  traceback, message = done.stderr.split("script.py: error: ")
  assert message == "x.tsv, row 3: fix it\n"
  assert ("in main\n" in traceback) == bool(traceback) == bool(verbosity)


@parametrize("joined", "a", "a and b", "a, b and c")
def test_english_list_joins_words(joined):
  words = joined.replace(" and ", ", ").split(", ")
  assert errors.english_list(words) == joined


GONE = os.strerror(errno.ENOENT)
NO_FOLDER = os.strerror(errno.ENOTDIR)
IS_FOLDER = os.strerror(errno.EISDIR)


@pytest.mark.graph
@parametrize(
  "action, name, message",
  (open, "gone", GONE),
  (open, "folder", IS_FOLDER),
  (open, "file/x", NO_FOLDER),
  (lambda path: gfile.GFile(path).read(), "gone", GONE),
  (lambda path: gfile.GFile(path).read(), "folder", IS_FOLDER),
  (lambda path: gfile.GFile(path, "w").write("x"), "gone/x", GONE),
  (lambda path: gfile.makedirs(f"{path}/x"), "file", NO_FOLDER),
  (tf.io.TFRecordWriter, "gone/x", GONE),
)
def test_file_errors_of_python_and_tensorflow_are_one_line(
  tmp_path, action, name, message
):
  (tmp_path / "file").write_text("")
  (tmp_path / "folder").mkdir()
  path = os.path.join(tmp_path, name)
  with pytest.raises((OSError, tf.errors.OpError)) as refused:
    action(path)
  assert errors.user_error_message(refused.value) == f"{path}: {message}"


LONG = (
  "Graph execution error:\n\nNode: 'save'\n/x/m.tmp; REASON\n\t [[{{node}}]]"
)
EAGER = "{{function_node __wrapped__SaveV2}} /x/m.tmp; REASON [Op:SaveV2]"


@parametrize(
  "error, text, reason",
  (tf.errors.UnknownError, LONG, "Permission denied"),
  (tf.errors.UnknownError, LONG, "File too large. "),
  (tf.errors.OutOfRangeError, EAGER, "File too large. "),
  (tf.errors.UnknownError, LONG, "Read-only file system. Name another path"),
)
def test_file_error_is_found_in_a_long_message(error, text, reason):
  found = error(None, None, text.replace("REASON", reason.partition(". ")[0]))
  message = errors.user_error_message(found)
  assert message.startswith(f"/x/m.tmp: {reason}")
  assert "Make room" in message or message.endswith(reason)


@pytest.mark.process
@parametrize(
  "error",
  "KeyError('k')",
  "OSError('names no file')",
  "ConnectionResetError(104, 'Connection reset by peer')",
  "ValueError('broken; No such luck')",
)
def test_other_errors_keep_their_traceback(script, error):
  done = commands.run(script(f"raise {error}"), own_process=True)
  assert done.returncode == 1
  assert "Traceback" in done.stderr and error.partition("(")[0] in done.stderr
  assert "script.py: error:" not in done.stderr


@pytest.mark.process
def test_full_disk_keeps_the_earlier_file(script, tmp_path):
  path = tmp_path / "out"
  path.write_text("earlier")
  fails = script(
    f"with files.atomic_write({str(path)!r}, 'wb') as file:",
    "  for _ in range(1000):",
    "    file.write(b'x' * 5000)",
  )
  line = commands.fail(fails, largest_file=4000)
  assert str(path) in line and ": File too large. Make room there" in line
  assert path.read_text() == "earlier"
  assert sorted(os.listdir(tmp_path)) == ["out", "script.py"]


def test_only_the_file_on_the_full_disk_is_named(script, tmp_path):
  """Two files are open at once."""
  full = tmp_path / "full"
  full.symlink_to("/dev/full")
  fails = script(
    f"with files.atomic_write({str(tmp_path / 'fine')!r}) as fine:",
    f"  with files.atomic_write({str(full)!r}) as full:",
    "    full.write('x')",
  )
  assert f"{full}: No space left on device" in commands.fail(fails)
  assert not (tmp_path / "fine").exists()


def test_text_is_written_as_utf_8_with_unchanged_line_ends(tmp_path):
  path = str(tmp_path / "x")
  with files.atomic_write(path) as file:
    file.write("é中\r\n\n\r")
  with open(path, "rb") as file:
    assert file.read() == "é中\r\n\n\r".encode()
  with files.open_any(path) as file:
    assert file.read() == "é中\r\n\n\r"


@pytest.fixture(params=["", "file://"])
def path(request, tmp_path):
  """Path of an earlier file: plain, and as a URL for TensorFlow."""
  (tmp_path / "out").write_text("earlier")
  return f"{request.param}{tmp_path}/out"


def test_file_is_replaced_when_it_is_complete(tmp_path, path):
  with files.atomic_write(path, "wb") as file:
    file.write(b"la")
    file.flush()
    assert (tmp_path / "out").read_text() == "earlier"
    file.write(b"ter")
  assert (tmp_path / "out").read_text() == "later"
  assert os.listdir(tmp_path) == ["out"]


@parametrize("error", ValueError, KeyboardInterrupt, SystemExit)
def test_failure_keeps_the_earlier_file_and_nothing_else(tmp_path, path, error):
  with pytest.raises(error), files.atomic_write(path) as file:
    file.write("later")
    raise error
  assert (tmp_path / "out").read_text() == "earlier"
  assert os.listdir(tmp_path) == ["out"]


@parametrize(
  "name, error", ("", IsADirectoryError), ("/no/folder", FileNotFoundError)
)
def test_error_names_the_file_not_its_temporary_name(tmp_path, name, error):
  path = f"{tmp_path}{name}"
  with pytest.raises(error) as refused:
    files.atomic_write(path).__enter__()
  assert refused.value.filename == path


def test_pipe_is_written_directly(tmp_path):
  path = tmp_path / "pipe"
  os.mkfifo(path)
  read = []
  reader = threading.Thread(target=lambda: read.append(path.read_text()))
  reader.start()
  with files.atomic_write(str(path)) as file:
    file.write("through")
  reader.join()
  assert read == ["through"]
  assert path.is_fifo()


@parametrize(
  "text, shown",
  ("plain text", "plain text"),
  ("中文 naïve\u00a0שלום", "中文 naïve\u00a0שלום"),
  ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
  ("two\nlines\r\tand\x7f\x9b", r"two\nlines\r\tand\x7f\x9b"),
  ("\u202eright to left\u2066", r"\u202eright to left\u2066"),
  ("half \udcff", r"half \udcff"),
)
def test_printable_escapes_only_control_characters(text, shown):
  assert errors.printable(text) == shown


def test_errors_and_log_lines_are_escaped(script):
  done = commands.run(
    script(
      "import absl.logging",
      "absl.logging.info('tokens: %s', 'a\\x1b[2Jb\\nc')",
      "raise errors.InputError('x.tsv: unknown label \\x1b[31m\\ny')",
    )
  )
  first, last = done.stderr.splitlines()
  assert first.endswith(r"tokens: a\x1b[2Jb\nc")
  assert last.endswith(r"unknown label \x1b[31m\ny")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "folder").mkdir()
  path = tmp_path / "corpus.txt"
  path.write_text("text\n")
  (tmp_path / "link.txt").symlink_to(path)
  os.link(path, tmp_path / "hard.txt")
  (tmp_path / "linked").symlink_to(tmp_path)
  (tmp_path / "other.txt").write_text("text\n")
  return path


@parametrize(
  "name",
  "corpus.txt",
  "./corpus.txt",
  "folder/../corpus.txt",
  "link.txt",
  "hard.txt",
  "linked/corpus.txt",
  "file://{folder}/corpus.txt",
)
def test_output_that_is_an_input_under_another_name_is_refused(corpus, name):
  name = name.format(folder=corpus.parent)
  for output, read in [(name, str(corpus)), (str(corpus), name)]:
    with pytest.raises(InputError, match=f"^{output}: "):
      files.check_outputs(["new.txt", output], ["other.txt", read])


@pytest.mark.process
def test_output_that_is_read_as_standard_input_is_refused(corpus):
  code = "from bertlib.io import files as c;"
  code += " c.check_outputs(['corpus.txt'], ['-'])"
  for name, ends_well in [("corpus.txt", False), ("other.txt", True)]:
    with open(name) as file:
      done = commands.run_code(code, stdin=file)
    assert (done.returncode == 0) == ends_well


@pytest.mark.process
def test_standard_output_is_another_file_than_standard_input(corpus):
  code = "from bertlib.io import files as c; c.check_outputs(['-'], ['-'])"
  for name, ends_well in [("corpus.txt", False), ("other.txt", True)]:
    with open("corpus.txt") as file, open(name, "a") as output:
      done = commands.run_code(code, stdin=file, stdout=output)
    assert (done.returncode == 0) == ends_well


def test_outputs_in_the_folder_of_inputs_are_accepted(corpus):
  outputs = ["new.txt", "corpus.txt.run.json", "folder", "/dev/null"]
  inputs = [str(corpus), None, "missing.txt", "/dev/null", "folder"]
  files.check_outputs(outputs, inputs)


def test_remote_outputs_are_compared_by_name():
  with pytest.raises(InputError, match=r"^gs://bucket/a//b\.txt"):
    files.check_outputs(["gs://bucket/a//b.txt"], ["gs://bucket/a/b.txt"])
  files.check_outputs(["gs://bucket/b.txt"], ["gs://bucket/a/b.txt"])


def test_folder_is_refused_if_inputs_would_be_overwritten(corpus):
  names = ["*.txt.out", "hard.*"]
  with pytest.raises(InputError, match=r"hard\.txt"):
    files.check_output_dir(".", names, ["corpus.txt"])
  files.check_output_dir(".", names, ["other.txt"])
  files.check_output_dir("missing", names, ["other.txt"])


@parametrize(
  "name",
  "../outside.bin",
  "sub/../../outside.bin",
  "..\\outside.bin",
  "link.bin",
  "",
  None,
  "nul\0.bin",
)
def test_file_list_may_name_only_files_in_its_own_folder(tmp_path, name):
  folder = tmp_path / "model"
  (folder / "sub").mkdir(parents=True)
  for path in ("outside.bin", "model/a.bin", "model/sub/b.bin"):
    (tmp_path / path).write_bytes(b"")
  (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
  index = str(folder / "index.json")
  for good in ("a.bin", "sub/b.bin"):
    found = huggingface_weights.file_within(index, good)
    assert found == str(folder / good)
  assert_refused(f"^{index}: ", huggingface_weights.file_within, index, name)


def test_folder_of_links_into_a_cache_is_accepted(tmp_path):
  (tmp_path / "blobs").mkdir()
  (tmp_path / "snapshot").mkdir()
  for name in ("index.json", "a.bin"):
    (tmp_path / "blobs" / name).write_bytes(b"")
    (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
  folder = str(tmp_path / "snapshot")
  index = os.path.join(folder, "index.json")
  found = huggingface_weights.file_within(index, "a.bin")
  assert found.startswith(folder)
