#!/usr/bin/env bash
# In Beam's RunInference a bad row takes others with it, how many is by time.
#
# Versions: apache-beam 2.77.0.
# Expected: with_exception_handling() gives the row that cannot be predicted with
#   its error, and the predictions of all other rows.
# Happens: the error is that of a batch, whose good rows get no prediction.
#   Batches have 1, 1, 2 and 4 rows at first, and then as many as the measured
#   times suggest. So a bad row takes none or hundreds of others with it,
#   depending on its position and on the speed of the machine.
# Matters: two runs with the same rows and the same model lack different
#   predictions. Check each row before RunInference. Batches of 1 and 2 rows are
#   slow as well: batch_elements_kwargs of the handler sets the sizes.
# Output:
#   sizes of the first batches: 1 1 2 4
#   bad row 0: no predictions for rows [0]
#   bad row 5: no predictions for rows [4, 5, 6, 7]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile apache-beam==2.77.0 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import logging
import sys

import apache_beam as beam
from apache_beam.ml.inference import base
from apache_beam.options.pipeline_options import PipelineOptions

logging.disable(logging.CRITICAL)
ROWS = range(8)
IN_PROCESS = PipelineOptions(["--runner=BundleBasedDirectRunner"])
NOTES = sys.argv[1]


def note(name, value):
  with open(NOTES, "a") as file:
    file.write(f"{name} {value}\n")


def noted(name):
  with open(NOTES) as file:
    lines = map(str.split, file)
    return [int(value) for found, value in lines if found == name]


class Squares:
  """A model."""

  def predict(self, number):
    return number**2


class Handler(base.ModelHandler):
  """Predicts numbers; a text is a bad row."""

  def load_model(self):
    return Squares()

  def run_inference(self, batch, model, inference_args=None):
    note("size", len(batch))
    return [(row, model.predict(row)) for row in batch]


def rows_without_prediction(bad):
  open(NOTES, "w").close()
  rows = ["text" if row == bad else row for row in ROWS]
  with beam.Pipeline(options=IN_PROCESS) as pipeline:
    inference = base.RunInference(Handler()).with_exception_handling()
    good, _ = pipeline | beam.Create(rows, reshuffle=False) | inference
    good | beam.Map(lambda pair: note("predicted", pair[0]))
  return sorted({*ROWS} - {*noted("predicted")})


first, later = rows_without_prediction(0), rows_without_prediction(5)
print("sizes of the first batches:", *noted("size"))
print(f"bad row 0: no predictions for rows {first}")
print(f"bad row 5: no predictions for rows {later}")
if (first, later) != ([0], [4, 5, 6, 7]):
  sys.exit("changed: a bad row fails other rows than those of its batch")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py" "$folder/notes"
