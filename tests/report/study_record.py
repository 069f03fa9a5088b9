"""A small record of the convolution study: two shapes, every kind of row."""

from __future__ import annotations

from typing import Any

WHAT = {
    "im2col": "unfold and matmul in eager torch",
    "inductor-im2col": "the same, by torch.compile",
    "jax": "jax.lax.conv_general_dilated, by XLA",
    "torch-conv2d": "torch's conv2d: cuDNN or oneDNN",
    "cudnn-tf32": "cuDNN in TF32",
    "nxcore": "nxcore's conv2d",
}
SPEED = {"im2col": 1.0, "inductor-im2col": 2.0, "torch-conv2d": 4.0, "cudnn-tf32": 9.0}


def row(label: str, speed: float, **more: Any) -> dict[str, Any]:
    """Return a row whose time is a hundred microseconds over its speed."""
    us = 100 / speed
    return {
        "label": label,
        "error": 4e-4 if label == "cudnn-tf32" else 1e-7 * speed,
        "precision": "tf32" if label == "cudnn-tf32" else "ieee32",
        "total_us": us,
        "host_us": us / 2,
        "device_us": us / 4,
        "blocks_us": [us, us, us],
        "ratio": [speed, speed * 0.98, speed * 1.02],
        "kernel": "numba" if label == "nxcore" else "",
        "memory_bytes": int(1e7 / speed),
        "cold_s": 1.5,
        "warm_s": 0.05,
        **more,
    }


def cell(shape: list[int], nxcore: float, *, same: bool = True) -> dict[str, Any]:
    """Return a shape's cell."""
    side, taps, padding = shape
    return {
        "shape": shape,
        "name": f"{side} x {side}, filter {taps}, padding {padding}",
        "same": same,
        "noise": 0.01,
        "margin": 0.02,
        "rows": [*(row(label, speed) for label, speed in SPEED.items()), row("nxcore", nxcore)],
    }


def record(*cells: dict[str, Any], kind: str = "cuda") -> dict[str, Any]:
    """Return a record; by default of two shapes: nxcore is first in one, and behind in the other."""
    absent = {"jax": "jax is not installed; pip install jax"}
    return {
        "record": "conv-study",
        "head": {
            "device": {"type": kind, "name": "Invented 9000"},
            "versions": {"torch": "2.11.0"},
            "machine": {"cores": 2},
            "convolution": {"batch": 2, "channels": 4, "filters": 8, "dtype": "float32"},
            "method": "In turns.",
            "date": "2026-11-23T10:00:00+00:00",
            "seconds": 42.0,
            "fast": False,
        },
        "entrants": [
            {"label": label, "what": what, "promised": "ieee32", "absent": absent.get(label, "")}
            for label, what in WHAT.items()
        ],
        "baseline": "im2col",
        "starts": {"torch cold": 2.0, "torch warm": 1.0, "inductor cold": 12.0},
        "cells": list(cells) or [cell([32, 3, 1], 5.0), cell([64, 5, 1], 2.5, same=False)],
        "notes": [],
    }
