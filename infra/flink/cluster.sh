#!/usr/bin/env bash
# A Flink cluster on one machine, from PyPI's packages: one job manager, task managers, and a pool of Python workers next to
# each task manager. For tests, and for people without containers.
#
#     infra/flink/cluster.sh start|stop|status DIR
#     infra/flink/cluster.sh assemble .          # put Flink together and print its directory
#
# DIR holds the cluster's configuration, logs and process numbers. What runs is ended by those numbers, and nothing else is touched.
# Then:  cloze corpus … --runner flink --flink-master localhost:8081 --worker-pool worker-pool:50000 --workers 2
#
# Environment, with what is taken by default:
#   PYTHON=python3            of the environment in which cloze is installed
#   MANAGERS=2 SLOTS=1        task managers, and slots of each
#   REST_PORT=8081 RPC_PORT=6123 POOL_PORT=50000
#   FLINK_DIST=~/.cache/cloze/flink-1.19.3    Flink, put together once
#   JVM_ARGS=                 further options for the Java processes
#   FLINK_DOWNLOADS=          a directory that holds PyPI's two packages already; else pip fetches them (230 MB)
#
# All task managers are on this machine, so `localhost:50000` would be one pool for all of them. Each therefore has a hosts
# file of its own, in which the name `worker-pool` is the pool next to it: 127.0.0.1, 127.0.0.2, …
set -euo pipefail

VERSION=1.19.3
PYTHON=${PYTHON:-python3}
MANAGERS=${MANAGERS:-2} SLOTS=${SLOTS:-1}
REST_PORT=${REST_PORT:-8081} RPC_PORT=${RPC_PORT:-6123} POOL_PORT=${POOL_PORT:-50000}
FLINK_DIST=${FLINK_DIST:-${XDG_CACHE_HOME:-$HOME/.cache}/cloze/flink-$VERSION}
WAIT_SECONDS=90

die() {
    echo "cluster.sh: $*" >&2
    exit 1
}

