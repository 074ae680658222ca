def build():
    return (1 +
