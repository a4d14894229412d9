"""The experiments of the VCube-PS paper, with the nodes that run in production."""
