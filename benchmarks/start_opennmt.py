"""Starts a command of OpenNMT-py in its environment: `start_opennmt.py onmt.bin.train -config FILE`."""

import argparse
import runpy
import sys
import types

import torch

# OpenNMT-py imports all of its text transforms, and with them these modules, which are not used.
sys.modules |= {name: types.ModuleType(name) for name in ("fasttext", "spacy")}
# OpenNMT-py reads checkpoints as torch did before 2.6.
torch.serialization.add_safe_globals([argparse.Namespace])

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")
