import nonexistent_library


def build():
    return None
