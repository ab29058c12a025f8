"""Fidelity and quality of pictures and clips, one number a sample."""

from tacache.metrics.fidelity import frame_changes, per_frame, psnr, ssim
from tacache.metrics.perceptual import lpips
from tacache.metrics.quality import clip_iqa, clip_similarity, q_align
from tacache.metrics.registry import METRICS, Metric, Samples, measure, missing
from tacache.metrics.verdicts import following

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
