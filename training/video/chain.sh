#!/bin/bash
# Train the whole model within MINUTES, from the repository's root:
#   bash training/video/chain.sh WORK MINUTES
# Expects WORK/data/emoji.npz and WORK/data/animations.npz. Leaves WORK/tiny-wan, the sheets, curves,
# logs and WORK/stamps (seconds since the start, stage); the last stamp is "done" or "failed: STAGE".
# The flow gets all the time the other stages leave; a stage that fails compiled is run again plain.
set -u
work=$1 minutes=$2
begun=$(date +%s)
mkdir -p "$work/logs"
export TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
export PYTHONPATH="$PWD:${PYTHONPATH:-}"
data="--pictures $work/data/emoji.npz --animations $work/data/animations.npz --out $work"
closing=${CLOSING:-55}         # seconds kept for export and sheets
autoencoder=${AUTOENCODER:-200} # seconds of its training
batch=${BATCH:-512} clips=${CLIPS:-240000}

stamp() { echo "$(($(date +%s) - begun)) $1" | tee -a "$work/stamps"; }
stage() { # NAME COMMAND...: log to NAME.log, stop the chain where it fails
    local name=$1
    shift
    if "$@" >"$work/logs/$name.log" 2>&1; then stamp "$name"; else
        tail -n 5 "$work/logs/$name.log"
        stamp "failed: $name"
        exit 1
    fi
}
either() { # COMMAND...: compiled, or else without compilation
    "$@" || { echo "--- again without compilation"; "$@" --no-compile; }
}

stamp start
python3 -m training.video.corpus --clips "$clips" $data >"$work/logs/corpus.log" 2>&1 &
corpus=$!
stage autoencoder either python3 -m training.video.autoencoder --seconds "$autoencoder" $data
stage waiting wait $corpus
until=$((begun + minutes * 60 - closing))
stage flow either python3 -m training.video.flow --seconds 3600 --until $until --batch "$batch" $data
stage export python3 -m training.video.export --work "$work" --out "$work/tiny-wan" \
    --sheet "$work/sheet" --guidance 4 2.5
stamp done
