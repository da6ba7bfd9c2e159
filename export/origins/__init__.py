"""What a bundle is made of: a trained run, a model in PyTorch, or another bundle."""
