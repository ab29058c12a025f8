#!/bin/sh
# Wait up to SECONDS for the chain to end, show how far it is, and put what there is into OUT:
#   sh training/video/collect.sh WORK OUT SECONDS
# Ended: the model, as tiny-wan.tar.* in parts of 15 MiB (cat tiny-wan.tar.* | tar x). Before that, or
# after a failure: the averaged weights of the last minutes with the rest of the work folder, as
# parts.tar.*, from which `training.video.export --work` makes the model. Always: logs, curves and
# sheets in results.txz, moving ones in clips.tar.*; at most seven files, none above 15 MiB.
work=$1 out=$2 end=$(($(date +%s) + $3))
ended() { grep -qE ' (done|failed)' "$work/stamps" 2>/dev/null; }
while [ "$(date +%s)" -lt "$end" ] && ! ended; do sleep 1; done
cat "$work/stamps"
tail -n 3 "$work"/logs/*.log
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
cd "$work" || exit 1
if ended && [ -f tiny-wan/README.md ]; then
    tar c tiny-wan | split -b 15M - "$out/tiny-wan.tar."
elif [ -d vae ]; then
    tar c $(ls -d transformer text_encoder vae tokenizer *.json *.jsonl stamps 2>/dev/null) |
        split -b 15M - "$out/parts.tar."
fi
tar cJf "$out/results.txz" $(ls -d stamps logs *.png *.jsonl *.json 2>/dev/null)
gifs=$(ls *.gif 2>/dev/null) && tar c $gifs | split -b 15M - "$out/clips.tar."
ls -l "$out"
