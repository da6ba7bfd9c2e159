"""The `[model]` table of a recipe: which architecture, how wide, how deep.

Contradictions, and options that would do nothing, are refused with the field, the value and the remedy.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from attendant.training.kernels.cells import CellKind
from attendant.training.table import Table

ScoreKind = Literal["dot", "scaled_dot", "general", "additive", "concat"]
QueryOrder = Literal["current", "previous"]
InitialState = Literal["bridge", "backward", "mean", "top", "projected", "final", "zeros"]
ReadoutKind = Literal["tanh", "linear", "addition", "maxout", "sum", "concatenation"]
Initialization = Literal["glorot", "uniform", "normal"]
StartSymbol = Literal["bos", "eos"]

MAX_LAYERS = 8
NumLayers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Size = Annotated[int, Field(ge=1, le=10**6)]  # A matrix of larger ones would have more numbers than torch can count.

FIRST_RESIDUAL_LAYER = 2
"""From this layer on (0 the lowest) a residual stack adds a layer's input to its output (Wu et al. 2016, 3.1)."""


class EncoderConfig(Table):
    """`[model.encoder]`.

    Attributes:
        num_layers: layers of the stack; see `model.residual` for residual connections from the third layer on.
        bidirectional: a second stack reads each source from its end; the outputs of both are concatenated.
        hidden_size: width of one direction; if None, `model.hidden_size`.
        reverse_source: reads the source from its end (Sutskever et al. 2014, section 3.3).
    """

    num_layers: NumLayers = 1
    bidirectional: bool = True
    hidden_size: Size | None = None
    reverse_source: bool = False


class AttentionConfig(Table):
    """`[model.attention]`.

    Attributes:
        score: function that compares source positions with a query, see training/model/attention.py. "none": no
            attention; the decoder gets the source as one vector (Cho et al. 2014; Sutskever et al. 2014).
        query: the decoder state that is compared with the source. "current": the state after the cell; the prediction
            is made from the attentional vector (Luong et al. 2015). "previous": the state before the cell; the context
            is an input of the cell (Bahdanau et al. 2015).
        key_size: width to which W_q and W_k project queries and keys; if None, additive and concat take
            `model.hidden_size`, dot and scaled_dot compare the states themselves.
        value_size: width, 2 or more, to which W_v projects encoder states before the context is computed from them; if
            None, they are not projected.
        coverage: additive attention also sees how much it has attended to each position so far (Tu et al. 2016).
    """

    score: ScoreKind | Literal["none"] = "general"
    query: QueryOrder = "current"
    key_size: Size | None = None
    value_size: Size | None = None
    coverage: bool = False


class DecoderConfig(Table):
    """`[model.decoder]`.

    Attributes:
        num_layers: layers of the stack; see `model.residual` for residual connections from the third layer on.
        input_feeding: the attentional vector of a step is part of the next step's input (Luong et al. 2015, 3.3).
        source_vector: without attention, the encoder's last state is part of every step's input and of the
            prediction (Cho et al. 2014).
        initial_state: computation of the decoder's first state. "bridge": a learned layer on the encoder's last states;
            "backward": a learned layer on the last state of its backward direction alone (Bahdanau et al. 2015, A.2.2);
            "mean": a learned layer on the mean of its outputs; "top": a learned layer on the last state of the top
            layer, for all layers of the decoder and for an LSTM's cells (Kreutzer et al. 2019); "projected": a linear
            layer on the encoder's last states and another on its last LSTM cells, layer by layer (Ott et al. 2019);
            "final": the encoder's last states unchanged, layer by layer, including an LSTM's cells (Sutskever et al.
            2014); "zeros": zeros.
        readout: combination of context and state for the prediction, see training/model/readout.py.
        readout_bias: adds a bias to the product of a "tanh" or "linear" readout.
        start_symbol: the input of the first step.
        tied_embeddings: the output layer's weights are the target embeddings (Press and Wolf 2017).
        copying: the next symbol may be copied from the source, chosen by attention (See et al. 2017), see
            training/model/attention.py.
    """

    num_layers: NumLayers = 1
    input_feeding: bool = False
    source_vector: bool = False
    initial_state: InitialState = "bridge"
    readout: ReadoutKind = "tanh"
    readout_bias: bool = False
    start_symbol: StartSymbol = "bos"
    tied_embeddings: bool = False
    copying: bool = False


