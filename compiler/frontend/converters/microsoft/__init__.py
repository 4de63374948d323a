"""The converters of com.microsoft, ONNX Runtime's own operators, one module per family, merged into one table."""

from collections.abc import Mapping

from . import (
    activations,
    attention,
    branches,
    convolution,
    embedding,
    experts,
    group_query,
    integer_matmul,
    linear_attention,
    low_bit,
    matmul,
    normalization,
    positions,
    quantization,
    recurrent,
    texts,
)
from .operator import Operator

FAMILIES: Mapping[str, Mapping[str, Operator]] = {
    "Activations": activations.OPERATORS,
    "Matmuls": matmul.OPERATORS,
    "Convolutions and pooling": convolution.OPERATORS,
    "Normalisations": normalization.OPERATORS,
    "Gates and branches": branches.OPERATORS,
    "Embeddings": embedding.OPERATORS,
    "Attention": {
        **attention.OPERATORS,
        **group_query.OPERATORS,
        **positions.OPERATORS,
    },
    "Linear attention": linear_attention.OPERATORS,
    "Quantisation": quantization.OPERATORS,
    "Integer matmuls": integer_matmul.OPERATORS,
    "Recurrent layers": recurrent.OPERATORS,
    "Weights of few bits": low_bit.OPERATORS,
    "Mixtures of experts": experts.OPERATORS,
    "Texts": texts.OPERATORS,
}
"""Family -> operator -> its converter and the attributes that it honours."""

OPERATORS: Mapping[str, Operator] = {name: op for family in FAMILIES.values() for name, op in family.items()}
