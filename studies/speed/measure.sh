#!/usr/bin/env bash
# Measures some of the rows of docs/performance.md, on a GPU of 139 GiB:
#     bash studies/speed/measure.sh CORPUS IMAGES OUT NAME ...
# CORPUS needs 512 training videos of four shots; IMAGES is a folder per class. The rows that are named together compile
# side by side, which takes most of the time, and then measure one after the other; so they must fit into memory together
# (GiB below). Those of another loop (peers-...) come last, alone.
set -u
corpus=$1 images=$2 out=$3
shift 3
here=$(dirname "$0")
lock=$out/lock
mkdir -p "$out"
exec 9>"$lock"
flock 9

flags() { # of a row: its recipe, its batch, and how to measure it
    case $1 in
    ex4) echo vivi-ex4 --batch.videos 64 --batch.cores 16 --micro-batch 16 --resident off --measure 10 ;;           # 76
    ex4-112) echo vivi-ex4 --augment.size 112 --batch.videos 64 --batch.cores 16 --micro-batch 16 --resident on ;;  # 20
    rot4) echo vivi-rot4 --batch.videos 32 --batch.cores 16 --micro-batch 16 --resident off --measure 10 ;;         # 76
    ex4-aa) echo vivi-ex4-aa --batch.videos 64 --batch.cores 16 --micro-batch 16 --resident off --measure 10 ;;     # 76
    ex4-big) echo vivi-ex4-big --batch.videos 8 --batch.cores 2 --micro-batch 2 --resident off ;;                   # 40
    co100) echo vivi-ex4-co100 --images "$images" --batch.videos 32 --batch.cores 8 --micro-batch 8 \
        --images.count 128 --resident off ;; # 38
    ex4-64) echo vivi-ex4 --encoder.name resnetv2_18 --augment.size 64 --batch.videos 64 --batch.cores 8 \
        --resident on --measure 100 ;; # 5
    frames-64) echo ex-yt-f --encoder.name resnetv2_18 --augment.size 64 --batch.videos 256 --batch.cores 8 \
        --resident on --measure 100 ;; # 5
    paper) echo vivi-ex4 --micro-batch 16 --resident off --measure 2 --rounds 2 --warm-up 1 ;; # 80
    *) echo "no row is called $1" >&2 && exit 1 ;;
    esac
}

benches=()
for name in "$@"; do
    case $name in peers-*) continue ;; esac
    # shellcheck disable=SC2046
    python3 -m vivi bench train $(flags "$name") --corpus "$corpus" --lock "$lock" \
        --profile "$out/$name.profile" --json "$out/$name.json" >"$out/$name.log" 2>&1 9>&- &
    benches+=("$name:$!")
done
for bench in "${benches[@]}"; do # until it has compiled, or is gone
    log=$out/${bench%:*}.log
    until grep -q "its turn" "$log" || ! kill -0 "${bench#*:}" 2>/dev/null; do sleep 1; done
done
flock -u 9
wait
for name in "$@"; do
    case $name in
    # At 112 px the encoder is faster than any loader, compiled or not.
    peers-224) python3 "$here/peers.py" "$corpus" 224 compiled 16 10 >"$out/$name.json" 2>"$out/$name.log" ;;
    peers-112) python3 "$here/peers.py" "$corpus" 112 uncompiled 16 10 >"$out/$name.json" 2>"$out/$name.log" ;;
    esac
done
