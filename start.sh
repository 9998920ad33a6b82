#!/usr/bin/env bash
# The container's environment, then the worker. Sourced, it only defines its functions.
set -euo pipefail

# When the container started, in ns: the zero of every cold-start figure.
WORKER_START_NS=${WORKER_START_NS:-${EPOCHREALTIME/[.,]/}000}

# Succeeds if the directory is there, or can be made, and takes a file with something in it: a full disk takes empty ones.
writable() {
  mkdir -p "$1" 2>/dev/null && { echo probe >"$1/.probe.$$"; } 2>/dev/null && rm -f "$1/.probe.$$"
}

# Kernels compiled at run time are kept on the volume, so that they are compiled once per fleet and not once per start.
cuda_cache() {
  export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$WORKER_VOLUME/cuda-cache}
  # The driver's default of 1 GiB is smaller than what one large model's kernels can need; 4 GiB is its limit.
  export CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE:-4294967295}
  if ! writable "$CUDA_CACHE_PATH"; then
    echo "start.sh: $CUDA_CACHE_PATH is not writable: compiled kernels will not outlive this container" >&2
    unset CUDA_CACHE_PATH
  fi
}

# The store is on the volume if there is one that can be written to, else on the container's disk.
store() {
  [[ -n ${OLLAMA_MODELS:-} ]] && return
  OLLAMA_MODELS=$WORKER_VOLUME/ollama/models
  writable "$OLLAMA_MODELS" || OLLAMA_MODELS=${HOME:-/root}/.ollama/models
  export OLLAMA_MODELS
}

# The SDK logs every token at its default level, and its own checks would contact 8.8.8.8 and refuse a nearly full disk.
sdk_defaults() {
  export RUNPOD_DEBUG_LEVEL=${RUNPOD_DEBUG_LEVEL:-INFO}
  export RUNPOD_SKIP_AUTO_SYSTEM_CHECKS=${RUNPOD_SKIP_AUTO_SYSTEM_CHECKS:-true}
  export RUNPOD_SKIP_GPU_CHECK=${RUNPOD_SKIP_GPU_CHECK:-true}
}

main() {
  if [[ $# -gt 0 && $* != local ]]; then
    echo "start.sh: unknown argument '$*': did you mean 'local'? Without an argument it takes Runpod's jobs" >&2
    exit 2
  fi
  export WORKER_START_NS WORKER_VOLUME=${WORKER_VOLUME:-/runpod-volume} HOME=${HOME:-/root} PYTHONUNBUFFERED=1
  cuda_cache
  store
  sdk_defaults
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  local home
  home=$(dirname "${BASH_SOURCE[0]}")
  if [[ ${1:-} == local || ${WORKER_MODE:-} == local ]]; then
    # Without Runpod: every API and this worker on one port, for docker run -p 8000:8000 IMAGE local.
    PYTHONPATH=$home exec "${PYTHON:-python3}" -m worker local standalone
  fi
  exec "${PYTHON:-python3}" "$home/handler.py"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  main "$@"
fi
