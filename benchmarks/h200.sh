#!/bin/sh
# Hold this machine's figures against the targets of one section, on an NVIDIA H200.
#
#   benchmarks/h200.sh SECTION [FOLDER]      SECTION: 1.5b 8b 0.6b http http-1.5b http-8b startup off-bucket
#
# Writes FOLDER/SECTION.md (the rows of benchmarks/targets.toml with bar, aim and figure, then every report) and
# FOLDER/SECTION.json. FOLDER is ./h200 if none is given. All rows come from one configuration: FLAGS.
# Exits with 1 when a bar is missed. Variables: PYTHON; FLAGS; GIT_COMMIT, where there is no git; OLD, a SECTION.json to
# compare with; PROFILE=1 adds where a step's time goes (1.5b, 8b); TINY=1 takes small shapes, to try the script anywhere.
set -eu
section=${1:?a section is needed: 1.5b 8b 0.6b http http-1.5b http-8b startup off-bucket}
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac }
out=$(absolute "${2:-h200}")
old=${OLD:+$(absolute "$OLD")}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
flags=${FLAGS:-"--dtype bfloat16 --load-format dummy --max-num-seqs 256"}
export PYTHONPATH="$PWD:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
vocab=151936
[ -z "${TINY:-}" ] || vocab=2048
shapes() { "$python" benchmarks/shapes.py "$work/models" ${TINY:+--tiny} "$@"; }

# One report. A verb that fails costs its own rows, which are then marked MISSED, and not those of the others.
report() { # NAME VERB OPTIONS...
    name=$1
    shift
    "$python" -c 'from jaxinfer.cli import main; main()' "$@" --json "$work/$name.json" >"$work/$name.md" ||
        echo "failed: jaxinfer $*" >&2
}

latency() { # MODEL OPTIONS...
    model=$1
    shift
    # shellcheck disable=SC2086
    report "$model-latency" bench latency "$work/models/$model" $flags "$@"
}

throughput() { # MODEL
    # shellcheck disable=SC2086
    report "$1-throughput" bench throughput "$work/models/$1" $flags
}

profile() { # MODEL
    [ -n "${PROFILE:-}" ] || return 0
    for batch in 1 256; do
        # shellcheck disable=SC2086
        report "$1-profile-$batch" profile "$work/models/$1" $flags --batch-size $batch
    done
}

load() { # MODEL NAME OPTIONS...
    name=$1-$2
    shift 2
    report "$name" bench serve --url "$url" --vocab-size $vocab "$@"
}

http() { # MODEL REQUESTS64 REQUESTS256
    log=$work/$1-serve.log
    # shellcheck disable=SC2086
    "$python" -c 'from jaxinfer.cli import main; main()' serve "$work/models/$1" $flags --served-model-name "$1" --port 0 2>"$log" &
    server=$!
    until grep -q 'try it' "$log"; do
        kill -0 $server 2>/dev/null || { cat "$log"; exit 1; }
        sleep 0.2
    done
    url=$(sed -n 's/.*listen *\(http[^ ]*\).*/\1/p' "$log")
    load "$1" alone-128 --concurrency 1 --input-tokens 128 --requests 8
    load "$1" alone-1024 --concurrency 1 --input-tokens 1024 --requests 8
    load "$1" 8 --concurrency 8 --input-tokens 512 --requests 32
    load "$1" 64 --concurrency 64 --input-tokens 512 --output-tokens 256 --requests "$2" --check-client
    load "$1" 256 --concurrency 256 --input-tokens 128 --requests "$3" --check-client
    load "$1" cached --concurrency 1 --input-tokens 4128 --shared-prefix-tokens 4096 --output-tokens 1 --requests 6
    [ "$1" != 8b ] || load 8b interrupted --concurrency 32 --input-tokens 128 --output-tokens 1024 --requests 32 \
        --interrupt-tokens 8000 --interrupt-after-s 2
    kill $server
    wait $server || true
    server=
}

case $section in
    startup) shapes --zeros 8b ;;
    *) shapes ;;
esac
case $section in
    1.5b)
        latency 1.5b --prompt-lengths 128,512,1024,4096 --batch-sizes 1,4,8,32,64,128,256 --shapes 256x1024,4x8000 \
            --cached-prefix 4096
        throughput 1.5b
        profile 1.5b
        ;;
    8b)
        latency 8b --prompt-lengths 128,512,1024,4096,8192 --batch-sizes 1,4,8,32,64,128,256 \
            --shapes 64x1024,16x4096,4x8000 --cached-prefix 4096
        throughput 8b
        profile 8b
        ;;
    0.6b) latency 0.6b --prompt-lengths 128,1024 --batch-sizes 1 ;;
    http)
        http 1.5b 256 1024
        http 8b 192 768
        ;;
    http-1.5b) http 1.5b 256 1024 ;;
    http-8b) http 8b 192 768 ;;
    off-bucket)
        latency 1.5b --prompt-lengths 128,130,512,600,1024,1100,4096,4200,8192 \
            --batch-sizes 1,4,5,8,16,20,32,48,64,100,128,150,200,256
        ;;
    startup)
        # shellcheck disable=SC2086
        "$python" benchmarks/startup.py "1.5b=$work/models/1.5b" "8b=$work/models/8b" --json "$work/startup.json" \
            -- $flags >"$work/startup.md"
        cat "$work/models/8b/model.safetensors" >/dev/null # into the page cache
        # shellcheck disable=SC2086
        "$python" benchmarks/startup.py "8b-file=$work/models/8b" --json "$work/startup-file.json" \
            -- $flags --load-format auto >"$work/startup-file.md"
        ;;
    *)
        echo "error: unknown section '$section', known are 1.5b 8b 0.6b http http-1.5b http-8b startup off-bucket" >&2
        exit 2
        ;;
esac
"$python" benchmarks/h200_report.py "$section" "$work" "$out" ${old:+"$old"}
