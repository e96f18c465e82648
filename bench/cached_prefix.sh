#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
#
# bench/cached_prefix.sh OUT [TRANSPORT]
#
# The cached-prefix benchmark on the synthetic server, an eighth of the published shapes: a write for
# each row to four decode ranks, bounded packing for four, pages as they are to one (tp). Leaves a
# result for each mode, the server's counts and a plot in OUT and prints the comparison.
#
# PYTHON, MODES, SHAPES, LOADS, REPEATS, COMPUTE_S, PACK_TOKENS, PREFILL_TOKENS, DECODE_TOKENS and
# NOTE change what is run.
set -euo pipefail

mkdir -p "${1:?usage: bench/cached_prefix.sh OUT [TRANSPORT]}"
out=$(cd "$1" && pwd)
transport=${2:-nixl}
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
read -ra modes <<< "${MODES:-dcp-row-by-row dcp-bounded tp}"
read -ra shapes <<< "${SHAPES:-10432+832 20480+832 0+4096}"
read -ra loads <<< "${LOADS:-12@1 32@8}"

server=
stop_server() {
  if [[ -n $server ]]; then
    kill -TERM "$server" 2> /dev/null || true
    wait "$server" || true
  fi
  server=
}
trap stop_server EXIT

field() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

read='import sys, urllib.request as web; print(web.urlopen(sys.argv[1], timeout=30).read().decode())'

results=()
for mode in "${modes[@]}"; do
  addresses="$out/$mode.addresses.json"
  "$python" -m kvxfer bench serve --model synthetic --compute-s "${COMPUTE_S:-0.05}" \
    --mode "$mode" --decode-ranks 4 --transport "$transport" --pack-tokens "${PACK_TOKENS:-1024}" \
    --chunk-tokens "${PACK_TOKENS:-1024}" --prefill-tokens "${PREFILL_TOKENS:-65536}" \
    --decode-tokens "${DECODE_TOKENS:-200000}" \
    --port 0 --prefill-port 0 --decode-port 0 > "$addresses" &
  server=$!
  for _ in $(seq 600); do
    if [[ -s $addresses ]]; then break; fi
    kill -0 "$server"
    sleep 0.1
  done
  router=$(field "$addresses" router)
  "$python" -m kvxfer bench cached-prefix --url "$router" \
    --workers "$(field "$addresses" prefill)" "$(field "$addresses" decode)" \
    --shapes "${shapes[@]}" --loads "${loads[@]}" --repeats "${REPEATS:-3}" \
    --label "$mode" --note "$transport${NOTE:+, $NOTE}" --result "$out/$mode.json" > "$out/$mode.md"
  "$python" -c "$read" "$router/report" > "$out/$mode.report.json"
  results+=("$out/$mode.json")
  stop_server
done
"$python" -m kvxfer bench compare "${results[@]}" --plot "$out/cached_prefix.png"
