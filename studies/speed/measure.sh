#!/usr/bin/env bash
# Everything in this folder but scale.*, on a machine with a GPU of 139 GiB, in ten minutes:
#     bash studies/speed/measure.sh CORPUS IMAGES OUT
# CORPUS needs 512 training videos of four shots; IMAGES is a folder per class. Compiling takes most of the time, so the
# benches compile side by side and then measure one after the other, alone: each waits for the lock.
set -u
corpus=$1 images=$2 out=$3
here=$(dirname "$0")
lock=$out/lock
mkdir -p "$out"
exec 9>"$lock"
flock 9

bench() { # name, recipe, flags ...
    local name=$1
    shift
    python3 -m vivi bench train "$@" --corpus "$corpus" --lock "$lock" --json "$out/$name.json" >"$out/$name.log" 2>&1 9>&- &
}
ready() { # until a bench has compiled, or is gone
    until grep -q "its turn" "$out/$1.log" 2>/dev/null || ! kill -0 "$2" 2>/dev/null; do sleep 1; done
}
peers() { # size, compiled or not, workers, seconds: writes JSON
    python3 "$here/peers.py" "$corpus" "$@" 9>&-
}

bench ex4 vivi-ex4 --batch.videos 64 --batch.cores 16 --resident off --measure 10
ex4=$!
# It tries who decodes faster; the others would disturb it.
until grep -q "decoded by" "$out/ex4.log" || ! kill -0 $ex4; do sleep 1; done
bench ex4-112 vivi-ex4 --decode cpu --augment.size 112 --batch.videos 96 --batch.cores 24 --measure 20
at_112=$!
bench co100 vivi-ex4-co100 --decode cpu --images "$images" --batch.videos 16 --batch.cores 4 --images.count 64 --resident off
co100=$!
ready ex4 $ex4
bench ex4-big vivi-ex4-big --decode cpu --batch.videos 4 --batch.cores 2 --resident off
big=$!
peers 224 compiled 2 0.1 >/dev/null 2>&1 & # to compile
prepared=$!
bench rot4 vivi-rot4 --decode cpu --batch.videos 32 --batch.cores 16 --resident off --measure 10
ready rot4 $!
bench ex4-aa vivi-ex4-aa --decode cpu --batch.videos 64 --batch.cores 16 --resident off --measure 10
ready ex4-aa $!
bench paper-batch vivi-ex4 --decode cpu --resident off --measure 2 --rounds 2 --warm-up 1
paper=$!
ready ex4-112 $at_112
ready co100 $co100
ready ex4-big $big
ready paper-batch $paper
wait $prepared
flock -u 9
wait
peers 224 compiled 16 10 >"$out/peers-224.json" 2>"$out/peers.log"
peers 112 uncompiled 16 10 >"$out/peers-112.json" 2>>"$out/peers.log"
