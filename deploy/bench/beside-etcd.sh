#!/usr/bin/env bash
# Acknowledged submits a second beside etcd's puts, in one run on one disk: three peers of Rota, three members of etcd
# 3.4, the same clients at once, values as large as a job. Installs etcd by its package name where apt is at hand.
#
#   deploy/bench/beside-etcd.sh [--json] [more options of `rota bench submit`]
#
# ROTA names the program (default: the release build), TMPDIR the disk.
set -euo pipefail
cd "$(dirname "$0")/../.."

rota=${ROTA:-${CARGO_TARGET_DIR:-target}/release/rota}
if [ ! -x "$rota" ]; then
    echo "no program at $rota: cargo build --release -p rota-node, or name one by ROTA=..." >&2
    exit 2
fi
if ! command -v etcd >/dev/null; then
    if ! command -v apt-get >/dev/null || ! apt-get install -y etcd-server etcd-client >&2; then
        echo "etcd is not installed and cannot be installed here (Debian: apt-get install etcd-server)" >&2
        exit 3
    fi
    # The package starts a member of its own where systemd runs; it is none of ours.
    command -v systemctl >/dev/null && systemctl disable --now etcd >/dev/null 2>&1 || true
fi
# What the caller says goes before what is said here: an option stands once.
for pair in --clients=1,64,1024 --seconds=4 --array=1000000; do
    case " $* " in
    *" ${pair%%=*} "* | *" ${pair%%=*}="*) ;;
    *) set -- "$pair" "$@" ;;
    esac
done
exec "$rota" bench submit --beside-etcd "$@"
