"""Attention sequence-to-sequence models, written to be exported: state goes in and comes out, nothing stays inside."""

from attendant.training.model.config import AttentionConfig, DecoderConfig, EncoderConfig, ModelConfig
from attendant.training.model.seq2seq import Encoded, Seq2Seq

__all__ = ["AttentionConfig", "DecoderConfig", "Encoded", "EncoderConfig", "ModelConfig", "Seq2Seq"]
