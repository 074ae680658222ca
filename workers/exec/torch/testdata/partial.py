from blocks import build, example_inputs


def blocks(model):
    return [("first", model.first)]
