"""Folders of tensors behind a manifest: models and checkpoints."""
