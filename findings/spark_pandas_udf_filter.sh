#!/usr/bin/env bash
# A filter on the result of a pandas_udf shows rows that fail the filter.
#
# Versions: pyspark 4.3.0 (Java 17), pandas 3.1.1, pyarrow 26.0.1.
# Expected: the function is called once per row, the filter is applied to its
#   result, and that result is shown.
# Happens: the function is called for the filter, and once more for the rows that
#   pass; the second result is shown. A function whose answer changes (a sample,
#   a service, a model that was replaced) shows rows that fail the filter.
# Matters: a model predicts rows twice, and the larger the share of rows that
#   pass, the longer it takes. Mark the function with asNondeterministic(), or
#   use mapInPandas: both are called once per row.
# Output:
#   pandas_udf:           200 rows computed, is_first of the 100 shown: [0]
#   asNondeterministic(): 100 rows computed, is_first of the 100 shown: [1]
#   mapInPandas:          100 rows computed, is_first of the 100 shown: [1]
set -euo pipefail
command -v java > /dev/null || exit 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile 'pyspark[sql]==4.3.0' \
  numpy==2.5.5 pandas==3.1.1 pyarrow==26.0.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

NOTES, NUM_ROWS = sys.argv[1], 100


def is_first(ids):
  """1 where each row of the table was given once so far, else 0."""
  with open(NOTES, "a") as file:
    file.write("." * len(ids))
  return ids * 0 + int(os.path.getsize(NOTES) <= NUM_ROWS)


def predict(batches):
  for batch in batches:
    yield batch.assign(is_first=is_first(batch["id"]))


spark = SparkSession.builder.master("local[1]").getOrCreate()
rows = spark.range(NUM_ROWS)
udf = pandas_udf(is_first, "long")
tables = {
  "pandas_udf": rows.withColumn("is_first", udf("id")),
  "asNondeterministic()": rows.withColumn(
    "is_first", pandas_udf(is_first, "long").asNondeterministic()("id")
  ),
  "mapInPandas": rows.mapInPandas(predict, "id long, is_first long"),
}
found = {}
for name, table in tables.items():
  open(NOTES, "w").close()
  shown = [row.is_first for row in table.filter("is_first = 1").collect()]
  found[name] = os.path.getsize(NOTES), sorted({*shown})
  print(
    f"{name + ':':21} {found[name][0]} rows computed,"
    f" is_first of the {len(shown)} shown: {found[name][1]}"
  )
spark.stop()
if [*found.values()] != [(200, [0]), (100, [1]), (100, [1])]:
  sys.exit("changed: a pandas_udf that is filtered by is called once per row")
PYTHON
PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 \
  "$folder/venv/bin/python" "$folder/finding.py" "$folder/notes" 2> "$folder/log" ||
  { tail -n 1 "$folder/log"; exit 1; }
