"""Training of the model of library kernels, and its evaluation, on folders of measurements: from a checkout, which has
xgboost and the room for these. What is installed predicts by the shipped model.
"""
