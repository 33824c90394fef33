#!/usr/bin/env bash
# pandas.read_csv(sep=None) splits a table of one column at a letter of its name.
#
# Versions: pandas 3.1.1.
# Expected: sep=None detects the separator. A table of one column has none: it is
#   one column, or an error.
# Happens: only the first line is looked at, and a letter of it is taken for the
#   separator: "t" of "text", "e" of "review", "y" of "body". Rows are cut at this
#   letter, without a warning.
# Matters: a file of texts is cut to pieces in silence. Name the separator, or
#   accept one only if the columns that are needed are found with it.
# Output:
#   text:   ['Unnamed: 0', 'ex', 'Unnamed: 2'] [[0, 'I', ' fi', 's']]
#   review: ['r', 'vi', 'w'] [[0, 'It fits', nan, nan]]
#   body:   ['bod', 'Unnamed: 1'] [[0, 'It fits', nan]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pandas==3.1.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import io
import sys
import warnings

import pandas

warnings.simplefilter("error")
found = {}
for name in ("text", "review", "body"):
  table = io.StringIO(f"{name}\nIt fits\n")
  frame = pandas.read_csv(table, sep=None, engine="python")
  found[name] = list(frame.columns)
  print(f"{name + ':':7} {found[name]} {frame.reset_index().values.tolist()}")
if any(columns == [name] for name, columns in found.items()):
  sys.exit("changed: a table of one column is read as one")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py"
