"""The bundle on disk: its manifest, tokenizers, graphs and golden examples, and how it is opened."""
