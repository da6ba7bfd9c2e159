"""Makes encoder.onnx and step.onnx: a GRU encoder-decoder with attention, as Keras's users write it.

Usage: python make.py FOLDER NUM_STEPS. It needs tensorflow, tf_keras and tf2onnx, in a separate environment
(tensorflow-cpu 2.21, tf_keras 2.21 and tf2onnx 1.17 made the graphs that are here, in 1,500 steps). A recurrent layer
of Keras 3 becomes a Loop, which bundles can't have; one of Keras 2, which is tf_keras, becomes a GRU.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf2onnx
import tf_keras as keras
from tf_keras import layers

SYMBOLS = ["<pad>", "<unk>", "<sos>", "<eos>", *"abcdefghij"]
PAD, UNK, BOS, EOS = range(4)
V, SIZE, LONGEST = len(SYMBOLS), 32, 8


def pairs(num: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sources and targets of one length, so that nothing is padded."""
    random = np.random.default_rng(seed)
    length = random.integers(1, LONGEST + 1)
    words = random.integers(4, V, (num, length))
    ends = np.full((num, 1), EOS)
    target = np.concatenate([words[:, ::-1], ends], 1)
    return np.concatenate([words, ends], 1), np.concatenate([np.full((num, 1), BOS), target[:, :-1]], 1), target


keras.utils.set_random_seed(0)
embed_source, embed_target = layers.Embedding(V, SIZE), layers.Embedding(V, SIZE)
encode = layers.GRU(SIZE, return_sequences=True, return_state=True)
decode = layers.GRU(SIZE, return_sequences=True, return_state=True)
attend, dense = layers.Attention(), layers.Dense(V, activation="softmax")

source = keras.Input((None,), dtype="int32", name="source")
memory, state = encode(embed_source(source))
previous = keras.Input((None,), dtype="int32", name="previous")
hidden, _ = decode(embed_target(previous), initial_state=state)
model = keras.Model([source, previous], dense(layers.Concatenate()([hidden, attend([hidden, memory])])))
model.compile(keras.optimizers.Adam(5e-3, clipnorm=1.0), "sparse_categorical_crossentropy")
for step in range(int(sys.argv[2])):
    ids, before, target = pairs(64, step)
    loss = model.train_on_batch([ids, before], target)
    if step % 200 == 0:
        print(step, float(loss), flush=True)


@tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="source")])
def encoder(source):
    memory, state = encode(embed_source(source))
    return {"memory": memory, "state": state}


@tf.function(
    input_signature=[
        tf.TensorSpec((None, 1), tf.int32, name="previous"),
        tf.TensorSpec((None, SIZE), tf.float32, name="state_in"),
        tf.TensorSpec((None, None, SIZE), tf.float32, name="memory_in"),
    ]
)
def step(previous, state_in, memory_in):
    hidden, state = decode(embed_target(previous), initial_state=state_in)
    context, weights = attend([hidden, memory_in], return_attention_scores=True)
    return {"probabilities": dense(tf.concat([hidden, context], -1)), "state": state, "weights": weights}


folder = Path(sys.argv[1])
for function, name in ((encoder, "encoder"), (step, "step")):
    tf2onnx.convert.from_function(
        function, function.input_signature, opset=15, output_path=str(folder / f"{name}.onnx")
    )
    print(name, (folder / f"{name}.onnx").stat().st_size)
