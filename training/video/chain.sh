#!/bin/bash
# Train the whole model within MINUTES, from the repository's root:
#   bash training/video/chain.sh WORK MINUTES
# Expects WORK/data/emoji.npz and WORK/data/animations.npz. Leaves WORK/tiny-wan, the sheets, curves,
# logs and WORK/stamps (seconds since the start, stage); the last stamp is "done" or "failed: STAGE".
# START=FOLDER goes on from an exported model: its tokenizer, other clips, and its autoencoder as it
# is, or with AUTOENCODER=SECONDS trained further first.
# The flow gets all the time the other stages leave. A stage that fails is run again without
# compilation while there is time; whatever happens to the flow, its last averaged weights are exported.
set -u
work=$1 minutes=$2
begun=$(date +%s)
mkdir -p "$work/logs"
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
export PYTHONPATH="$PWD:${PYTHONPATH:-}"
data="--pictures $work/data/emoji.npz --animations $work/data/animations.npz --out $work"
start=${START:-}
closing=${CLOSING:-65}          # seconds kept for saving, export and sheets
autoencoder=${AUTOENCODER:-$([ -n "$start" ] && echo 0 || echo 210)} # seconds of its training
encoding=${ENCODING:-60}        # seconds in which the flow encodes as many clips as it can
batch=${BATCH:-512} clips=${CLIPS:-360000}
seed=${SEED:-$([ -n "$start" ] && echo 3 || echo 2)}
rate=${RATE:-1e-3}
until=$((begun + minutes * 60 - closing))
if [ "$autoencoder" = 0 ] && [ -z "$start" ]; then
    echo "AUTOENCODER=0 leaves the flow without one: give START=FOLDER as well" >&2
    exit 2
fi

stamp() { echo "$(($(date +%s) - begun)) $1" | tee -a "$work/stamps"; }
left() { echo $(($1 - $(date +%s))); } # END: seconds until then
stage() { # NAME COMMAND...: log to NAME.log; says whether it worked
    local name=$1
    shift
    if "$@" >>"$work/logs/$name.log" 2>&1; then stamp "$name"; else
        tail -n 5 "$work/logs/$name.log"
        stamp "broken: $name"
        return 1
    fi
}
fail() { stamp "failed: $1" && exit 1; }
limited() { # END COMMAND...: ended at END, if it has not by then
    local seconds
    seconds=$(left "$1")
    shift
    timeout --kill-after=10 "$((seconds > 1 ? seconds : 1))" "$@"
}
either() { # END COMMAND...: as it is, or else without compilation where a minute and a half is left
    limited "$@" && return
    [ "$(left "$1")" -gt 90 ] || return 1
    echo "--- again without compilation"
    limited "$@" --no-compile
}
prepare() { # the corpus, and one short run of the flow on noise, which also fills the compiler's cache
    local make="python3 -m training.video.corpus --seed $seed $data ${start:+--start $start}"
    nice $make --clips "$clips" || $make --clips 60000 --workers 1 || return 1
    [ "$autoencoder" = 0 ] && return
    limited $((begun + 280)) python3 -m training.video.flow --rehearse --seconds 6 --batch "$batch" $data
    echo $? >"$work/rehearsed"
}

stamp start
prepare >"$work/logs/corpus.log" 2>&1 &
prepared=$!
if [ "$autoencoder" != 0 ]; then
    # twice its time and more: enough for a second, plain run
    stage autoencoder either $((begun + 3 * autoencoder)) python3 -m training.video.autoencoder \
        --seconds "$autoencoder" --until $((begun + 2 * autoencoder)) $data \
        ${start:+--start $start --seed 4} || [ -d "$work/vae" ] ||
        fail autoencoder
fi
stage corpus wait $prepared || fail corpus
plain=
[ "$(cat "$work/rehearsed" 2>/dev/null)" = 1 ] && plain=--no-compile
stage flow either $((until + 25)) python3 -m training.video.flow --seconds 3600 --until $until \
    --batch "$batch" --encoding "$encoding" --rate "$rate" ${start:+--start $start} $plain $data ||
    [ -d "$work/transformer" ] || fail flow
stage export limited $((begun + minutes * 60 + 90)) python3 -m training.video.export --work "$work" \
    --out "$work/tiny-wan" --sheet "$work/sheet" --guidance 4 2.5 || fail export
stamp done