class ModelConfig(Table):
    """`[model]`.

    Attributes:
        residual: from the third layer on, adds a layer's input to its output (Wu et al. 2016, 3.1). If false, no layer
            does (Sutskever et al. 2014).
        initialization: distribution of the initial weights, see training/model/seq2seq.py.
        cell: recurrent cell of encoder and decoder: long short-term memory (Hochreiter and Schmidhuber 1997), gated
            recurrent unit (Cho et al. 2014), or tanh (Elman 1990).
        embedding_size: E, width of the embeddings of both sides.
        hidden_size: H, width of the decoder's states.
        dropout: probability of dropout on embeddings, between layers and before the output layer.
        shared_embeddings: source and target have one vocabulary and one embedding matrix.
    """

    cell: CellKind = "lstm"
    embedding_size: Size = 256
    hidden_size: Size = 512
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)
    residual: bool = True
    initialization: Initialization = "glorot"
    shared_embeddings: bool = False
    encoder: EncoderConfig = EncoderConfig()
    attention: AttentionConfig = AttentionConfig()
    decoder: DecoderConfig = DecoderConfig()

    @property
    def has_attention(self) -> bool:
        return self.attention.score != "none"

    @property
    def memory_size(self) -> int:
        """D, the width of the encoder's outputs."""
        return (self.encoder.hidden_size or self.hidden_size) * (2 if self.encoder.bidirectional else 1)

    @property
    def context_size(self) -> int:
        """C, the width of the decoder's context at a step. If 0, it has no context except its first state."""
        if self.has_attention:
            return self.attention.value_size or self.memory_size
        return self.memory_size if self.decoder.source_vector else 0

    @property
    def readout_size(self) -> int:
        """P, the width of the vector that makes the prediction."""
        return self.hidden_size + (self.context_size if self.decoder.readout == "concatenation" else 0)

    @property
    def first_residual_layer(self) -> int:
        """The first layer (0 the lowest) whose input is added to its output; MAX_LAYERS if there is none."""
        return FIRST_RESIDUAL_LAYER if self.residual else MAX_LAYERS

    @model_validator(mode="after")
    def refuse_contradictions(self) -> Self:
        for is_wrong, problem in (*self._problems_of_attention(), *self._other_problems()):
            if is_wrong:
                raise ValueError(problem)
        return self

    def _problems_of_attention(self) -> Iterator[tuple[bool, str]]:
        attention, encoder, decoder, score = self.attention, self.encoder, self.decoder, self.attention.score
        directions = 2 if encoder.bidirectional else 1
        fitting = f"model.encoder.hidden_size = {self.hidden_size // directions} or "
        yield (
            score in ("dot", "scaled_dot") and attention.key_size is None and self.memory_size != self.hidden_size,
            f'model.attention.score = "{score}" compares encoder states of size {directions} x '
            f"{self.memory_size // directions} = {self.memory_size} with decoder states of size "
            f"{self.hidden_size}: set {fitting if self.hidden_size % directions == 0 else ''}"
            "model.attention.key_size, which projects both",
        )
        yield (
            score == "general" and attention.key_size is not None,
            f"model.attention.key_size = {attention.key_size} is not of general attention, whose one matrix maps "
            'encoder states to decoder states: leave it out, or set model.attention.score = "dot"',
        )
        yield (
            self.has_attention and self.context_size == 1,
            "contexts of size 1 can't be exported, because their last bits would depend on other requests of a batch: "
            "set model.attention.value_size = 2 or more",
        )
        yield (
            attention.coverage and score != "additive",
            "model.attention.coverage = true is of additive attention and model.attention.score is "
            f'"{score}": set score = "additive" or leave coverage out',
        )
        yield (
            decoder.input_feeding and attention.query == "previous",
            'model.decoder.input_feeding = true needs model.attention.query = "current": with "previous" the '
            "context itself is fed to the cell",
        )
        yield (
            decoder.source_vector and self.has_attention,
            f'model.decoder.source_vector = true is for model.attention.score = "none", and it is '
            f'"{score}": attention replaces the vector',
        )
        idle = {
            'model.attention.query = "previous"': attention.query == "previous",
            f"model.attention.key_size = {attention.key_size}": attention.key_size is not None,
            f"model.attention.value_size = {attention.value_size}": attention.value_size is not None,
            "model.decoder.input_feeding = true": decoder.input_feeding,
            "model.decoder.copying = true": decoder.copying,
        }
        for option, is_set in idle.items():
            needs = f'{option} needs attention and model.attention.score is "none": leave it out'
            yield is_set and not self.has_attention, needs
        has_no_context = not self.has_attention and not decoder.source_vector
        yield (
            has_no_context and decoder.readout != "tanh",
            f'model.decoder.readout = "{decoder.readout}" has no context, with model.attention.score = '
            '"none": leave it out or set model.decoder.source_vector = true',
        )
        yield (
            has_no_context and decoder.initial_state == "zeros",
            'model.decoder.initial_state = "zeros" without attention leaves the decoder nothing of the source: set '
            'initial_state = "bridge" or model.decoder.source_vector = true',
        )

    def _other_problems(self) -> Iterator[tuple[bool, str]]:
        encoder, decoder = self.encoder, self.decoder
        yield (
            decoder.initial_state == "backward" and not encoder.bidirectional,
            'model.decoder.initial_state = "backward" is the last state of an encoder\'s backward direction: set '
            'model.encoder.bidirectional = true or initial_state = "bridge"',
        )
        yield (
            decoder.initial_state == "final" and self.memory_size != self.hidden_size,
            f'model.decoder.initial_state = "final" takes the encoder\'s states of size {self.memory_size} as '
            f"they are, and the decoder's have {self.hidden_size}: make them equal by model.encoder.hidden_size, "
            'or set initial_state = "bridge"',
        )
        yield (
            encoder.reverse_source and encoder.bidirectional,
            "model.encoder.reverse_source = true only renames the directions of a bidirectional encoder: leave it "
            "out or set model.encoder.bidirectional = false",
        )
        yield (
            decoder.copying and not self.shared_embeddings,
            "model.decoder.copying = true needs one vocabulary for both sides: set model.shared_embeddings = true, "
            "or leave copying out",
        )
        yield (
            decoder.readout_bias and (decoder.readout not in ("tanh", "linear") or not self.context_size),
            'model.decoder.readout_bias = true is of model.decoder.readout = "tanh" and "linear", which need a '
            "context: leave it out",
        )
        yield (
            decoder.readout == "sum" and self.context_size != self.hidden_size,
            f'model.decoder.readout = "sum" adds contexts of size {self.context_size} to decoder states of size '
            f"{self.hidden_size}: make them equal by model.attention.value_size or model.encoder.hidden_size, or "
            'set readout = "addition", which projects contexts',
        )
        width = "hidden_size" if self.readout_size == self.hidden_size else "hidden_size + the context's size"
        yield (
            decoder.tied_embeddings and self.embedding_size != self.readout_size,
            f"model.decoder.tied_embeddings = true needs embedding_size = {width}, got "
            f"{self.embedding_size} and {self.readout_size}: make them equal or untie",
        )
        deepest = max(encoder.num_layers, decoder.num_layers)
        yield (
            not self.residual and deepest <= FIRST_RESIDUAL_LAYER,
            f"model.residual = false is of stacks with more than {FIRST_RESIDUAL_LAYER} layers, and the deepest "
            f"has {deepest}: leave it out",
        )
