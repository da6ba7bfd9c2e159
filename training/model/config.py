"""The `[model]` table of a recipe: which architecture, how wide, how deep.

What no model could be built of is refused here, with the field, the value and the remedy.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

CellKind = Literal["lstm", "gru"]
ScoreKind = Literal["dot", "general", "additive"]
QueryOrder = Literal["current", "previous"]
InitialState = Literal["bridge", "mean", "zeros"]

NumLayers = Annotated[int, Field(ge=1, le=8)]
Size = Annotated[int, Field(ge=1)]


class ModelTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EncoderConfig(ModelTable):
    """`[model.encoder]`.

    Attributes:
        hidden_size: of one direction; None: `model.hidden_size`.
    """

    num_layers: NumLayers = 1
    bidirectional: bool = True
    hidden_size: Size | None = None


class AttentionConfig(ModelTable):
    """`[model.attention]`.

    Attributes:
        score: how well a source position fits a query, see training/model/scores.py.
        query: the decoder state that asks. "current": the one after the cell, whose attentional vector
            tanh(W_c [c; s]) makes the prediction (Luong et al. 2015). "previous": the one before the cell, into
            which the context is fed (Bahdanau et al. 2015).
        key_size: width of additive attention's hidden layer; None: `model.hidden_size`.
    """

    score: ScoreKind = "general"
    query: QueryOrder = "current"
    key_size: Size | None = None


class DecoderConfig(ModelTable):
    """`[model.decoder]`.

    Attributes:
        input_feeding: the attentional vector of a step is part of the next step's input (Luong et al. 2015, 3.3).
        initial_state: the first state: "bridge": a learned layer from the encoder's last states; "mean": one from
            the mean of its outputs; "zeros".
        tied_embeddings: the output layer's weights are the target embeddings (Press and Wolf 2017).
    """

    num_layers: NumLayers = 1
    input_feeding: bool = False
    initial_state: InitialState = "bridge"
    tied_embeddings: bool = False


class ModelConfig(ModelTable):
    """`[model]`.

    Attributes:
        embedding_size: E, of both sides.
        hidden_size: H, of the decoder's states and of the vector that makes the prediction.
        dropout: on embeddings, between layers and before the output layer.
    """

    cell: CellKind = "lstm"
    embedding_size: Size = 256
    hidden_size: Size = 512
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    encoder: EncoderConfig = EncoderConfig()
    attention: AttentionConfig = AttentionConfig()
    decoder: DecoderConfig = DecoderConfig()

    @property
    def memory_size(self) -> int:
        """D, the width of the encoder's outputs."""
        return (self.encoder.hidden_size or self.hidden_size) * (2 if self.encoder.bidirectional else 1)

    @property
    def key_size(self) -> int:
        """A, the width in which queries and keys meet."""
        return self.attention.key_size or self.hidden_size

    @model_validator(mode="after")
    def refuse_contradictions(self) -> Self:
        for problem in (self._score_problem(), self._feeding_problem(), self._tying_problem()):
            if problem:
                raise ValueError(problem)
        return self

    def _score_problem(self) -> str | None:
        attention = self.attention
        if attention.score == "dot" and self.memory_size != self.hidden_size:
            directions = 2 if self.encoder.bidirectional else 1
            each = self.memory_size // directions
            remedy = (
                f'set model.encoder.hidden_size = {self.hidden_size // directions} or score = "general"'
                if self.hidden_size % directions == 0
                else 'set score = "general"'
            )
            return (
                f'model.attention.score = "dot" compares encoder states of size {directions} x {each} = '
                f"{self.memory_size} with decoder states of size {self.hidden_size}: {remedy}"
            )
        if attention.key_size is not None and attention.score != "additive":
            return (
                f"model.attention.key_size = {attention.key_size} is of additive attention only and score is "
                f'"{attention.score}": leave it out'
            )
        return None

    def _feeding_problem(self) -> str | None:
        if self.decoder.input_feeding and self.attention.query == "previous":
            return (
                'model.decoder.input_feeding = true needs model.attention.query = "current": with "previous" the '
                "context itself is fed to the cell"
            )
        return None

    def _tying_problem(self) -> str | None:
        if self.decoder.tied_embeddings and self.embedding_size != self.hidden_size:
            return (
                f"model.decoder.tied_embeddings = true needs embedding_size = hidden_size, got {self.embedding_size} "
                f"and {self.hidden_size}: make them equal or untie"
            )
        return None
