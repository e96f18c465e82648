#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
#
# bench/gpu_check.sh kernels OUT [--full]
#
# On a machine with a GPU, nvcc, CMake, Ninja and GoogleTest: builds the CUDA part, runs its tests
# with KVXFER_REQUIRE_GPU=1, the kernel tests again under compute-sanitizer, and the benchmarks with
# their baselines. Logs, tables and figures go to the folder OUT; --full adds the whole matrix.
# PYTHON names the interpreter (torch, Triton; pybind11 >= 3.0, or its folder in pybind11_ROOT).
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: bench/gpu_check.sh kernels OUT [--full]" >&2
  exit 2
}
[[ $# -ge 2 && $1 == kernels && ($# -eq 2 || $3 == --full) ]] || usage
mkdir -p "$2"
out=$(cd "$2" && pwd)
cells=cells
[[ ${3:-} == --full ]] && cells=full

python=${PYTHON:-python3}
build=${KVXFER_GPU_BUILD:-/tmp/kvxfer-gpu-build}
package=$build/package
export KVXFER_REQUIRE_GPU=1
failed=()

# run NAME SECONDS COMMAND...: the log is OUT/NAME.log; a failure is told at the end.
run() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  if timeout "$limit" bash -euo pipefail -c '"$@"' _ "$@" >"$out/$name.log" 2>&1; then
    echo "ok     $name ($((SECONDS - begin)) s)"
  else
    echo "FAILED $name ($((SECONDS - begin)) s):"
    tail -n 15 "$out/$name.log"
    failed+=("$name")
  fi
}

# Where only a static libstdc++ is found, its symbols must not mix with the shared one that NumPy
# and torch load.
configure() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES=90 \
    -DKVXFER_CUDA=ON -DKVXFER_TESTS=ON -DKVXFER_PYTHON=ON -DKVXFER_BENCH=OFF \
    -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--exclude-libs,libstdc++.a \
    -DPython_EXECUTABLE="$(command -v "$python")"
}

build_bench() {
  nvcc -std=c++20 -O3 -arch=sm_90 -Icpp/include -Icuda/include bench/relayout_bench.cu \
    "$build/cuda/libkvxfer_cuda.a" "$build/cpp/libkvxfer_core.a" -o "$build/relayout_bench"
}

# The package beside its modules, as an install would put them.
assemble() {
  rm -rf "$package" && mkdir -p "$package"
  cp -r python/kvxfer "$package/"
  rm -f "$package"/kvxfer/*.so
  cp "$build"/python/bindings/_core.*.so "$build"/python/bindings/cuda/_cuda.*.so \
    "$build"/python/bindings/collective/_collective.*.so "$package/kvxfer/"
}

export build python package
export -f configure build_bench assemble

{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  nvcc --version | tail -n 2
  "$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
} >"$out/machine.txt" 2>&1 || true
cat "$out/machine.txt"

run configure 120 configure
run build 300 cmake --build "$build" --target kvxfer_core kvxfer_cuda _core _collective _cuda \
  launch_builder_test cuda_copy_rows_test cuda_completion_test cuda_copy_engine_gather_test
run build_bench 120 build_bench
run assemble 30 assemble
[[ ${#failed[@]} -eq 0 ]] || exit 1

run launch_builder_test 120 "$build/tests/cuda/launch_builder_test"
run completion_test 60 "$build/tests/cuda/cuda_completion_test"
run copy_engine_gather_test 120 "$build/tests/cuda/cuda_copy_engine_gather_test"
run copy_rows_test 120 "$build/tests/cuda/cuda_copy_rows_test"
run python_test 120 env PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest \
  -q -p no:cacheprovider --import-mode=importlib -W default \
  tests/python/test_cuda_door.py tests/python/test_cuda_copy_rows.py
kernel_tests='*Boundary*:*BadPlan*:*FewMultiprocessors*'
run memcheck 150 compute-sanitizer --tool memcheck --error-exitcode 1 \
  "$build/tests/cuda/cuda_copy_rows_test" --gtest_filter="$kernel_tests"
run racecheck 150 compute-sanitizer --tool racecheck --error-exitcode 1 \
  "$build/tests/cuda/cuda_copy_rows_test" --gtest_filter="*Boundary*One*:*Boundary*Odd*"

run relayout_bench 240 "$build/relayout_bench" "$cells" few host
run relayout_baselines 150 env PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1 "$python" \
  -X faulthandler bench/relayout_baselines.py
grep -h '^{' "$out/relayout_bench.log" "$out/relayout_baselines.log" >"$out/figures.jsonl" || true
cat "$out/figures.jsonl"
if grep -E '"(unpack_)?differing_bytes": [1-9]' "$out/figures.jsonl"; then
  failed+=("bytes differ")
fi
[[ ${#failed[@]} -eq 0 ]] || { echo "failed: ${failed[*]}"; exit 1; }
