# The container image. Included by the Makefile; docker with BuildKit is needed to build it, not to test it.
IMAGE ?= runpod-worker-ollama-fast:dev
BUILD_ARGS ?=
REVISION = $(shell git rev-parse HEAD 2>/dev/null)

.PHONY: image image-test

image: ## build the image (BUILD_ARGS='--build-arg BAKE_MODEL=…')
	@docker build -t $(IMAGE) --build-arg REVISION=$(REVISION) $(BUILD_ARGS) .

image-test: $(VENV)/dev.installed ## build it offline over stand-in bases and run it (root, OLLAMA_SRC=… needed)
	@IMAGE_TEST=1 $(PY) -m pytest tests/image