# Flink's own layout out of the wheel (scripts, configuration) and the source archive (jars).
assemble() {
    [ -f "$FLINK_DIST/complete" ] && return
    local downloads=${FLINK_DOWNLOADS:-} temporary
    mkdir -p "$(dirname "$FLINK_DIST")"
    temporary=$(mktemp -d "$FLINK_DIST.XXXXXX")
    trap 'rm -rf "$temporary"' EXIT
    if [ -z "$downloads" ]; then
        downloads=$temporary/downloads
        "$PYTHON" -m pip download --quiet --no-deps --dest "$downloads" \
            "apache-flink==$VERSION" "apache-flink-libraries==$VERSION" ||
            die "pip cannot fetch apache-flink $VERSION; set FLINK_DOWNLOADS to a directory that holds its packages"
    fi
    "$PYTHON" - "$downloads" "$temporary/flink" "$VERSION" <<'END'
import shutil, sys, tarfile, zipfile
from pathlib import Path

downloads, home, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
wheel = next(iter(sorted(downloads.glob(f"apache_flink-{version}-*.whl"))), None)
archive = next(iter(sorted(downloads.glob(f"apache*flink*libraries-{version}.tar.gz"))), None)
if wheel is None or archive is None:
    sys.exit(f"cluster.sh: {downloads} does not hold apache_flink-{version}-*.whl and apache-flink-libraries-{version}.tar.gz")
with zipfile.ZipFile(wheel) as opened:
    for name in opened.namelist():
        if name.startswith(("pyflink/bin/", "pyflink/conf/")) and not name.endswith("/"):
            target = home / name.removeprefix("pyflink/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(opened.read(name))
            target.chmod(0o755 if target.parent.name == "bin" else 0o644)
with tarfile.open(archive) as opened:
    for member in opened:
        parts = Path(member.name).parts
        if member.isfile() and len(parts) > 3 and parts[1] == "deps" and parts[2] in ("bin", "lib", "opt", "plugins") and ".." not in parts:
            target = home.joinpath(*parts[2:])
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.extractfile(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
(home / "complete").touch()
END
    mv -T "$temporary/flink" "$FLINK_DIST" 2>/dev/null || [ -f "$FLINK_DIST/complete" ] || die "$FLINK_DIST cannot be written"
    rm -rf "$temporary"
    trap - EXIT
}

configure() {
    mkdir -p "$DIR/conf" "$DIR/log" "$DIR/pids" "$DIR/tmp"
    cp "$FLINK_DIST"/conf/*.properties "$DIR/conf/"
    # Java 17 wants the add-opens of Flink's own file, so that file is the base.
    "$PYTHON" - "$FLINK_DIST/conf/config.yaml" "$DIR" "$REST_PORT" "$RPC_PORT" "$SLOTS" <<'END'
import sys
from pathlib import Path

import yaml

base, directory, rest, rpc, slots = sys.argv[1:]
directory = str(Path(directory))
flat = {}


def flatten(prefix, node):
    for key, value in node.items():
        if isinstance(value, dict):
            flatten(f"{prefix}{key}.", value)
        else:
            flat[f"{prefix}{key}"] = value


flatten("", yaml.safe_load(Path(base).read_text()))
flat |= {
    "jobmanager.rpc.port": int(rpc), "rest.port": int(rest), "rest.bind-port": str(rest),
    "jobmanager.memory.process.size": "1024m", "taskmanager.memory.process.size": "1400m",
    "taskmanager.numberOfTaskSlots": int(slots), "io.tmp.dirs": f"{directory}/tmp",
    "web.upload.dir": f"{directory}/tmp", "slot.request.timeout": 30000,
    # so that the loss of a task manager is noticed in seconds
    "heartbeat.interval": 2000, "heartbeat.timeout": 10000,
}
Path(directory, "conf", "config.yaml").write_text(yaml.safe_dump(flat, width=10000))
END
}

# launch NAME COMMAND…: in a session of its own, with its number noted
launch() {
    local name=$1
    shift
    setsid nohup "$@" >>"$DIR/log/$name.out" 2>&1 </dev/null &
    echo "$! $(began $!)" >"$DIR/pids/$name"
}

# When a process began, in ticks since the machine did.
began() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20
}

# Is the noted process alive, and the same one? Numbers are used again by the system.
ours() {
    local pid time
    read -r pid time <"$1" 2>/dev/null && [ -n "$time" ] && [ "$(began "$pid")" = "$time" ]
}

overview() {
    "$PYTHON" - "$REST_PORT" <<'END'
import sys, urllib.request
try:
    print(urllib.request.urlopen(f"http://localhost:{sys.argv[1]}/overview", timeout=5).read().decode())
except OSError as error:
    sys.exit(f"cluster.sh: no answer at localhost:{sys.argv[1]} ({error})")
END
}

start() {
    command -v java >/dev/null || [ -x "${JAVA_HOME:-}/bin/java" ] || die "Java is missing; install Java 17 or 11, or set JAVA_HOME"
    "$PYTHON" -c "import cloze.pipeline.runners.pool" || die "$PYTHON has no cloze; set PYTHON to that of its environment"
    if [ -d "$DIR/pids" ]; then
        for file in "$DIR"/pids/*; do
            ours "$file" && die "a cluster runs in $DIR already; stop it first"
        done
        rm -f "$DIR"/pids/*
    fi
    assemble
    configure
    export FLINK_CONF_DIR=$DIR/conf FLINK_LOG_DIR=$DIR/log FLINK_PID_DIR=$DIR/tmp
    launch jobmanager "$FLINK_DIST/bin/jobmanager.sh" start-foreground
    for ((number = 1; number <= MANAGERS; number++)); do
        printf '127.0.0.1 localhost %s\n127.0.0.%d worker-pool\n' "$(hostname)" "$number" >"$DIR/conf/hosts-$number"
        launch "pool-$number" "$PYTHON" -m cloze.pipeline.runners.pool --address "127.0.0.$number:$POOL_PORT"
        launch "taskmanager-$number" env JVM_ARGS="${JVM_ARGS:-} -Djdk.net.hosts.file=$DIR/conf/hosts-$number" \
            "$FLINK_DIST/bin/taskmanager.sh" start-foreground
    done
    for ((second = 0; second < WAIT_SECONDS; second++)); do
        for file in "$DIR"/pids/*; do
            ours "$file" || { tail -n 5 "$DIR/log/$(basename "$file").out" >&2 || true; stop; die "$(basename "$file") has ended; see $DIR/log"; }
        done
        if overview 2>/dev/null | grep -q "\"taskmanagers\":$MANAGERS,"; then
            status
            return
        fi
        sleep 1
    done
    stop
    die "the task managers were not ready after $WAIT_SECONDS seconds; see $DIR/log"
}

stop() {
    local file signal
    for signal in TERM KILL; do
        for ((tenth = 0; tenth < 100; tenth++)); do
            local left=0
            for file in "$DIR"/pids/*; do
                if ours "$file"; then
                    left=1
                    [ "$tenth" = 0 ] && kill "-$signal" "$(cut -d' ' -f1 "$file")" 2>/dev/null || true
                fi
            done
            [ "$left" = 0 ] && break 2
            sleep 0.1
        done
    done
    rm -f "$DIR"/pids/*
}

status() {
    local file state=0
    for file in "$DIR"/pids/*; do
        [ -f "$file" ] || die "no cluster was started in $DIR"
        if ours "$file"; then
            echo "$(basename "$file") $(cut -d' ' -f1 "$file")"
        else
            echo "$(basename "$file") ended"
            state=1
        fi
    done
    overview || state=1
    return $state
}

[ $# = 2 ] || die "usage: $0 start|stop|status DIR"
mkdir -p "$2"
DIR=$(cd "$2" && pwd)
case $1 in
start | stop | status) "$1" ;;
assemble)
    assemble
    echo "$FLINK_DIST"
    ;;
*) die "unknown word $1; use start, stop or status" ;;
esac
