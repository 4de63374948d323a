"""ONNX models as graphs of primitives."""
