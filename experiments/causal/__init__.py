"""Experiments of the VCube-PS paper, with production nodes."""
