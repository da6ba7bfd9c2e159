"""Servers under load: ours and, where asked, the peers', each in processes of its own."""
