#!/usr/bin/env bash
# Dataset.map returns the rows of an earlier run with another num_proc.
#
# Versions: datasets 5.2.0.
# Expected: num_proc changes the time only; or, where a function of batches
#   depends on where batches end, each num_proc gives its own rows, every time
#   the same.
# Happens: with a batched function that regroups rows, as text is packed for
#   pretraining, one process and four give different rows, since each process
#   has batches of its own. But the key of the cache has no num_proc, and the
#   cached files of any number of processes are taken: which rows a script gets
#   depends on what was run before it.
# Matters: two machines with one script, one data set and one num_proc train on
#   different rows. And a benchmark of num_proc measures nothing after the first
#   number: delete the cache, or pass load_from_cache_file=False.
# Output:
#   new cache, num_proc=None first: 142 rows, then num_proc=4: 142 rows
#   new cache, num_proc=4 first:    140 rows, then num_proc=None: 140 rows
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile datasets==5.2.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import pathlib
import sys

import datasets

datasets.disable_progress_bars()


def sevens(batch):
  numbers = batch["number"]
  whole = len(numbers) // 7 * 7
  return {"numbers": [numbers[i : i + 7] for i in range(0, whole, 7)]}


def rows(cache, num_proc):
  numbers = datasets.load_dataset(
    "parquet", data_files=data, cache_dir=cache, split="train"
  )
  grouped = numbers.map(
    sevens, batched=True, remove_columns=["number"], num_proc=num_proc
  )
  return len(grouped)


if __name__ == "__main__":
  folder = pathlib.Path(sys.argv[1])
  data = str(folder / "numbers.parquet")
  datasets.Dataset.from_dict({"number": range(1001)}).to_parquet(data)
  one_first, four_second = (rows(str(folder / "a"), n) for n in (None, 4))
  four_first, one_second = (rows(str(folder / "b"), n) for n in (4, None))
  print(
    f"new cache, num_proc=None first: {one_first} rows, "
    f"then num_proc=4: {four_second} rows"
  )
  print(
    f"new cache, num_proc=4 first:    {four_first} rows, "
    f"then num_proc=None: {one_second} rows"
  )
  if not one_first == four_second != four_first == one_second:
    sys.exit("changed: the cache of Dataset.map knows num_proc")
PYTHON
HF_HOME="$folder/home" HF_HUB_OFFLINE=1 \
  "$folder/venv/bin/python" "$folder/finding.py" "$folder"
