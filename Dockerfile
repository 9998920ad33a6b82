# The worker image. Stages by role: ollama-fetch → ollama-src → ollama-build, engine, pull → models, base → python → runtime.
# Every base is one argument with an exact tag; give it with @sha256:… to pin the very bytes.
ARG DEBIAN=debian:trixie-20261005-slim
ARG GOLANG=golang:1.26.8-bookworm
# The same version as in patches/UPSTREAM: the patched binary and llama-server must come from one release.
ARG OLLAMA_VERSION=0.32.15
ARG OLLAMA=ollama/ollama:${OLLAMA_VERSION}

# Ollama's source at one commit, which git verifies. By git and not by ADD: that needs git beside the builder.
FROM ${GOLANG} AS ollama-fetch
ARG OLLAMA_REPOSITORY=https://github.com/ollama/ollama
ARG OLLAMA_COMMIT=b7871fc0d1d82fe109536efa3e0e8e411c766c75
WORKDIR /source
RUN git init -q . \
    && git fetch -q --depth=1 "$OLLAMA_REPOSITORY" "$OLLAMA_COMMIT" \
    && git checkout -q FETCH_HEAD \
    && rm -rf .git

# `--build-context ollama-src=DIR` takes a local copy instead.
FROM scratch AS ollama-src
COPY --from=ollama-fetch /source /

# Ollama's Go part with our patches, built the way its own releases are.
FROM ${GOLANG} AS ollama-build
WORKDIR /src
COPY --from=ollama-src / ./
COPY patches /patches
RUN /patches/apply.sh /src
ARG OLLAMA_VERSION
ENV CGO_ENABLED=1
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go build -trimpath -buildmode=pie -o /ollama -ldflags="-w -s \
      -X=github.com/ollama/ollama/version.Version=${OLLAMA_VERSION} \
      -X=github.com/ollama/ollama/server.mode=release" .
# Upstream's own tests of the packages we change, and ours beside them. 0 skips them.
ARG RUN_UPSTREAM_TESTS=1
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    if [ "$RUN_UPSTREAM_TESTS" = 1 ]; then go test ./llm ./discover ./ml ./server; fi

# llama-server, its libraries and the chosen CUDA variants, as upstream compiled them. What is not chosen goes:
# each further variant costs six processes at every start, and MLX is loaded by every `ollama` process.
FROM ${OLLAMA} AS engine
ARG CUDA_VARIANTS="cuda_v12"
WORKDIR /usr/lib/ollama
RUN for variant in $CUDA_VARIANTS; do \
      case $variant in cuda_v*) ;; *) echo "CUDA_VARIANTS: $variant is no CUDA variant" >&2; exit 1 ;; esac; \
      [ -d "$variant" ] || { echo "CUDA_VARIANTS: $variant is not among" */ >&2; exit 1; }; \
    done; \
    for directory in */; do \
      case " $CUDA_VARIANTS " in *" ${directory%/} "*) ;; *) rm -rf "$directory" ;; esac; \
    done

# The weights to bake in, as a store of Ollama's; empty without BAKE_MODEL.
FROM ${OLLAMA} AS pull
ARG BAKE_MODEL=""
ENV OLLAMA_MODELS=/models OLLAMA_HOST=127.0.0.1:11434
RUN mkdir /models; \
    if [ -n "$BAKE_MODEL" ]; then \
      ollama serve & \
      for _ in $(seq 300); do ollama list >/dev/null 2>&1 && break; sleep 0.2; done; \
      ollama pull "$BAKE_MODEL"; \
    fi

# `--build-context models=DIR` bakes a store you have (~/.ollama/models) instead of pulling.
FROM scratch AS models
COPY --from=pull /models /

# Debian 13: glibc 2.41, Python 3.13 with its library compiled to bytecode, no pip.
FROM ${DEBIAN} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends "ca-certificates=20250419*" "python3=3.13.5-*" "tini=0.19.0-*" \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/cache/debconf/* /var/log/*

# What Python runs: the locked packages and the worker, all as bytecode that needs no look at its source.
FROM base AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends "python3-pip=25.1.1*" \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/worker.txt /tmp/
RUN python3 -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --disable-pip-version-check \
      --require-hashes --no-deps --only-binary=:all: -r /tmp/worker.txt \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib
WORKDIR /app
COPY handler.py start.sh ./
COPY worker worker
RUN python3 -m compileall -q --invalidation-mode unchecked-hash worker

FROM base AS runtime
# Largest and least often changed first.
COPY --from=engine /usr/lib/ollama /usr/lib/ollama
COPY --from=models / /opt/ollama/models/
COPY --from=ollama-build /ollama /usr/bin/ollama
COPY --from=ollama-src /LICENSE /usr/share/doc/ollama/LICENSE
COPY --from=python /opt/venv /opt/venv
COPY --from=python /app /app
ARG BAKE_MODEL=""
# The NVIDIA variables are upstream's: `utility` brings NVML. An empty value counts as unset.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=all \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    OLLAMA_MODEL=${BAKE_MODEL} \
    OLLAMA_MODELS=${BAKE_MODEL:+/opt/ollama/models}
WORKDIR /app
# No image without native code for every declared GPU, or whose llama-server refuses a flag our patches add.
ARG CUDA_VARIANTS="cuda_v12"
ARG CUDA_TARGETS="8.0 8.6 8.9 9.0 10.0 12.0"
RUN python3 -m worker check --libraries /usr/lib/ollama --variants "$CUDA_VARIANTS" --targets "$CUDA_TARGETS" \
    && help=$(/usr/lib/ollama/llama-server --help) \
    && case $help in *--no-warmup*) ;; *) echo "this llama-server knows no --no-warmup" >&2; exit 1 ;; esac
ARG OLLAMA_VERSION
ARG REVISION=""
LABEL org.opencontainers.image.title="runpod-worker-ollama-fast" \
      org.opencontainers.image.description="A Runpod Serverless worker that makes Ollama answer its first token in seconds" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      ollama.version="${OLLAMA_VERSION}"
# Only `docker run … IMAGE local` listens: the job API without Runpod.
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "/app/start.sh"]
