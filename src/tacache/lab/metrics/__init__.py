"""Fidelity and quality of pictures and clips, one number a sample."""

from tacache.fidelity import frame_changes, per_frame, psnr, ssim
from tacache.lab.metrics.perceptual import lpips
from tacache.lab.metrics.quality import clip_iqa, clip_similarity, q_align
from tacache.lab.metrics.registry import METRICS, Metric, Samples, measure, missing
from tacache.lab.metrics.verdicts import following

__all__ = [
    "METRICS",
    "Metric",
    "Samples",
    "clip_iqa",
    "clip_similarity",
    "following",
    "frame_changes",
    "lpips",
    "measure",
    "missing",
    "per_frame",
    "psnr",
    "q_align",
    "ssim",
]
