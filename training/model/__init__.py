"""Attention sequence-to-sequence models, written to be exported: state goes in and comes out, nothing stays inside."""

from attendant.training.kernels.cells import STATE_NAMES, CellKind, RecurrentWeights, step_of, weights_of
from attendant.training.model.config import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig
from attendant.training.model.seq2seq import Encoded, Seq2Seq

__all__ = [
    "STATE_NAMES",
    "AttentionConfig",
    "CellKind",
    "DecoderConfig",
    "Encoded",
    "EncoderConfig",
    "ModelConfig",
    "RecurrentWeights",
    "Seq2Seq",
    "step_of",
    "weights_of",
]
