"""Makes the package `bert` of the wheel from the modules of the checkout.

`modeling` of the checkout is `bert.modeling` in the wheel, and `bertlib` is
`bert.bertlib`: only the import statements of the copies there differ. `bert`
has no `__init__.py`, so that Python prefers a folder of that name which comes
earlier on the path.
"""

import glob
import pathlib
import re
import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

_NAMES = "|".join(["bertlib", *(path[:-3] for path in glob.glob("*.py"))])
_REWRITES = {
  rf"(?m)^( *)import ({_NAMES})$": r"\1from bert import \2",
  rf"(?m)^( *)from ((?:{_NAMES})(?:\.\w+)*) import\b": r"\1from bert.\2 import",
}


class BuildPackage(build_py):
  """Copies the modules, with imports from `bert`."""

  def run(self):
    # An earlier build may have left modules that are gone since.
    shutil.rmtree(pathlib.Path(self.build_lib, "bert"), ignore_errors=True)
    super().run()

  def find_package_modules(self, package, package_dir):
    found = super().find_package_modules(package, package_dir)
    return [row for row in found if row[1] != "setup"]

  def build_module(self, module, module_file, package):
    path, copied = super().build_module(module, module_file, package)
    text = pathlib.Path(path).read_text(encoding="utf-8")
    for pattern, replacement in _REWRITES.items():
      text = re.sub(pattern, replacement, text)
    pathlib.Path(path).write_text(text, encoding="utf-8")
    return path, copied


class InstallEditable(editable_wheel):
  """Installs no module: those of a checkout are used in its folder."""

  def run(self):
    self.distribution.packages = []
    super().run()


setup(
  packages=["bert"]
  + [f"bert.{name}" for name in find_packages(include=["bertlib*"])],
  package_dir={"bert": ".", "bert.bertlib": "bertlib"},
  package_data={
    "bert": ["CITATION.cff"],
    "bert.bertlib.cli": ["*.json"],
    "bert.bertlib.exchange": ["*.json"],
    "bert.bertlib.export": ["*.json"],
    "bert.bertlib.reporting": ["*.css"],
  },
  include_package_data=False,
  cmdclass={"build_py": BuildPackage, "editable_wheel": InstallEditable},
)
