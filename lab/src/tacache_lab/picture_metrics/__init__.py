"""Fidelity and quality of pictures and clips, one number a sample."""

from tacache.fidelity import frame_changes, per_frame, psnr, ssim
from tacache_lab.picture_metrics.perceptual import lpips
from tacache_lab.picture_metrics.quality import clip_iqa, clip_similarity, following, q_align
from tacache_lab.picture_metrics.registry import METRICS, Metric, Samples, measure, missing

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
