#!/bin/sh
# Wait up to SECONDS for the chain to end, show how far it is, and put its results into OUT:
#   sh training/video/collect.sh WORK OUT SECONDS
# The model comes in parts of 15 MiB: cat tiny-wan.tar.* | tar x
work=$1 out=$2 end=$(($(date +%s) + $3))
ended() { grep -qE 'done|failed' "$work/stamps" 2>/dev/null; }
while [ "$(date +%s)" -lt "$end" ] && ! ended; do sleep 2; done
cat "$work/stamps"
tail -n 3 "$work"/logs/*.log
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
ended || exit 0
cd "$work" || exit 1
[ -d tiny-wan ] && tar c tiny-wan | split -b 15M - "$out/tiny-wan.tar."
tar cJf "$out/results.txz" stamps logs $(ls *.png *.gif *.jsonl *.json 2>/dev/null)
ls -l "$out"
