"""Runs ONNX's own backend tests through tilestitch (or a rival) and writes down what passes and what fails, and why.

python -m tilestitch.compiler.conformance [--filter REGEX] [--engine tilestitch|graph|onnxruntime|reference] ...
"""
