#!/usr/bin/env bash
# A null in a dictionary column becomes the last value of the dictionary.
#
# Versions: ray 2.60.0, numpy 2.5.5, pandas 3.1.1, pyarrow 26.0.1.
# Expected: a null stays a null (None or nan) in the batches of map_batches,
#   whatever type the column of the table has.
# Happens: in batches of NumPy arrays, the default, a column of Arrow's type
#   dictionary has the last value of the dictionary where the table has a null.
#   In batches of pandas or pyarrow it is null.
# Matters: pandas writes a categorical column to Parquet as a dictionary. Its
#   missing texts get the label of another text, without any sign. Give
#   batch_format="pyarrow", or cast the column to string before.
# Output:
#   table:   ['red', None, 'green', 'blue', None]
#   numpy:   ['red', 'blue', 'green', 'blue', 'blue']
#   pandas:  ['red', nan, 'green', 'blue', nan]
#   pyarrow: ['red', None, 'green', 'blue', None]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile 'ray[data]==2.60.0' \
  numpy==2.5.5 pandas==3.1.1 pyarrow==26.0.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import logging
import sys

import pyarrow
import ray

TEXTS = ["red", None, "green", "blue", None]


def seen(batch):
  texts = batch["text"]
  texts = texts.to_pylist() if hasattr(texts, "to_pylist") else [*texts]
  return {"texts": [str(texts)]}


ray.init(num_cpus=2, log_to_driver=False, logging_level=logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
column = pyarrow.array(TEXTS).dictionary_encode()
dataset = ray.data.from_arrow(pyarrow.table({"text": column}))
found = {"table": str(column.to_pylist())}
for name in ("numpy", "pandas", "pyarrow"):
  (row,) = dataset.map_batches(seen, batch_format=name).take_all()
  found[name] = row["texts"]
for name, texts in found.items():
  print(f"{name + ':':8} {texts}")
ray.shutdown()
wrong = ["red", "blue", "green", "blue", "blue"]
if (found["numpy"], found["pyarrow"]) != (str(wrong), found["table"]):
  sys.exit("changed: nulls of dictionary columns are read in another way")
PYTHON
RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" "$folder/finding.py" \
  2> "$folder/log" || { tail -n 1 "$folder/log"; exit 1; }
