#!/usr/bin/env bash
# A real collective over two hosts, unmodified: two peers on loopback, and a gang whose parts sum their vectors.
#
#   deploy/tour/allreduce.sh            by plain sockets (allreduce.py; Python's standard library)
#   deploy/tour/allreduce.sh --torch    also by torch.distributed with gloo (allreduce_torch.py), once as a program of the
#                                       gang and once under torchrun, which finds all it needs in the environment
#
# With --torch a Python that has torch is used ($PYTHON, python3, /usr/bin/python3); where none has, torch for CPUs is
# installed into a folder that is removed at the end (a download of some 200 MB). Needs the program `rota` ($ROTA, else
# the one built last under target/, else that of PATH) and python3. No root, no GPU. Leaves nothing behind.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TORCH='' WORK='' CLUSTER='' AGENTS=()
[ "${1:-}" != --torch ] || TORCH=1

fail() {
    echo "NOT AS IT SHOULD BE: $1" >&2
    tail -n 5 "$WORK"/n*/agent.log >&2 2>/dev/null || true
    exit 1
}

find_rota() {
    local found best=''
    if [ -z "${ROTA:-}" ]; then
        for found in "$HERE/../../target/release/rota" "$HERE/../../target/debug/rota"; do
            if [ -x "$found" ] && { [ -z "$best" ] || [ "$found" -nt "$best" ]; }; then best=$found; fi
        done
        ROTA=${best:-$(command -v rota || true)}
    fi
    [ -n "$ROTA" ] && [ -x "$ROTA" ] || { echo 'no program rota: build it (cargo build --release) or set ROTA' >&2; exit 2; }
}

# The real program, not a launcher of some version manager that wants variables a job does not have.
real_python() { "$1" -c 'import sys; print(sys.executable)' 2>/dev/null || true; }
has_torch() { [ -n "$1" ] && "$1" -c 'import torch.distributed as d, sys; sys.exit(not d.is_available())' 2>/dev/null; }

find_torch() {
    local name found
    for name in "${PYTHON:-python3}" python3 /usr/bin/python3; do
        found=$(real_python "$name")
        if has_torch "$found"; then WITH_TORCH=$found; return; fi
    done
    echo 'no Python has torch: installing it for CPUs into a folder of its own'
    "$PLAIN" -m venv "$WORK/venv"
    "$WORK/venv/bin/pip" install --quiet --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" torch numpy ||
        "$WORK/venv/bin/pip" install --quiet torch numpy || fail 'torch cannot be installed'
    WITH_TORCH=$WORK/venv/bin/python
}

free_port() {
    local port
    for _ in {1..200}; do
        port=$((30000 + RANDOM % 2700))
        if ! grep -q ":$(printf %04X "$port") " /proc/net/udp; then echo "$port"; return; fi
    done
    return 1
}

agent() {
    "$ROTA" agent --data-dir "$WORK/n$1" --listen "127.0.0.1:$2" --http-listen off --sim-gpus 4xH100:80GiB --cpus 16 \
        --mem 64GiB >/dev/null 2>"$WORK/n$1/agent.log" &
    AGENTS+=($!)
}

until_true() {
    local what=$1 until=$((SECONDS + 40))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || fail "$what"
        sleep 0.1
    done
}
answers() { "$ROTA" cluster status; }
both_up() { [ "$("$ROTA" hosts | awk '$3 == "up"' | wc -l)" = 2 ]; }

finish() {
    local pid
    for pid in "${AGENTS[@]}"; do kill -KILL "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    if [ -n "$CLUSTER" ]; then
        for pid in $(grep -lz "^ROTA_CLUSTER=$CLUSTER\$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do
            kill -KILL "$pid" 2>/dev/null || true
        done
    fi
    # Shims write their last line a moment after their task is gone.
    for _ in {1..20}; do rm -rf "$WORK" 2>/dev/null && break || sleep 0.1; done
}

start_cluster() {
    local base=${TMPDIR:-/tmp} first second out
    [ "${#base}" -le 60 ] || base=/tmp
    WORK=$(mktemp -d "$base/rota-sum.XXXXXX")
    trap finish EXIT
    trap 'exit 130' INT TERM
    cd "$WORK"
    export ROTA_SOCKET=$WORK/n1/api.sock
    unset ROTA_PEER ROTA_TOKEN ROTA_DATA_DIR ROTA_JOIN_TOKEN
    first=$(free_port) second=$(free_port)
    out=$("$ROTA" init --data-dir n1 --name n1 --cluster-name sum --listen "127.0.0.1:$first")
    CLUSTER=$(sed -n 's/^founded cluster [^ ]* (\([0-9a-f]*\)).*/\1/p' <<<"$out")
    agent 1 "$first"
    until_true 'n1 should answer' answers
    "$ROTA" join "127.0.0.1:$first" --token "$("$ROTA" cluster token --join)" --data-dir n2 --name n2 \
        --listen "127.0.0.1:$second" >/dev/null || fail 'n2 could not join'
    agent 2 "$second"
    until_true 'both hosts should be up' both_up
}

# Runs a gang of two parts on two hosts; each must say that the sum is right.
sums() {
    local what=$1 said=$2 out job at
    shift 2
    echo
    printf '$ rota submit --gang 2 --layout spread --gpus 1 --'; printf ' %s' "$@"; echo
    out=$("$ROTA" submit --name "$what" --gang 2 --layout spread --gpus 1 -- "$@")
    job=$(sed -n 's/^job \([0-9]*\)$/\1/p' <<<"$out")
    timeout 180 "$ROTA" wait "$job" >/dev/null || { "$ROTA" logs --stderr "${job}_0" >&2 || true; fail "job $job ended with status $?"; }
    "$ROTA" show "$job" | grep '^where'
    for at in 0 1; do
        out=$("$ROTA" logs "${job}_$at")
        echo "$out"
        grep -q "$said: rank $at of 2" <<<"$out" || fail "part $at of job $job should say: $said: rank $at of 2"
    done
    "$ROTA" show "$job" | grep -Eq '^where +n1,n2' || fail 'the parts should be on both hosts'
}

find_rota
PLAIN=$(real_python python3)
[ -n "$PLAIN" ] || { echo 'python3 is needed' >&2; exit 2; }
start_cluster
sums sockets 'allreduce over sockets' "$PLAIN" "$HERE/allreduce.py"
if [ -n "$TORCH" ]; then
    find_torch
    sums gloo 'allreduce by torch [^ ]* gloo' "$WITH_TORCH" "$HERE/allreduce_torch.py"
    if "$WITH_TORCH" -c 'import sys, torch; sys.exit(torch.__version__ < "2" and sys.version_info >= (3, 11))'; then
        sums torchrun 'allreduce by torch [^ ]* gloo' "$WITH_TORCH" -m torch.distributed.run "$HERE/allreduce_torch.py"
    else
        echo
        echo 'SKIPPED: torchrun: this torch cannot start workers under this Python (torch 2 can)'
    fi
fi
echo
echo 'all sums are right'
