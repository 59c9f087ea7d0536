#!/usr/bin/env bash
# The shapes of work, on a live cluster: three peers on loopback with four simulated cards each, real processes, and
# every command that is typed. Each scene asserts what it shows; the first thing that is not as it should be ends the
# tour with status 1. Everything it started and wrote is gone afterwards.
#
#   deploy/tour/shapes.sh              all scenes, about a minute
#   deploy/tour/shapes.sh gang array   only these
#   deploy/tour/shapes.sh turns        jobs that take turns: up to eleven minutes, as turns are of the clock; not among all
#
# Needs the program `rota` ($ROTA, else the one built last under target/, else that of PATH), and python3 for the part
# of a gang that listens on a port. No root, no GPU, no network. ROTA_TOUR_KEEP=1 keeps the folder with all logs.
set -euo pipefail

SCENES=(gang array after share preempt promise reserve queues start drain)
LONG=(turns)
HOSTS=3

# ---------------------------------------------------------------------------------------------------------------------
# Showing and checking

JOB='' OUT='' OUT_JOB='' OUT_ATTEMPT='' STATUS=0 WORK='' CLUSTER='' SCENE='' SCENE_AT_MS=0
AGENTS=() DONE=()

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

note() { printf '\n# %s\n' "$*"; }

# Words as they would be typed.
typed() {
    local word
    for word in "$@"; do
        if [[ $word =~ ^[][A-Za-z0-9_./:=,%@+-]+$ ]]; then printf ' %s' "$word"; else printf " '%s'" "${word//\'/\'\\\'\'}"; fi
    done
}

