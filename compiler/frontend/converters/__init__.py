"""The converters of ai.onnx, one module per operator family, merged into one table."""
