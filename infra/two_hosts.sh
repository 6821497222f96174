#!/usr/bin/env bash
# Two hosts on one machine: runs `cloze pretrain ARGUMENTS` in two network namespaces that see each other over a cable (a veth pair).
# usage: infra/two_hosts.sh --dataset W/dataset --model bert-tiny --steps 20 --global-batch 16 --out W/pretrain
# Needs root and iproute2. CLOZE names the command (default: cloze). The exit code is the first host's.
set -euo pipefail
tag="cz$$"
cloze=${CLOZE:-cloze}
cleanup() {
    ip netns del "${tag}a" 2>/dev/null || true
    ip netns del "${tag}b" 2>/dev/null || true
}
trap cleanup EXIT
ip netns add "${tag}a"
ip netns add "${tag}b"
ip link add "${tag}va" netns "${tag}a" type veth peer name "${tag}vb" netns "${tag}b"
for side in a b; do
    number=$([ $side = a ] && echo 1 || echo 2)
    ip -n "$tag$side" address add "10.231.7.$number/24" dev "${tag}v$side"
    ip -n "$tag$side" link set "${tag}v$side" up
    ip -n "$tag$side" link set lo up
done
host() {  # host NAMESPACE NODE_RANK ARGUMENTS
    local namespace=$1 rank=$2
    shift 2
    GLOO_SOCKET_IFNAME="${tag}v${namespace: -1}" exec ip netns exec "$namespace" \
        "$cloze" pretrain "$@" --nodes 2 --node-rank "$rank" --master 10.231.7.1:29500
}
host "${tag}b" 1 "$@" &
second=$!
code=0
(host "${tag}a" 0 "$@") || code=$?
[ "$code" -eq 0 ] || kill "$second" 2>/dev/null || true
wait "$second" || true
exit "$code"