indent() { while IFS= read -r line || [ -n "$line" ]; do printf '  %s\n' "${line%"${line##*[![:space:]]}"}"; done; }

# Shows a command of rota and its answer; OUT and STATUS are left behind.
ask() {
    printf '$ rota%s\n' "$(typed "$@")"
    quietly "$@"
    [ -z "$OUT" ] || indent <<<"$OUT"
}

# Nothing here takes long: what hangs must not hang the tour.
quietly() { STATUS=0; OUT=$(timeout 45 "$ROTA" "$@" 2>&1) || STATUS=$?; }

# Shows a command that must succeed.
must() { ask "$@"; [ "$STATUS" = 0 ] || fail "\`rota $1\` ended with status $STATUS"; }

fail() {
    printf '\nNOT AS IT SHOULD BE (scene %s): %s\n\n' "${SCENE:-start}" "$1"
    local log job
    if [ -n "$CLUSTER" ]; then
        { "$ROTA" queue --all 2>&1 | tail -n 25 | indent; } || true
        job=$("$ROTA" queue --all --state F 2>/dev/null | awk '$1 ~ /^[0-9]+$/ { print $1; exit }')
        [ -z "$job" ] || { printf '\nthe first that failed:\n'; "$ROTA" show "$job"; "$ROTA" logs --stderr "$job"; } 2>&1 | indent
    fi
    for log in "$WORK"/n*/agent.log; do
        [ ! -s "$log" ] || { echo "last lines of $log:"; tail -n 5 "$log" | cut -c1-300 | indent; }
    done
    exit 1
}

# The last answer must, or must not, match (words in any case).
says() { grep -Eiq -- "$1" <<<"$OUT" || fail "the answer should say: $1"; }
says_not() { if grep -Eiq -- "$1" <<<"$OUT"; then fail "the answer should not say: $1"; fi; }
same() { [ "$2" = "$3" ] || fail "$1: $2, and not $3"; }

# Hands a job over; JOB is its number.
submit() { must submit "$@"; JOB=$(sed -n 's/^job \([0-9]*\)$/\1/p' <<<"$OUT"); [ -n "$JOB" ] || fail 'no job number'; }

state_of() { quietly show "$1"; sed -n 's/^state *\([a-z ]*[a-z]\).*/\1/p' <<<"$OUT"; }

# Waits, without a word, until a job's state matches.
until_state() {
    local job=$1 wanted=$2 limit=${3:-20} state='' until_ms
    until_ms=$(($(now_ms) + limit * 1000))
    while state=$(state_of "$job"); ! [[ $state =~ ^($wanted)$ ]]; do
        if [ "$(now_ms)" -ge "$until_ms" ]; then
            quietly show "$job"
            fail "job $job should be $wanted within $limit s, and is not:"$'\n\n'"$OUT"
        fi
        sleep 0.1
    done
}

# Waits until a command says something.
until_true() {
    local what=$1 limit=$2 until_ms
    shift 2
    until_ms=$(($(now_ms) + limit * 1000))
    until "$@"; do
        [ "$(now_ms)" -lt "$until_ms" ] || fail "$what should be so within $limit s"
        sleep 0.1
    done
}

# Asks why a job waits. The numbers of its hosts must add up, and the answer must say what is expected.
why() {
    must why "$1"
    local sum=0 total='' hosts rest
    while read -r hosts rest; do
        if [[ $hosts =~ ^[0-9]+$ ]]; then sum=$((sum + hosts)); fi
        if [[ "$hosts $rest" =~ ^of\ ([0-9]+)\ hosts? ]]; then total=${BASH_REMATCH[1]}; fi
    done < <(sed -n '/^HOSTS  *KEPT OFF BY/,$p' <<<"$OUT")
    same 'hosts that the answer counts' "$sum" "$HOSTS"
    same 'hosts that it says there are' "$total" "$HOSTS"
    says_not 'panicked|unknown reason|\{\}'
    says "$2"
    [ "$#" -lt 3 ] || says "$3"
}

# A job's own end: its status, and the status of `rota wait`.
ends_with() {
    ask wait "$1"
    same "status of \`rota wait $1\`" "$STATUS" "$2"
}

# What a host's row says: used/all cards, state.
cards_used() { quietly hosts; awk -v host="$1" '$1 == host { split($4, part, "/"); print part[1] }' <<<"$OUT"; }
uses() { [ "$(cards_used "$1")" = "$2" ]; }
host_of() { quietly show "$1"; awk '$1 ~ /^[0-9]+_[0-9]+$/ { print $3; exit }' <<<"$OUT"; }

# Ends what a scene left behind, so that the next begins with all cards free.
clear_all() {
    quietly queue
    local open
    mapfile -t open < <(awk '$1 ~ /^[0-9]+$/ { print $1 }' <<<"$OUT")
    [ "${#open[@]}" = 0 ] || must cancel "${open[@]}"
    until_true 'an empty queue' 20 is_empty
}
is_empty() { quietly queue; ! awk '$1 ~ /^[0-9]+$/ { found = 1 } END { exit !found }' <<<"$OUT"; }

scene() {
    SCENE=$1 SCENE_AT_MS=$(now_ms)
    printf '\n==== %s: %s\n' "$1" "$2"
}
shown() {
    clear_all
    DONE+=("$SCENE|$1|$(($(now_ms) - SCENE_AT_MS))")
}

# Shows a small program and writes it where tasks find it.
program() {
    cat >"$WORK/$1"
    printf '\n$ cat %s\n' "$1"
    indent <"$WORK/$1"
    echo
}

# ---------------------------------------------------------------------------------------------------------------------
# The cluster

find_rota() {
    local here best='' found
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    if [ -z "${ROTA:-}" ]; then
        for found in "$here/target/release/rota" "$here/target/debug/rota"; do
            if [ -x "$found" ] && { [ -z "$best" ] || [ "$found" -nt "$best" ]; }; then best=$found; fi
        done
        ROTA=${best:-$(command -v rota || true)}
    fi
    [ -n "$ROTA" ] && [ -x "$ROTA" ] || { echo "no program rota: build it (cargo build --release) or set ROTA" >&2; exit 2; }
    PYTHON=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null || true)
    [ -n "$PYTHON" ] || { echo "python3 is needed" >&2; exit 2; }
}

# A UDP port on loopback that nobody holds.
free_port() {
    local port
    for _ in {1..200}; do
        port=$((30000 + RANDOM % 2700))
        if ! grep -q ":$(printf %04X "$port") " /proc/net/udp; then echo "$port"; return; fi
    done
    return 1
}

agent() {
    local number=$1 port=$2 cards=$3
    "$ROTA" agent --data-dir "$WORK/n$number" --listen "127.0.0.1:$port" --http-listen off --sim-gpus "$cards" \
        --cpus 16 --mem 64GiB >/dev/null 2>"$WORK/n$number/agent.log" &
    AGENTS+=($!)
    echo "\$ rota agent --data-dir n$number --listen 127.0.0.1:$port --sim-gpus $cards --cpus 16 --mem 64GiB &"
}

start_cluster() {
    local base=${TMPDIR:-/tmp} ports=() number
    # Paths of sockets are short.
    [ "${#base}" -le 60 ] || base=/tmp
    WORK=$(mktemp -d "$base/rota-tour.XXXXXX")
    trap finish EXIT
    trap 'exit 130' INT TERM
    cd "$WORK"
    export ROTA_SOCKET=$WORK/n1/api.sock
    unset ROTA_PEER ROTA_TOKEN ROTA_DATA_DIR ROTA_JOIN_TOKEN
    for number in 1 2 3; do ports[number]=$(free_port); done
    echo "three peers under $WORK, with $("$ROTA" --version)"
    echo
    must init --data-dir n1 --name n1 --cluster-name tour --listen "127.0.0.1:${ports[1]}"
    CLUSTER=$(sed -n 's/^founded cluster [^ ]* (\([0-9a-f]*\)).*/\1/p' <<<"$OUT")
    [ -n "$CLUSTER" ] || fail 'init names no cluster'
    agent 1 "${ports[1]}" 4xH100:80GiB
    until_true 'an answer of n1' 20 answers
    for number in 2 3; do
        quietly cluster token --join
        [ "$STATUS" = 0 ] || fail "no join token: $OUT"
        echo '$ rota cluster token --join'
        echo "\$ rota join 127.0.0.1:${ports[1]} --token ... --data-dir n$number --name n$number"
        quietly join "127.0.0.1:${ports[1]}" --token "$OUT" --data-dir "n$number" --name "n$number" \
            --listen "127.0.0.1:${ports[number]}"
        [ "$STATUS" = 0 ] || fail "n$number could not join: $OUT"
        agent "$number" "${ports[number]}" "$([ "$number" = 3 ] && echo 4xA100:40GiB || echo 4xH100:80GiB)"
    done
    until_true 'three hosts up' 40 all_up
    must hosts
}
answers() { quietly cluster status; [ "$STATUS" = 0 ]; }
all_up() { quietly hosts; [ "$(awk '$3 == "up"' <<<"$OUT" | wc -l)" = "$HOSTS" ]; }

# Ends everything that carries the cluster's id, and removes the folder.
finish() {
    local status=$? pid
    trap - EXIT INT TERM
    set +e
    for pid in "${AGENTS[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    wait 2>/dev/null
    if [ -n "$CLUSTER" ]; then
        for pid in $(grep -lzs "^ROTA_CLUSTER=$CLUSTER\$" /proc/[0-9]*/environ | cut -d/ -f3); do
            kill -KILL "$pid" 2>/dev/null
        done
        # Shims see their tasks gone, write that down, and go too.
        for _ in {1..50}; do
            grep -qlzs "$WORK/n" /proc/[0-9]*/cmdline || break
            sleep 0.1
        done
    fi
    cd /
    if [ -n "${ROTA_TOUR_KEEP:-}" ]; then echo "kept: $WORK"; else rm -rf "$WORK"; fi
    exit "$status"
}

# ---------------------------------------------------------------------------------------------------------------------
# The scenes. n1 and n2 have four H100 each, n3 has four A100.

scene_gang() {
    scene gang 'two parts on two hosts, all or nothing, and they find each other'
    program meet.py <<'PY'
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
cards = os.environ["CUDA_VISIBLE_DEVICES"].count("GPU-")
print(f"RANK={rank} WORLD_SIZE={size} MASTER_ADDR={place[0]} MASTER_PORT={place[1]} cards={cards}", flush=True)
if rank == 0:
    with socket.create_server(place) as server:
        server.settimeout(20)
        for _ in range(size - 1):
            with server.accept()[0] as other:
                print("heard:", other.makefile().readline().strip(), flush=True)
                other.sendall(f"welcome, all {size} are here\n".encode())
else:
    until = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection(place, timeout=5) as master:
                master.sendall(f"rank {rank}\n".encode())
                print("heard:", master.makefile().readline().strip(), flush=True)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                sys.exit("nobody listens")
            time.sleep(0.1)
PY
    note 'one card of the eight H100 is taken'
    submit --name taken --gpus 1 --gpu-model H100 --grace 1s -- sleep 600
    local taken=$JOB gang busy idle
    until_state "$taken" running
    busy=$(host_of "$taken")
    [ "$busy" = n1 ] && idle=n2 || idle=n1
    submit --name meet --gang 2 --gpus 4 --gpu-model H100 -- "$PYTHON" meet.py
    gang=$JOB
    sleep 1.5
    note "all or nothing: $idle has room for one part, and holds nothing"
    same 'state of the gang' "$(state_of "$gang")" pending
    why "$gang" 'gpus|parts|room'
    same "cards used on $idle" "$(cards_used "$idle")" 0
    must cancel "$taken"
    ends_with "$gang" 0
    must logs "${gang}_0"; says 'RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=[0-9]+ cards=4'; says 'heard: rank 1'
    must logs "${gang}_1"; says 'RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=[0-9]+ cards=4'; says 'heard: welcome, all 2'
    must show "$gang"; says '^where +n1,n2'
    shown 'two hosts, all or nothing, met at MASTER_ADDR:MASTER_PORT'
}

scene_array() {
    scene array 'six tasks, never more than two at once'
    program step.sh <<'SH'
touch "$COUNT/live.$ROTA_TASK_INDEX"
sleep 0.3
ls "$COUNT" | grep -c '^live' >"$COUNT/seen.$ROTA_TASK_INDEX"
sleep 0.5
rm "$COUNT/live.$ROTA_TASK_INDEX"
SH
    mkdir "$WORK/count"
    submit --name steps --array 1-6%2 --env COUNT="$WORK/count" -- sh step.sh
    local array=$JOB
    until_state "$array" running
    why "$array" 'its own tasks|at most 2|at once'
    ends_with "$array" 0
    local most
    most=$(cat "$WORK"/count/seen.* | sort -n | tail -n 1)
    note "each task counted those that ran beside it: $(cat "$WORK"/count/seen.* | tr '\n' ' ')"
    same 'tasks that counted' "$(find "$WORK/count" -name 'seen.*' | wc -l)" 6
    same 'most at once' "$most" 2
    must show "$array"; says '6 succeeded'
    submit --name many --array 0-99 -- sh -c 'echo "task $ROTA_TASK_INDEX of many"'
    array=$JOB
    ends_with "$array" 0
    note 'the output of each task is kept, also of those that the job has forgotten'
    must logs "${array}_0"; says 'task 0 of many'
    must logs "${array}_17"; says 'task 17 of many'
    must logs "${array}_99"; says 'task 99 of many'
    shown "six of six ran, $most at once at the most; output of the first and the last of a hundred"
}

scene_after() {
    scene after 'jobs that wait for others'
    submit --name parent -- sh -c 'sleep 2; exit 3'
    local parent=$JOB ok grand notok any
    submit --name on-success --after ok:"$parent" -- true;          ok=$JOB
    submit --name grandchild --after ok:"$ok" -- true;              grand=$JOB
    submit --name on-failure --after not-ok:"$parent" -- echo mend; notok=$JOB
    submit --name at-any-end --after any:"$parent" -- echo tidy;    any=$JOB
    why "$ok" "job $parent|depend"
    why "$grand" "job $ok|depend"
    ends_with "$parent" 3
    note 'the parent failed: the chain ends with its reason, the others run'
    ends_with "$ok" 122; says 'dependency'
    ends_with "$grand" 122
    must show "$grand"; says "^state +dependency failed"; says "^where .*$ok"
    ends_with "$notok" 0
    ends_with "$any" 0
    must queue --all --state DF; says on-success; says grandchild; says_not on-failure
    shown 'ok, not-ok, any; a chain that cannot go on ends with 122'
}

scene_share() {
    scene share 'two jobs on one card'
    submit --name filler --gpus 3 --gpu-model A100 --grace 1s -- sleep 600
    until_state "$JOB" running
    note 'one A100 is left'
    local run='echo "$CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE%"; exec sleep 600' one two three card
    submit --name half-1 --gpu-share 0.5 --gpu-model A100 --grace 1s -- sh -c "$run"; one=$JOB
    submit --name half-2 --gpu-share 50% --gpu-model A100 --grace 1s -- sh -c "$run"; two=$JOB
    until_state "$one" running
    until_state "$two" running
    submit --name half-3 --gpu-share 0.5 --gpu-model A100 --grace 1s -- sh -c "$run"; three=$JOB
    until_true 'output of both' 10 both_wrote "$one" "$two"
    must logs "$one"; says '^GPU-[^ ,]+ 50%$'; card=$OUT
    must logs "$two"; same 'card of the second' "$OUT" "$card"
    must devices n3; says "${one}_0 .50%.*${two}_0 .50%"
    sleep 1
    same 'state of the third' "$(state_of "$three")" pending
    why "$three" 'share|gpu|card'
    note 'one half is given back'
    must cancel "$one"
    until_state "$three" running
    until_true 'output of the third' 10 wrote "$three"
    must logs "$three"; same 'card of the third' "$OUT" "$card"
    shown 'two halves on one UUID, a third waited for one to end'
}
wrote() { quietly logs "$1"; [ "$STATUS" = 0 ] || fail "no output of job $1: $OUT"; [ -n "$OUT" ]; }
both_wrote() { wrote "$1" && wrote "$2"; }

scene_preempt() {
    scene preempt 'low priority makes room, saves its work, and comes back by itself'
    program count.sh <<'SH'
# Counts to 40 from wherever it was; saves its place when it is warned.
n=$(cat "$SAVED" 2>/dev/null || echo 0)
echo "from $n"
trap 'echo $n >"$SAVED"; echo "warned ($(grep reason "$ROTA_NOTICE_FILE")), saved at $n"; exit 0' USR1
while [ "$n" -lt 40 ]; do n=$((n + 1)); sleep 0.1; done
echo "counted to $n"
SH
    submit --name low --priority 10 --gpus 4 --gpu-model A100 --warn USR1@5s --requeue --env SAVED="$WORK/saved" -- sh count.sh
    local low=$JOB high at
    until_state "$low" running
    sleep 1.5
    submit --name high --priority 90 --gpus 3 --gpu-model A100 -- sleep 2
    high=$JOB
    until_state "$high" running
    until_state "$low" pending
    why "$low" 'gpus?|room'
    ends_with "$high" 0
    ends_with "$low" 0
    must show "$low"; says 'preempted'; says 'exit 0|succeeded'
    local first
    first=$(awk '$2 ~ /^[0-9]+$/ && $1 ~ /_0$/ && /preempted/ { print $2; exit }' <<<"$OUT")
    must logs "$low" --attempt "$first"; says '^from 0$'; says 'warned \(reason=preempt\), saved at [0-9]+'
    at=$(cat "$WORK/saved")
    must logs "$low"; says "^from $at\$"; says '^counted to 40$'
    [ "$at" -gt 0 ] || fail 'nothing was saved'
    shown "warned, saved at $at, resumed from $at, ended well"
}

scene_turns() {
    scene turns 'short work does not wait for long work that goes on where it stopped'
    program steps.sh <<'SH'
# Counts up to $STEPS from wherever it was; saves its place when it is warned.
n=$(cat "$SAVED" 2>/dev/null || echo 0)
echo "from $n"
trap 'echo $n >"$SAVED"; echo "warned ($(grep reason "$ROTA_NOTICE_FILE")), saved at $n"; exit 0' USR1
while [ "$n" -lt "$STEPS" ]; do n=$((n + 1)); sleep 0.5; done
echo "counted to $n"
SH
    must queues set turning --turns auto
    local long=() at job short
    for at in 1 2 3 4; do
        submit --name "long$at" --queue turning --gpus 1 --gpu-model A100 --resumes --work 10h --warn USR1@5s \
            --env SAVED="$WORK/long$at" --env STEPS=100000 -- sh steps.sh
        long+=("$JOB")
    done
    for job in "${long[@]}"; do until_state "$job" running; done
    note 'all four A100 are taken for ten hours; half a minute of work comes'
    submit --name short --queue turning --gpus 1 --gpu-model A100 --resumes --work 30s --warn USR1@5s \
        --env SAVED="$WORK/short" --env STEPS=60 -- sh steps.sh
    short=$JOB
    why "$short" 'room'
    note 'nobody is ended within three minutes of its start; turns begin every six minutes by the clock'
    until_state "$short" running 600
    until_true 'one of the long ones pausing' 10 pauses_one "${long[@]}"
    job=$OUT_JOB
    ends_with "$short" 0
    until_state "$job" running 30
    until_true 'the run that goes on' 30 goes_on "$job"
    must show "$job"; says 'its turn was over'
    must logs "$job" --attempt "$OUT_ATTEMPT"; says '^from [1-9][0-9]*$'
    for at in "${long[@]}"; do same "state of job $at" "$(state_of "$at")" running; done
    shown 'half a minute of work ran in ten hours of others, which went on'
}
# Leaves the attempt of this job that runs, and has begun to write, in OUT_ATTEMPT.
goes_on() {
    OUT_ATTEMPT=$("$ROTA" show "$1" | awk '$2 ~ /^[0-9]+$/ && $1 ~ /_0$/ && $4 == "running" { print $2; exit }')
    [ -n "$OUT_ATTEMPT" ] && "$ROTA" logs "$1" --attempt "$OUT_ATTEMPT" | grep -q '^from '
}
# Leaves the first of these jobs that is not running in OUT_JOB.
pauses_one() {
    for OUT_JOB in "$@"; do [ "$(state_of "$OUT_JOB")" = running ] || return 0; done
    return 1
}

scene_promise() {
    scene promise 'something wide is promised a start, and short work runs before it'
    submit --name blocker --gpus 3 --gpu-model H100 --time 60s --grace 1s -- sleep 600
    local blocker=$JOB wide short long
    until_state "$blocker" running
    submit --name wide --gang 2 --gpus 4 --gpu-model H100 --time 20s -- sleep 1
    wide=$JOB
    note 'a start is promised once a job has waited for five seconds'
    until_true "a promise to job $wide" 15 promised "$wide"
    why "$wide" '^ *promise +no later than' 'parts +1 of 2'
    submit --name short --gpus 1 --gpu-model H100 --time 10s --grace 1s -- sleep 0.5
    short=$JOB
    submit --name long --gpus 1 --gpu-model H100 --time 10m -- sleep 0.5
    long=$JOB
    ends_with "$short" 0
    note 'the short one ended before that start; the long one could not'
    same 'state of the wide one' "$(state_of "$wide")" pending
    same 'state of the long one' "$(state_of "$long")" pending
    why "$long" "kept for job $wide|promise"
    note 'the way is free sooner than promised'
    must cancel "$blocker"
    ends_with "$wide" 0
    ends_with "$long" 0
    shown 'a promised start, backfill before it, the long one after it'
}
promised() { quietly why "$1"; grep -Eiq 'promise' <<<"$OUT"; }

scene_reserve() {
    scene reserve 'a host is kept for maintenance'
    must reserve fans --hosts n3 --from now+40s --for 1h --maintenance --reason 'new fans'
    must reservations; says 'fans'; says 'n3'
    submit --name long --gpus 1 --gpu-model A100 --time 10m -- echo 'ran on n3'
    local long=$JOB short
    submit --name short --gpus 1 --gpu-model A100 --time 5s --grace 1s -- echo 'ran before it'
    short=$JOB
    ends_with "$short" 0
    same 'state of the long one' "$(state_of "$long")" pending
    why "$long" 'reserv|fans'
    must unreserve fans
    ends_with "$long" 0
    must logs "$long"; says 'ran on n3'
    shown 'a long job kept off, a short one let through, both ran'
}

scene_queues() {
    scene queues 'guarantees, borrowing, ceilings'
    local me text vision
    me=$(id -un)
    must queues set tour --tenants "$me"
    must queues set tour/text --guarantee gpus=4 --tenants "$me"
    must queues set tour/vision --guarantee gpus=6 --ceiling gpus=8 --tenants "$me"
    note 'text borrows what vision leaves idle'
    submit --name text --queue tour/text --array 0-11 --gpus 1 --grace 1s -- sleep 600
    text=$JOB
    until_true 'twelve cards in use' 15 held_by tour/text 12
    must queues
    note 'vision asks for its own, and more than it may hold'
    submit --name vision --queue tour/vision --array 0-9 --gpus 1 --grace 1s -- sleep 600
    vision=$JOB
    until_true 'six cards back' 20 held_by tour/vision 6
    sleep 1.5
    must queues
    says '^tour/text .*% +6 +6 '
    says '^tour/vision .*% +4 +6 '
    held_by tour/vision 6 || fail 'vision should get back six cards and no more'
    held_by tour/text 6 || fail 'text should keep six cards'
    why "$text" 'gpus?|room|tasks'
    why "$vision" 'gpus?|room|tasks'
    note 'text goes; vision borrows up to its ceiling, though cards are free'
    must cancel "$text"
    until_true 'eight cards for vision' 15 held_by tour/vision 8
    sleep 1.5
    must queues
    held_by tour/vision 8 || fail 'vision should hold eight cards and no more'
    why "$vision" 'account|ceiling|at most'
    shown 'borrowed 12, gave 6 back to a guarantee; 8 at a ceiling'
}
# The cards that a queue holds.
held_by() {
    quietly queues
    awk -v queue="$1" -v cards="gpus=$2" '$1 == queue { for (i = 2; i <= NF; i++) { n = split($i, part, ","); if ($i ~ /cpus=/) for (j = 1; j <= n; j++) if (part[j] == cards) found = 1 } } END { exit !found }' <<<"$OUT"
}

scene_start() {
    scene start 'held, not before, not after, instead, rather'
    local held begin late either rather
    submit --name held --hold -- echo released
    held=$JOB
    submit --name later --begin now+3s -- echo 'it is time'
    begin=$JOB
    why "$held" 'held|releas'
    why "$begin" 'begin|not before|sooner'
    must release "$held"
    ends_with "$held" 0
    note 'all A100 are taken'
    submit --name filler --gpus 4 --gpu-model A100 --grace 1s -- sleep 600
    local filler=$JOB
    until_state "$filler" running
    submit --name late --gpus 1 --gpu-model A100 --deadline 3s -- true
    late=$JOB
    why "$late" 'gpus?|room'
    submit --name either --gpus 1 --gpu-model A100 --or 'gpus=0 cpus=2' -- \
        sh -c 'echo "alternative $ROTA_ALTERNATIVE, cards: ${CUDA_VISIBLE_DEVICES:-none}"'
    either=$JOB
    ends_with "$either" 0
    must logs "$either"; says '^alternative 1, cards: none$'
    submit --name rather --gpus 1 --prefer A100,H100 -- true
    rather=$JOB
    ends_with "$rather" 0
    [ "$(host_of "$rather")" != n3 ] || fail "job $rather ran on the host that is full"
    note "the deadline has passed, the begin has come"
    ends_with "$late" 121; says 'deadline'
    ends_with "$begin" 0
    must cancel "$filler"
    until_state "$filler" cancelled
    note 'with A100 free again, the preferred model wins'
    submit --name rather --gpus 1 --prefer A100,H100 -- true
    rather=$JOB
    ends_with "$rather" 0
    same "host of job $rather" "$(host_of "$rather")" n3
    shown 'hold, begin, deadline (121), alternatives, preferred models'
}

scene_drain() {
    scene drain 'a host is emptied by a deadline, and comes back'
    local moved stays
    submit --name moved --gpus 2 --prefer A100 --grace 1s -- sleep 600
    moved=$JOB
    until_state "$moved" running
    same "host of job $moved" "$(host_of "$moved")" n3
    must drain n3 'new card' --deadline 3s
    must hosts; says '^n3 .*drain.*new card'
    submit --name stays --gpus 1 --gpu-model A100 -- true
    stays=$JOB
    sleep 0.5
    why "$stays" 'drain'
    until_true "job $moved off n3" 15 lies_off "$moved" n3
    note 'its time is over: the job was ended there and runs elsewhere'
    must show "$moved"; says 'n3 .*(drain|preempted)'; says 'n[12] .*running'
    must undrain n3
    ends_with "$stays" 0
    same "host of job $stays" "$(host_of "$stays")" n3
    shown 'emptied after its deadline, work moved, host back'
}
lies_off() { quietly show "$1"; awk -v host="$2" '$1 ~ /^[0-9]+_[0-9]+$/ && /running/ && $3 != host { found = 1 } END { exit !found }' <<<"$OUT"; }

# ---------------------------------------------------------------------------------------------------------------------

main() {
    local begun name row what took
    local wanted=("$@")
    [ "$#" -gt 0 ] || wanted=("${SCENES[@]}")
    for name in "${wanted[@]}"; do
        [[ " ${SCENES[*]} ${LONG[*]} " == *" $name "* ]] || { echo "no scene $name; there are: ${SCENES[*]} ${LONG[*]}" >&2; exit 2; }
    done
    find_rota
    begun=$(now_ms)
    SCENE=start SCENE_AT_MS=$begun
    start_cluster
    DONE+=("cluster|three equal peers, twelve simulated cards|$(($(now_ms) - begun))")
    for name in "${wanted[@]}"; do "scene_$name"; done
    printf '\n%-9s %-62s %s\n' feature shown seconds
    for row in "${DONE[@]}"; do
        IFS='|' read -r name what took <<<"$row"
        printf '%-9s %-62s %5d.%d\n' "$name" "$what" $((took / 1000)) $((took % 1000 / 100))
    done
    took=$(($(now_ms) - begun))
    printf '%-9s %-62s %5d.%d\n' all '' $((took / 1000)) $((took % 1000 / 100))
}

main "$@"
