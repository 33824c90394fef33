"""Folders that are created once for all tests and processes of pytest."""

import contextlib
import fcntl
import json
import shutil


class MadeOnce:
  """Folders by name, each created when a test first copies it."""

  def __init__(self, root):
    """`root` is the folder that all processes share."""
    self._root = root

  def copy(self, name, make, path):
    """Copies a folder, which `make` writes if it is missing; returns `path`.

    `path` may be an empty folder.
    """
    folder, record = self._root / name, self._root / f"{name}.made.json"
    with _locked(self._root / f"{name}.lock"):
      if not record.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
        for made in folder.rglob("*"):
          made.chmod(0o555 if made.is_dir() else 0o444)
        record.write_text(json.dumps(_state(folder)))
    shutil.copytree(
      folder, path, copy_function=shutil.copyfile, dirs_exist_ok=True
    )
    for copied in (path, *path.glob("**/")):
      copied.chmod(0o755)
    return path

  def check(self):
    """Asserts that no test has written to a folder instead of a copy."""
    for record in self._root.glob("*.made.json"):
      name = record.name.removesuffix(".made.json")
      state = _state(self._root / name)
      assert state == json.loads(record.read_text()), name


def _state(folder):
  """Size and time of each file; root may write regardless of the mode."""
  found = {}
  for path in folder.rglob("*"):
    status = path.stat()
    found[str(path)] = [status.st_size, status.st_mtime_ns]
  return found


@contextlib.contextmanager
def _locked(path):
  with open(path, "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
