#!/bin/sh
# Pack what a machine without a network lacks: the training code, pictures, animations and a few packages.
#   sh training/video/pack.sh [carry/video.txz]
# The packages are those of the Python that `PYTHON` names; all of them are plain Python.
set -eu
target=${1:-carry/video.txz}
site=$(${PYTHON:-.venv/bin/python} -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
mkdir -p "$draft/site" "$draft/data" "$(dirname "$target")"
for package in diffusers ftfy importlib_metadata wcwidth zipp; do
    cp -r "$site/$package" "$site/$package"-*.dist-info "$draft/site/"
done
mkdir "$draft/training"
cp -r training/*.py training/*.json training/video "$draft/training/"
find "$draft" -name __pycache__ -prune -exec rm -rf {} +
cp training/work/emoji.npz training/work/video/animations.npz "$draft/data/"
tar cJf "$target" -C "$draft" $(ls "$draft")
ls -l "$target"
